"""What a model is shown: the research state in sections, fitted into a budget of tokens."""
