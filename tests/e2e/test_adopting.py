"""A project of another program becomes a task here by one command, keeps its history, and is researched on."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest

from tests.e2e.conftest import Project

TRAIN = """\
import time
from prepare import TIME_BUDGET
RATE = 0.5
DEPTH = 4
time.sleep(min(TIME_BUDGET, 0.1))
print("---")
print(f"val_bpb:          {1.0 + (RATE - 0.3) ** 2 + 0.01 * DEPTH:.6f}")
print("num_steps:        953")
"""
BENCH = """\
SIZE = 64
STRIDE = 3
print("warming up")
print(f"METRIC total_ms={SIZE * 0.5 + STRIDE}")
print(f"METRIC peak_mb={SIZE}")
"""
PROMPT = "# Autoresearch\n\n## Objective\nFaster.\n\n## Files in Scope\n- `bench.py`: all of it\n"
LOG = [
    {"type": "config", "name": "speed", "metricName": "total_ms", "metricUnit": "ms", "bestDirection": "lower"},
    {"run": 1, "commit": "aaaaaaa", "metric": 40.0, "metrics": {}, "status": "keep", "description": "baseline",
     "timestamp": 1700000000000, "segment": 0, "confidence": None},
    {"run": 2, "commit": "bbbbbbb", "metric": 35.0, "metrics": {"peak_mb": 64}, "status": "keep",
     "description": "stride 3", "timestamp": 1700000300000, "segment": 0, "confidence": None,
     "asi": {"hypothesis": "fewer steps"}},
]  # fmt: skip


def adopted(project: Project, name: str, *words: str) -> str:
    told = project.done("task", "init", name, ".").stderr
    for word in words:
        assert word in told
    project.put({}, "the task")
    return told


def researched(project: Project, policy: str) -> list[Any]:
    """Two experiments of a new session beside its baseline."""
    project.session(policy, 2)
    found = project.json("experiments", "--json", "--session", "t")
    assert [one["experiment"] for one in found] == [0, 1, 2]
    assert all(one["status"] in ("keep", "discard") for one in found), found
    return list(found)


@pytest.mark.slow
def test_a_project_of_karpathy_s_is_adopted_and_researched(empty: Project) -> None:
    tsv = "commit\tval_bpb\tmemory_gb\tstatus\tdescription\n" + "a1b2c3d\t1.080000\t44.0\tkeep\tbaseline\n"
    files = {"train.py": TRAIN, "prepare.py": "TIME_BUDGET = 1\n", "program.md": "Never stop.\n", "results.tsv": tsv}
    made = empty.begin({**files, ".gitignore": "results.tsv\n__pycache__/\n"})
    told = adopted(made, "night", "karpathy/autoresearch", "1 experiment of results.tsv", "3 runs, up to")
    assert "baseline: val_bpb 1.08 ± 0 over 3 runs" in told
    task = (made.root / "task.yaml").read_text()
    assert "baseline: 1.08 " in task and 'protected: ["prepare.py", "program.md"]'.replace('"', "") in task
    assert researched(made, "random")[0]["metric"] == pytest.approx(1.08)
    assert made.json("experiments", "--json", "--session", "imported-results")[0]["metric"] == 1.08


@pytest.mark.slow
def test_a_project_of_pi_is_adopted_with_its_log_and_researched(empty: Project) -> None:
    files = {
        ".auto/measure.sh": "set -euo pipefail\npython -S bench.py\n",
        ".auto/checks.sh": "grep -q SIZE bench.py\n",
        ".auto/prompt.md": PROMPT,
        ".auto/log.jsonl": "".join(json.dumps(line) + "\n" for line in LOG),
        "bench.py": BENCH,
    }
    made = empty.begin(files)
    told = adopted(made, "speed", "pi-autoresearch", "2 experiments of .auto/log.jsonl are now session imported-log")
    assert "baseline: total_ms 35 ± 0" in told
    imported = made.json("experiments", "--json", "--session", "imported-log")
    assert [(one["metric"], one["description"]) for one in imported] == [(40.0, "baseline"), (35.0, "stride 3")]
    assert imported[1]["asi"]["hypothesis"] == "fewer steps"
    edit = """command:sed -i "s/^STRIDE = .*/STRIDE = $(date +%N | sed 's/^0*//')/" bench.py"""
    found = researched(made, edit)
    assert found[0]["metrics"]["peak_mb"] == 64


def test_on_a_terminal_what_is_missing_is_asked_for(empty: Project) -> None:
    empty.write("fit.py", "RATE = 1.0\nprint(f'accuracy: {RATE}')\n")
    answers = ["", "", "", "", "2s"]  # the file, the command, the metric, the direction: as proposed; then the budget
    said = typed(empty, ["task", "init", "mine", ".", "--no-measure"], answers)
    text = (empty.root / "task.yaml").read_text()
    for line in ("target_file: fit.py", "run_command: python fit.py", "metric: accuracy", "direction: maximize"):
        assert line in text, said
    assert 'budget: "2s"' in text


def typed(project: Project, arguments: list[str], answers: list[str]) -> str:
    """Run a command on a terminal of its own and answer its questions, one after another; all that was shown."""
    mine, its = pty.openpty()
    command = [sys.executable, "-m", "autoresearchd", *arguments]
    running = subprocess.Popen(
        command, cwd=project.root, env={**project.environment, "TERM": "dumb"}, stdin=its, stdout=its, stderr=its
    )
    os.close(its)
    shown, left = "", list(answers)
    try:
        with suppress(OSError):  # its end of the terminal is closed
            while piece := os.read(mine, 4096).decode():
                shown += piece
                if left and shown.rstrip().endswith(":"):
                    os.write(mine, (left.pop(0) + "\n").encode())
                    shown += "\n"
        assert running.wait() == 0, shown
        return shown
    finally:
        running.kill()
        os.close(mine)
