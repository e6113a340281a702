"""The base model, its adapter, and the steps that train it."""
