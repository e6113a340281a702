"""From a session's view to a checked proposal."""
