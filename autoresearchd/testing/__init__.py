"""Deterministic fakes, and the contract suites that every adapter of a port must pass."""
