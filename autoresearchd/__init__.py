"""autoresearchd: a daemon that does machine-learning research while its owner sleeps."""

__version__ = "0.1.0"
