"""Kept programs that fail on purpose when they run again, and programs that only are noisier, in real sessions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import make_project

HERE = Path(__file__).resolve().parents[2]
PROGRAM = """\
import os, random, sys, time
SCALE, NOISE = 0.0, 0.03
# HERE
print("score:", SCALE + random.Random(f"{os.environ['AUTORESEARCHD_SEED']}/{SCALE}").gauss(0.0, NOISE))
"""
TASK = """\
name: again
workspace: {target_file: train.py}
execution: {run_command: python train.py, budget: 2, startup_grace: 2, timeout: 60, training_time: budget}
scoring: {metric: score, direction: maximize, metric_source: stdout}
"""
POLICY = """\
import json, os, re
from pathlib import Path
number = json.loads(Path(os.environ["AUTORESEARCHD_STATE"]).read_text())["experiment"]
text = json.loads(Path({path!r}).read_text())[number - 1]
if text.startswith("SCALE"):  # an edit of the program that there is
    text = re.sub("SCALE, NOISE = .*", text, Path("train.py").read_text())
Path("train.py").write_text(text)
print(json.dumps({{"description": f"program {{number}}", "hypothesis": "it may be better"}}))
"""
# As `autoresearchd start --foreground` does, but with a seed that is not drawn.
START = """\
import sys
from pathlib import Path
from autoresearchd.app.start import StartOptions, start
from autoresearchd.domain.experiment import Limits
options = StartOptions(
    task=None, directory=Path(), tag="again", policy="command:" + sys.argv[1], seed=7, foreground=True,
    limits=Limits(max_experiments=int(sys.argv[2])),
)
sys.exit(start(options))
"""
AGAIN = 'if "/again/1/" not in os.environ["AUTORESEARCHD_OUTPUT_DIR"]:\n    '
POISONERS = {
    "crashes when it runs again": (AGAIN + 'sys.exit("no more")', "error"),
    "prints NaN when it runs again": (AGAIN + 'sys.exit(print("score: nan"))', "non_finite"),
    "never ends when it runs again": (AGAIN + "time.sleep(600)", "budget_overrun"),
}
FIRST, *REST = POISONERS
HOW = [FIRST, *(pytest.param(how, marks=pytest.mark.nightly) for how in REST)]


def edited(scale: float, noise: float = 0.03, extra: str = "") -> str:
    return PROGRAM.replace("0.0, 0.03", f"{scale}, {noise}", 1).replace("# HERE", extra or "# HERE")


def session(folder: Path, programs: list[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What came of programs that were proposed one after another, and how the session stands."""
    project, policy = make_project(folder), folder / "policy.py"
    project.begin({"train.py": PROGRAM, "task.yaml": TASK})
    (folder / "programs.json").write_text(json.dumps(programs))
    policy.write_text(POLICY.format(path=str(folder / "programs.json")))
    command = [sys.executable, "-c", START, f"{sys.executable} {policy}", str(len(programs))]
    environment = {**project.environment, "PYTHONPATH": str(HERE)}
    done = subprocess.run(command, cwd=project.root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [project.json("show", str(n), "--json") for n in range(len(programs) + 1)], project.status()


@pytest.mark.parametrize("how", HOW)
def test_a_poisoner_stops_no_later_gain(place: Path, how: str) -> None:
    """Without its place lost, all that comes after it is discarded, however good."""
    poison, label = POISONERS[how]
    found, status = session(place, [edited(0.3, extra=poison), edited(0.8)])
    assert [(e["status"], e["label"] or "") for e in found] == [("keep", ""), ("crash", label), ("keep", "")]
    assert "lost its place" in found[1]["reason"] and "Compared without experiment 1" in found[2]["reason"]
    assert (status["metric"]["best_experiment"], status["session"]["keeps"]) == (2, 1)
    log = (place / "project/.autoresearchd/daemon.log").read_text()
    assert "experiment 0 is the incumbent again" in log


@pytest.mark.parametrize("how", HOW[:2])
def test_a_time_bomb_does_not_cost_the_night(place: Path, how: str) -> None:
    """What is built on it holds its code and fails before it would run again beside it: so it kept its place."""
    poison, label = POISONERS[how]
    edits = [f"SCALE, NOISE = {0.4 + 0.5 * k}, 0.03" for k in range(5)]
    found, status = session(place, [edited(0.3, extra=poison), *edits])
    expected = [("keep", ""), *[("crash", label)] * 5, ("keep", "")]
    assert [(e["status"], e["label"] or "") for e in found] == expected
    assert "twice when it ran again beside experiment 5, so it lost its place" in found[1]["reason"]
    assert (status["metric"]["best_experiment"], status["session"]["keeps"]) == (6, 1)


def test_a_program_that_only_is_noisier_is_not_kept(place: Path) -> None:
    """Ten times as noisy, and worse; tests/unit/evaluator/test_keep.py counts how often luck has it kept."""
    found, _ = session(place, [edited(-0.05 - 0.001 * k, noise=0.3) for k in range(2)])
    assert [e["status"] for e in found] == ["keep", "discard", "discard"]
