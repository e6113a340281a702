"""Tasks before a session: written, checked, tried, looked through for constants."""
