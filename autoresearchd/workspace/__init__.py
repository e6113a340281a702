"""Git, behind one adapter."""
