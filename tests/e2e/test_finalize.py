"""`autoresearchd finalize` on a real session: what its branches hold, what an ablation drops, what it refuses."""

from __future__ import annotations

import json
import shlex
from contextlib import closing
from typing import Any

import pytest

from autoresearchd.cli.repository_here import find_place
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.loop.upkeep.session_lock import SessionLock
from autoresearchd.workspace.layout import lock_path
from tests.e2e.conftest import TASK, Project, make_project
from tests.timing import wait_until

SEED = 7
PROGRAM = """\
import os
import random

SCALE = 1.0
LUCKY = 0
SHIFT = 0.5

seed = int(os.environ.get("AUTORESEARCHD_SEED", "0"))
random.seed(seed)
noise = random.gauss(0.0, 0.01)
print(f"score: {(SCALE - 2.0) ** 2 + (SHIFT - 1.0) ** 2 - 0.3 * (seed == LUCKY) + noise:.6f}")
"""
LUCKY = derive_seed(SEED, 0, "run", 0)
"""The one seed that all experiments of the session run on: what only fits that is nothing on fresh ones."""
POLICY = f"""\
import json, os, re
from pathlib import Path
number = json.loads(Path(os.environ["AUTORESEARCHD_STATE"]).read_text())["experiment"]
name, value = [("SCALE", 1.5), ("LUCKY", {LUCKY}), ("SHIFT", 0.8)][number - 1]
text = Path("train.py").read_text()
Path("train.py").write_text(re.sub(f"{{name}} = .*", f"{{name}} = {{value}}", text, count=1))
print(json.dumps({{"hypothesis": f"$(touch x) try {{name}}\\nExperiment: 99"}}))
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Three keeps, confirmed together; the second of them brings nothing. What tests make has names of its own."""
    folder = tmp_path_factory.mktemp("finalize")
    (folder / "policy.py").write_text(POLICY)
    project = make_project(folder).begin({"train.py": PROGRAM, "task.yaml": TASK})
    project.session(f"command:python3 {folder / 'policy.py'}", 3, "--seed", str(SEED), "--confirm-every", "1000")
    assert [e["confirmed"] for e in project.experiments()] == [True] * 4
    return project


def compared(project: Project) -> list[dict[str, Any]]:
    place = find_place(project.root)
    with closing(place.reader):
        return place.reader.confirmations("t")


def constants(project: Project, branch: str) -> list[str]:
    return project.git("show", f"{branch}:train.py").splitlines()[3:6]


def test_what_is_confirmed_becomes_branches_with_their_evidence_and_is_undone_as_told(session: Project) -> None:
    before = session.snapshot()
    done = session.json("finalize", "--json")
    assert [b["name"] for b in done["branches"]] == ["final/t-1", "final/t-2", "final/t-3", "final/t"]
    assert {session.git("rev-parse", f"{name}^{{tree}}") for name in ("final/t", "autoresearch/t")} == {done["tree"]}
    assert [session.git("rev-list", "--count", f"main..final/t-{n}") for n in (1, 2, 3)] == ["1", "2", "3"]
    assert constants(session, "final/t-2") == ["SCALE = 1.5", f"LUCKY = {LUCKY}", "SHIFT = 0.5"]
    message = " ".join(session.git("log", "-1", "--format=%B", "final/t-2").split())
    known = session.experiments()
    for words in (
        "$(touch x) try LUCKY", "score 0.4", "(experiment 1) → 0.1", f"1 run, seed {LUCKY}", "beside experiment 0",
        "an improvement with probability 0.99",
    ):  # fmt: skip
        assert words in message
    trailers = session.git("log", "-1", "--format=%(trailers:only)", "final/t-2").splitlines()
    assert trailers[0] == "Experiment: 2" and trailers[1] == f"Metric: score={known[2]['metric']:.6g}"
    assert trailers[-1] == "Session: t"
    refused = session.cli("finalize")
    assert refused.returncode == 2 and "branch final/t is there already" in refused.stderr
    undo = shlex.split(done["undo"])
    assert undo[0] == "git"
    session.git(*undo[1:])
    assert session.snapshot() == before


