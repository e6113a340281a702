"""Clients of language models, what they cost, and what bounds their replies."""
