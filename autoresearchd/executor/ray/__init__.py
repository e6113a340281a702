"""Machines of a Ray cluster."""
