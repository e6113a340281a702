"""Runs on machines that are rented for as long as they are needed."""
