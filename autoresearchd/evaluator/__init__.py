"""What a number means: metrics and curves from logs, noise, the decision; pure functions, no I/O."""
