"""A tool that knows ten good and ten bad edits: the good are found, the bad rejected, and what is known costs no run.

The program is handicapped in ten constants first; each good edit fixes one of them. It takes milliseconds.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.e2e.conftest import Project

TOOL = """\
import json, os, re
plan = json.load(open({plan!r}))
turn = json.load(open(os.environ["AUTORESEARCHD_STATE"]))["experiment"] - 1
text = open("train.py").read()
good, bad, known = plan["good"], plan["bad"], plan["known"]
if turn >= 2 * len(good):
    what, text = known[turn - 2 * len(good)]
    what = f"known: {{what}}"
elif turn % 2 == 0:
    name = list(good)[turn // 2]
    what, text = f"good: {{name}}", re.sub(rf"(?m)^{{name}} = \\S+", f"{{name}} = {{good[name]}}", text, count=1)
else:
    what, old, new = bad[turn // 2]
    what = f"bad: {{what}}"
    if old == "evaluate.py":
        open(old, "a").write(new)
    else:
        assert old in text, what
        text = text.replace(old, new, 1)
open("train.py", "w").write(text)
print(json.dumps({{"description": what}}))
"""
NO_RUN = {"a syntax error", "only a comment", "another file", "a seed of its own"}
"""Bad edits that are known to be useless before anything is run."""


QUICK = """\
import json
import os
import random
from pathlib import Path

LEARNING_RATE = 0.04
BATCH_SIZE = 512
WEIGHT_DECAY = 0.2
MOMENTUM = 0.9
WARMUP_STEPS = 100
DEPTH = 6
WIDTH = 96
DROPOUT = 0.05
CLIP_NORM = 0.5
INIT_SCALE = 0.6

random.seed(int(os.environ["AUTORESEARCHD_SEED"]))


def recipe():
    return {name: value for name, value in globals().items() if name.isupper()}


def main():
    found = recipe()
    Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"], "recipe.json").write_text(json.dumps(found))


main()
"""
SCORER = """\
import json
import math
import os
import random
from pathlib import Path

BEST = {best!r}
found = json.loads(Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"], "recipe.json").read_text())
loss = 1.0 + sum(0.1 * abs(math.log2(found[name] / best)) for name, best in BEST.items())
print(f"METRIC loss={{loss + random.Random(os.environ['AUTORESEARCHD_SEED']).gauss(0.0, 0.01):.6f}}")
"""
TASK = """\
name: known
workspace: {target_file: train.py, protected: [evaluate.py]}
execution: {run_command: python -S train.py, budget: 10, startup_grace: 5, memory_mb: 256}
evaluation: {command: python -S evaluate.py}
scoring: {metric: loss, direction: minimize}
curve: {abort: false}
"""
BAD = {
    "a syntax error": ("def recipe():", "def recipe(:"),
    "a name that is not there": ("found = recipe()", "found = recipes()"),
    "a value that is no number": ("found = recipe()", 'found = {**recipe(), "DEPTH": float("nan")}'),
    "a step back": ("found = recipe()", 'found = {**recipe(), "WIDTH": 1}'),
    "nothing handed over": ("found = recipe()", "return recipe()"),
    "only a comment": ("def recipe():", "# the recipe\ndef recipe():"),
    "another file": ("evaluate.py", "print('METRIC loss=0.0')\n"),
    "an end with an error": ("found = recipe()", "found = recipe()\n    raise SystemExit(3)"),
    "a score of its own": ("found = recipe()", 'found = {**recipe(), "DEPTH": 1}\n    print("METRIC loss=0.0")'),
    "a seed of its own": ('int(os.environ["AUTORESEARCHD_SEED"])', "7"),
}
GOOD = dict(re.findall(r"(?m)^([A-Z_]+) = (\S+)$", QUICK))
"""Each constant as it should be; handicapped it is four times as large, which costs twenty times the noise."""


def program(fixed: Iterable[str] = (), bad: str = "") -> str:
    """The handicapped program with some constants fixed, and with a bad edit."""
    text = QUICK
    for name in GOOD.keys() - set(fixed):
        text = re.sub(rf"(?m)^{name} = \S+", f"{name} = {4 * float(GOOD[name])!r}", text)
    if bad:
        old, new = BAD[bad]
        assert old in text, bad
        text = text.replace(old, new, 1)
    return text


def tool(folder: Path, known: Sequence[tuple[str, str]]) -> str:
    """The command of a tool that makes the good and the bad edits in turn, then those that are known."""
    bad = [[name, old, new] for name, (old, new) in BAD.items()]
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"good": GOOD, "bad": bad, "known": known}))
    (folder / "tool.py").write_text(TOOL.format(plan=str(plan)))
    return f"command:{sys.executable} -S {folder / 'tool.py'}"


def outcome(experiments: Iterable[Mapping[str, Any]]) -> list[str]:
    """What became of each, for a failing test's message."""
    return [f"{e['experiment']} {e['description']} → {e['status']}/{e['label']} {e['metric']}" for e in experiments]


def test_good_edits_are_found_bad_ones_rejected_and_known_ones_cost_no_run(project: Project, tmp_path: Path) -> None:
    names = list(GOOD)
    best = {name: float(good) for name, good in GOOD.items()}
    project.put({"train.py": program(), "evaluate.py": SCORER.format(best=best), "task.yaml": TASK}, "handicapped")
    # The fourth bad edit was made on the program with the first four constants fixed.
    again = program(names[:4], "a step back")
    repeats = [
        ("the baseline", program()),
        ("a discarded program", again),
        ("the same in other words", again.replace("def main():\n", "def main():  # as before\n\n")),
    ]
    project.session(tool(tmp_path, repeats), 2 * len(names) + len(repeats), tag="known")
    _, *found = project.experiments()
    edits, last = found[: 2 * len(names)], found[2 * len(names) :]
    kept = [e["description"] for e in edits if e["status"] == "keep"]
    assert kept == [f"good: {name}" for name in names], outcome(edits)
    assert outcome(e for e in edits if e["description"].removeprefix("bad: ") in NO_RUN and e["runs"]) == []
    answered = ("discard", "duplicate", [])  # from the journal, as what has been run before, in whatever words
    assert [(e["status"], e["label"], e["runs"]) for e in last] == [answered] * len(repeats)
    assert project.git("show", "autoresearch/known:train.py") == program(names).strip()
