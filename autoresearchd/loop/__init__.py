"""One experiment, a session of many, recovery, and the process around them."""
