"""What an edit may do, and what a run must not have done: legality, integrity, time, simplicity."""
