"""Deterministic fakes of the ports: scripted, in memory, without a clock."""
