"""The policies without a model: constants found in a program, and values proposed for them."""
