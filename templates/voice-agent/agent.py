"""A run: hand the prompt over to the scorer. Protected, and the prompt is text: nothing of an experiment is executed.

With words after it, ``python agent.py "when do you open"``, the prompt is tried out by hand.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rules import problem

PROMPT = Path("system_prompt.txt")


def main() -> None:
    """Check the prompt and write it into the output folder, or print what the model says with it."""
    raw = PROMPT.read_bytes()
    wrong = problem(raw)
    if wrong:
        sys.exit(f"{PROMPT} {wrong}")
    if sys.argv[1:]:
        from model import speaker

        for asked, said in zip(sys.argv[1:], speaker().replies(raw.decode(), sys.argv[1:]), strict=True):
            print(f"> {asked}\n{said.text}{'' if said.ended else ' … (too long)'}")
        return
    (Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "prompt.txt").write_bytes(raw)
    print(f"prompt_characters: {len(raw.decode())}")


if __name__ == "__main__":
    main()
