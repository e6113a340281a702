"""Runs on other machines, over ssh: this daemon's side, and what it sends there to watch over a run."""
