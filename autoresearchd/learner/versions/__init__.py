"""Adapters as versions, with what they were made of and from."""
