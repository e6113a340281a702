"""Whether a run is worth its time any more: forecasts of learning curves, and what they are held against."""
