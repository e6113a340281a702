"""The models of a session: asked first, served, paid for."""
