"""A score that the program computes itself stays a score of the same thing: the data that is measured is left alone."""

from __future__ import annotations

import re

from tests.e2e.conftest import TASK, Project

PROGRAM = """\
import os
import random

N = 400
NOISE = 0.5
LR = 0.05
EPOCHS = 2

random.seed(int(os.environ.get("AUTORESEARCHD_SEED", "0")))
rows = []
for _ in range(N):
    x = random.uniform(-1.0, 1.0)
    rows.append((x, 3.0 * x + random.gauss(0.0, NOISE)))
half = N // 2
w = 0.0
for epoch in range(EPOCHS):
    for x, y in rows[:half]:
        w -= LR * (w * x - y) * x
print("n_val:", len(rows[half:]))
print("val_loss:", sum((w * x - y) ** 2 for x, y in rows[half:]) / half)
"""
FILES = {"train.py": PROGRAM, "task.yaml": TASK.replace("metric: score", "metric: val_loss")}


def test_an_edit_that_doubles_the_data_is_told_of_and_is_not_kept(project: Project) -> None:
    """What a tool of the user's edits cannot be refused: it is flagged, and no number of it is kept."""
    edit = "command:sed -i 's/^N = .*/N = 800/; s/^NOISE = .*/NOISE = 0.01/' train.py"
    done = project.put(FILES).session(edit)
    said = done.stdout + done.stderr
    assert re.search(r"it changes N, which makes the data that is measured, NOISE, which", said), said
    found = project.experiments()[1]
    assert (found["status"], found["label"]) == ("discard", "constraint")
    shown = " ".join(project.cli("show", "1").stdout.split())
    assert "another validation set: n_val 400, the baseline's 200" in shown
    assert "warning it changes N, which makes the data that is measured" in shown
