"""Isolation of processes in tiers, and the supervisor that ends whole process trees."""
