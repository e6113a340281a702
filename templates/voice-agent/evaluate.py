"""Score a prompt by what the model says with it. Protected: a prompt is text, and nothing of an experiment is executed.

Which of the hidden cases are used is drawn by ``AUTORESEARCHD_SEED``, alike for prompts that share a seed. Runs of one
prompt differ as they would on other callers, so that what is kept is no luck with a few sentences.
"""

from __future__ import annotations

import json
import math
import os
import random
import stat
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from judge import right, speakable
from model import Reply, speaker
from rules import LARGEST_BYTES, problem

COUNTS: dict[str, dict[str, int]] = {
    "validation": {"fact": 2, "day": 4, "job": 3, "elsewhere": 4, "unknown": 2, "secret": 1},
    "test": {"fact": 1, "day": 2, "job": 1, "elsewhere": 2, "unknown": 1, "secret": 1},
}
"""How many cases are drawn: of each fact, and of each other topic."""
CONFIDENT = 1.96

Case = Mapping[str, Any]


def read(path: Path) -> bytes | str:
    """The prompt that a run has left, or what is wrong with it. It is opened once, and no link is followed."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return f"{path.name} cannot be opened: {error.strerror}"
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        return f"{path.name} is no file"
    with os.fdopen(handle, "rb") as file:
        found = file.read(LARGEST_BYTES + 1)
    wrong = problem(found)
    return f"{path.name} {wrong}" if wrong else found


def draw(cases: Sequence[Case], counts: Mapping[str, int], rng: random.Random) -> list[Case]:
    """So many cases of each topic as ``counts`` says, or all where there are fewer."""
    topics: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        topics[case["topic"]].append(case)
    drawn = []
    for topic, found in topics.items():
        wanted = counts.get(topic, counts["fact"])
        drawn += rng.sample(found, min(wanted, len(found)))
    return drawn


def judged(cases: Sequence[Case], said: Sequence[Reply], prompt: str, rng: random.Random) -> list[bool]:
    """Which replies are right. Each that has to evade is judged beside one to a question that is to be answered."""
    twins = [reply.text for case, reply in zip(cases, said, strict=True) if case["twin"]]
    rng.shuffle(twins)
    found = []
    for index, (case, reply) in enumerate(zip(cases, said, strict=True)):
        twin = twins[index % len(twins)] if twins else ""
        found.append(right(case, reply.text, ended=reply.ended, prompt=prompt, twin=twin))
    return found


def share(found: Sequence[bool]) -> float:
    """How many of them are true."""
    return sum(found) / len(found) if found else 0.0


def interval(found: Sequence[bool]) -> tuple[float, float]:
    """The 95% interval of their share over other callers (Wilson 1927)."""
    count, p, z2 = len(found), share(found), CONFIDENT**2
    centre = (p + z2 / (2 * count)) / (1 + z2 / count)
    reach = CONFIDENT * math.sqrt(p * (1 - p) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    return max(0.0, centre - reach), min(1.0, centre + reach)


def main() -> int:
    """Print the share of right replies on both sets, and what it is made of."""
    raw = read(Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "prompt.txt")
    if isinstance(raw, str):
        print(f"FAIL: {raw}")
        return 1
    prompt = raw.decode()
    rng = random.Random(int(os.environ.get("AUTORESEARCHD_SEED", "0")))
    sets = {name: draw(json.loads(Path(f"data/{name}.json").read_text()), COUNTS[name], rng) for name in COUNTS}
    model = speaker()
    said = model.replies(prompt, [case["asked"] for cases in sets.values() for case in cases])
    validation, test = sets["validation"], sets["test"]
    replies = said[: len(validation)]
    found = judged(validation, replies, prompt, rng)
    unseen = judged(test, said[len(validation) :], prompt, rng)
    low, high = interval(found)
    print(f"METRIC eval_score={share(found):.6f}")
    print(f"METRIC eval_score_low={low:.6f}")
    print(f"METRIC eval_score_high={high:.6f}")
    print(f"test_score = {share(unseen):.4f}, which is no metric: report it once")
    for kind in ("fact", "ask", "decline"):
        own = [good for good, case in zip(found, validation, strict=True) if case["kind"] == kind]
        print(f"METRIC {kind}_score={share(own):.6f}")
    print(f"METRIC unspeakable={share([not speakable(r.text, ended=r.ended) for r in replies]):.6f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
