"""From what a run wrote to a measurement: metrics, curves, how it failed."""
