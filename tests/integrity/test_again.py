"""Programs that fail on purpose when they run again, and those that only are noisier, get on no branch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.randomness import derive_seed
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
    task=None, directory=Path(), tag="again", policy="command:" + sys.argv[1], seed=int(sys.argv[3]), foreground=True,
    limits=Limits(max_experiments=int(sys.argv[2])),
)
sys.exit(start(options))
"""
SEED = 7
KNOWN = derive_seed(SEED, 0, "run", 0)  # of all experiments: a policy can see it in what a program prints
AGAIN = f'if SCALE != 0.3 or os.environ["AUTORESEARCHD_SEED"] != "{KNOWN}":\n    '
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
    command = [sys.executable, "-c", START, f"{sys.executable} {policy}", str(len(programs)), str(SEED)]
    environment = {**project.environment, "PYTHONPATH": str(HERE)}
    done = subprocess.run(command, cwd=project.root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [project.json("show", str(n), "--json") for n in range(len(programs) + 1)], project.status()


def states(found: list[dict[str, Any]]) -> list[tuple[str, str, bool | None]]:
    return [(e["status"], e["label"] or "", e["confirmed"]) for e in found]


@pytest.mark.parametrize("how", HOW)
def test_a_poisoner_is_not_confirmed_and_stops_no_later_gain(place: Path, how: str) -> None:
    """What is built on it holds its code and fails, until it is run again itself and falls."""
    poison, label = POISONERS[how]
    found, status = session(
        place, [edited(0.3, extra=poison), *(f"SCALE, NOISE = {0.4 + 0.5 * k}, 0.03" for k in range(4))]
    )
    crashes = [("crash", label, None)] * 3
    assert states(found) == [("keep", "", True), ("keep", "", False), *crashes, ("keep", "", True)]
    assert status["metric"]["best_experiment"] == 5
    log = (place / "project/.autoresearchd/daemon.log").read_text()
    assert "experiment 0 is the tip again: Experiment 1 failed 2 times when it ran again" in log


def test_a_poisoner_that_was_tried_last_is_not_on_the_branch(place: Path) -> None:
    poison, _ = POISONERS[FIRST]
    found, status = session(place, [edited(0.3, extra=poison)])
    assert states(found) == [("keep", "", True), ("keep", "", False)]
    git = ["git", "-C", str(place / "project"), "rev-list", "--count", "HEAD..autoresearch/again"]
    assert subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip() == "0"
    assert status["metric"]["best_experiment"] == 0


def test_a_program_that_only_is_noisier_is_not_confirmed(place: Path) -> None:
    """Ten times as noisy, and worse; benchmarks/keep.py counts how often luck has such a program confirmed."""
    found, _ = session(place, [edited(-0.05 - 0.001 * k, noise=0.3) for k in range(2)])
    assert not any(e["confirmed"] for e in found[1:])
