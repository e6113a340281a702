"""The policy `agent`: a model at a shell in a copy of the task."""
