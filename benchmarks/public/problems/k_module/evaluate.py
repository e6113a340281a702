"""How many of four slots have the right option. Protected: no experiment may edit it."""

import json
import sys
from pathlib import Path

import answer


def score(given):
    """The count; which ones are right is not said."""
    slots = given["slots"] if isinstance(given, dict) and set(given) == {"slots"} else None
    if not isinstance(slots, list) or len(slots) != 4 or not all(isinstance(option, str) for option in slots):
        raise answer.Wrong('the answer has to be {"slots": a list of four words}')
    right = json.loads(Path("right.json").read_text())
    return float(sum(option == wanted for option, wanted in zip(slots, right, strict=True)))


if __name__ == "__main__":
    sys.exit(answer.run(score))
