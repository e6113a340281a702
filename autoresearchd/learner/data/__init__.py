"""Trajectories: read from sessions, split, summarised."""
