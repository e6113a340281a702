"""What is written down of sessions, experiments and versions, and read again."""
