"""The commands; one file per noun, nothing heavy imported at start."""
