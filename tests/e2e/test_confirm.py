"""`autoresearchd confirm`: what it tests, what it refuses, and what it leaves as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Project
from tests.timing import wait_until

# The second edit does not run, the others are better, one after another; after the third it thinks, until it may go on.
POLICY = """\
import json, os, re, time
from pathlib import Path
here = Path(__file__)
number = json.loads(Path(os.environ["AUTORESEARCHD_STATE"]).read_text())["experiment"]
if number > 3 and not here.with_name("go on").exists():
    here.with_name("thinks").touch()
    time.sleep(600)
text = Path("train.py").read_text()
new = "SHIFT = 1 / 0" if number == 2 else f"SHIFT = {0.5 + 0.1 * number}"
Path("train.py").write_text(re.sub("SHIFT = .*", new, text, count=1))
"""


@pytest.fixture
def session(project: Project, tmp_path: Path) -> Project:
    """A baseline, a keep, a crash and a keep, none of which is confirmed yet."""
    policy = tmp_path / "policy.py"
    policy.write_text(POLICY)
    options = ("--tag", "t", "--seed", "7", "--confirm-every", "1000", "--policy", f"command:python3 {policy}")
    with project.daemon("start", "--foreground", *options) as daemon:
        wait_until((tmp_path / "thinks").exists)
        project.done("stop", "--now")
        daemon.wait()
    (tmp_path / "go on").touch()
    return project


def test_the_tip_is_confirmed_when_a_user_wants_it(session: Project) -> None:
    before = session.experiments()
    tip = session.json("status", "--json")["metric"]["tip"]["experiment"]
    assert not any(e["confirmed"] for e in before[1:]) and tip >= 3
    session.done("confirm")
    metric = session.json("status", "--json")["metric"]
    assert metric["best_experiment"] == tip
    assert session.git("rev-parse", "autoresearch/t") == before[tip]["commit"]
    *_, last = session.json("show", str(tip), "--json")["confirmations"]
    assert (last["outcome"], last["why"], last["experiment"]) == ("confirmed", "asked", tip)


@pytest.mark.parametrize("gone", [False, True])
def test_a_user_who_moved_the_branch_after_a_confirmation_is_told_where_it_was(session: Project, gone: bool) -> None:
    session.done("confirm")
    confirmed, elsewhere = session.git("rev-parse", "autoresearch/t"), session.experiments()[1]["commit"]
    session.git("branch", *(("-D", "autoresearch/t") if gone else ("--force", "autoresearch/t", elsewhere)))
    refused = session.cli("confirm")
    assert refused.returncode == 2 and confirmed[:10] in refused.stderr.split("→")[1], refused.stderr


def test_what_cannot_be_confirmed_is_refused_and_nothing_runs(session: Project) -> None:
    known = session.experiments()
    for words, why in (
        (("99",), f"has no experiment 99\n  → its experiments are 0 to {len(known) - 1}"),
        (("2",), "experiment 2 gave no result that could be confirmed (crash/error)"),
        (("0",), "experiment 0 cannot be confirmed: it is the baseline\n  → name a later one of `autoresearchd"),
        (("--budget", "soon"), "--budget"),
        (("--runs", "0"), "--runs"),
    ):
        done = session.cli("confirm", *words)
        assert done.returncode == 2 and why in done.stderr + done.stdout, done.stderr + done.stdout
        assert "Traceback" not in done.stderr
    assert session.experiments() == known
    assert session.json("show", "3", "--json")["confirmations"] == []


def test_runs_of_another_length_are_compared_and_leave_the_branch(session: Project) -> None:
    branch = session.git("rev-parse", "autoresearch/t")
    session.done("confirm", "3", "--runs", "2", "--budget", "40s")
    [test] = session.json("show", "3", "--json")["confirmations"]
    assert (len(test["runs"]), test["against"], test["budget"]) == (4, 0, 40.0)
    assert session.git("rev-parse", "autoresearch/t") == branch
    assert "compared only" in (session.root / ".autoresearchd/daemon.log").read_text()


def test_runs_of_the_usual_length_are_no_others_because_a_user_names_it(session: Project) -> None:
    session.done("confirm", "--budget", "20s")
    assert session.json("status", "--json")["metric"]["best_experiment"] >= 3
    assert "is confirmed, the branch is there" in (session.root / ".autoresearchd/daemon.log").read_text()


def test_a_daemon_at_work_is_asked_and_refuses_what_it_cannot_do(session: Project) -> None:
    with session.daemon("resume", "t", "--foreground"):
        wait_until(lambda: session.json("status", "--json")["session"]["state"] == "running")
        refused = session.cli("confirm", "1")
        assert refused.returncode == 2 and "its daemon can only confirm its tip" in refused.stderr
        wait_until(lambda: session.cli("pause").returncode == 0)  # for a moment yet it is only starting
        assert "is paused; once `autoresearchd unpause` lets it go on, it" in session.done("confirm").stderr
        session.done("unpause")
        wait_until(lambda: any(e["confirmed"] for e in session.experiments()[1:]))
        session.done("stop", "--now")
