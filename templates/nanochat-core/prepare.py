"""Prepare the data of the `nanochat-core` task. Protected: no experiment may edit it.

Run once in the set-up folder; writes into `data/`:

=================  ======  ===============================================================================
file               who     content
=================  ======  ===============================================================================
`train.bin`        job     training text as it is: documents, each ended by a zero byte
`meta.json`        job     versions, sizes, sha256 of the files
`questions.npz`    scorer  the questions, as `questions.py` describes them
=================  ======  ===============================================================================

`python_text.py` has the text; the questions are made from what it holds out. Which are asked, of some 40,000 that can
be made, is drawn from randomness that is kept nowhere: a program that knew could bring the answers.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import numpy as np
from python_text import END, PrepareError, offline, write_facts
from questions import questions, tables

QUESTIONS = 150  # of each kind


def main() -> int:
    """Prepare `data/` in the current directory."""
    out = Path("data")
    out.mkdir(exist_ok=True)
    try:
        train, held, meta = offline()
        (out / "train.bin").write_bytes(b"".join(text + END for text in train))
        rng = np.random.default_rng(secrets.randbits(128))
        asked = questions(held, QUESTIONS, rng)
        np.savez(out / "questions.npz", **tables(asked, held, rng))
    except (PrepareError, OSError) as error:
        print(f"prepare.py: {error}", file=sys.stderr)
        return 1
    print(", ".join(f"{len(made)} questions of {kind}" for kind, made in asked.items()))
    write_facts(out, ("train.bin", "questions.npz"), meta)
    return 0


if __name__ == "__main__":
    sys.exit(main())
