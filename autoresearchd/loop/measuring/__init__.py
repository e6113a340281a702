"""What a run leaves, and whether it counts."""
