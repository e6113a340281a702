"""How a local policy learns from its own experiments: imported by the learner's own process, not by the daemon."""
