"""The model process of the evaluation: answers rows of bytes with logits, as `serving.py` says. Protected."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # also under `python -P`

from serving import from_checkpoint, run

if __name__ == "__main__":
    sys.exit(run(from_checkpoint("uint8"), symbol=1))
