"""The program: ``autoresearchd …`` and ``python -m autoresearchd …``."""

from __future__ import annotations

import sys

from autoresearchd.cli.main import run as main

if __name__ == "__main__":
    sys.exit(main())
