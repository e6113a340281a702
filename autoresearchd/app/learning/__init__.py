"""The learner put together: what it reads, trains and judges by, by hand or on a schedule."""
