"""Sessions as experiment trackers know them: one module for each, which alone imports it.

Each has ``send(book, place) -> Sent``: writes what is not there yet, and leaves alone what is.
"""
