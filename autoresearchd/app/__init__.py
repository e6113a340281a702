"""The composition root: what the commands call. The one place that knows which adapter stands behind which port.

Nothing is imported here: `stop` or `note` must not wait for what `start` needs.
"""
