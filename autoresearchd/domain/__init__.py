"""What the daemon talks about: frozen dataclasses and pure functions, without I/O."""
