"""Copies of the database, and a new one from what is left of it."""
