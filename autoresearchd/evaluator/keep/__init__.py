"""Whether an experiment is an improvement: noise, the sequential rule, the decision in words."""
