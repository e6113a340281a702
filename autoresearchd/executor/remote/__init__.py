"""Runs on other machines, however they are reached: this daemon's side, and what it sends there to watch over a run."""
