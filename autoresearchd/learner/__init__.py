"""How a local policy learns from its own experiments; what needs torch is imported by the learner's process alone."""