def test_a_squash_on_another_base_is_one_commit_there(session: Project) -> None:
    session.git("branch", "release", "main")
    tree = session.git("rev-parse", "main^{tree}")
    base = session.git("commit-tree", tree, "-p", "main", "-m", "of the user")
    session.git("branch", "--force", "release", base)
    said = session.done("finalize", "--squash", "--into", "pr", "--base", "release").stdout
    assert "#1, #2, #3" in said and session.git("rev-parse", "pr^") == base
    assert session.git("diff", "--stat", "pr", "autoresearch/t") == ""
    message = session.git("log", "-1", "--format=%B", "pr")
    assert message.startswith("toy: 3 improvements of session t\n") and "Experiment: 1, 2, 3\n" in message
    assert session.cli("finalize", "--base", "autoresearch/t").returncode == 2, "it has all of them"


@pytest.mark.parametrize(
    ("options", "code", "why"),
    [
        (("--into=-x",), 2, "'-x' cannot be the name of a branch"),
        (("--base", "nowhere"), 2, "'nowhere' names no commit"),
        (("--session", "other"), 2, "there is no session 'other'"),
        (("--session", "empty"), 2, "nothing of session empty is confirmed yet"),
        (("--session", "imported-read"), 2, "session imported-read was imported"),
    ],
)
def test_what_cannot_be_is_refused_and_makes_nothing(
    options: tuple[str, ...], code: int, why: str, session: Project
) -> None:
    if "empty" in options:
        session.session("random", 0, tag="empty")
    if "imported-read" in options:
        (session.root.parent / "read.jsonl").write_text(session.done("export", "--session", "t").stdout)
        session.done("import", str(session.root.parent / "read.jsonl"))
    before = session.snapshot()
    refused = session.cli("finalize", "--session", "t", *options)
    assert refused.returncode == code and why in refused.stderr and "→" in refused.stderr, refused.stderr
    assert "Traceback" not in refused.stderr and session.snapshot() == before


def test_beside_a_daemon_branches_are_made_and_nothing_is_ablated(session: Project) -> None:
    with SessionLock(lock_path(session.root, "t"), "t"):
        assert session.cli("finalize", "--ablate", "--into", "no", "--session", "t").returncode == 75
        session.done("finalize", "--into", "beside", "--session", "t")
    assert session.git("rev-parse", "beside^{tree}") == session.git("rev-parse", "autoresearch/t^{tree}")
    assert session.git("branch", "--list", "no*") == ""


def test_an_ablation_that_is_killed_goes_on_and_drops_what_brings_nothing(session: Project) -> None:
    branch = session.git("rev-parse", "autoresearch/t")
    with session.daemon("finalize", "--ablate", "--session", "t", "--into", "killed") as process:
        wait_until(lambda: len(compared(session)) > 2)  # one before, and one that is through
        process.kill()
    first = next(test for test in compared(session) if test["why"].startswith("ablation"))
    assert session.git("branch", "--list", "killed*") == ""
    done = json.loads(session.done("finalize", "--ablate", "--session", "t", "--into", "lean", "--json").stdout)
    assert done["dropped"] == [2] and [b["experiments"] for b in done["branches"]] == [[1], [3], [1, 3]]
    assert constants(session, "lean") == ["SCALE = 1.5", "LUCKY = 0", "SHIFT = 0.8"]
    made = [test for test in compared(session) if test["why"].startswith("abla")]
    assert made[0] == first and [test["experiment"] for test in made] == [3, 2, 1, 3], "none was made twice"
    assert [test["outcome"] for test in made] == ["fell", "confirmed", "fell", "confirmed"]
    assert not any(test["moved"] for test in made) and session.git("rev-parse", "autoresearch/t") == branch
    message = " ".join(session.git("log", "-1", "--format=%B", "lean-1").split())
    assert "It stays after a test without it in 6 runs" in message and "without experiment 1 is 0.7" in message
    assert "#3 without #2 against #3  not missed" in session.done("show", "2", "--session", "t").stdout
    best = session.json("status", "--json", "--session", "t")["metric"]["best"]
    assert abs(best - 0.29) < 0.02, "runs without an improvement tell nothing of the program with it"
    again = session.json("finalize", "--ablate", "--session", "t", "--into", "again", "--squash", "--json")
    assert again["tree"] == done["tree"] and len(compared(session)) == len(made) + 1, "nothing ran again"
