"""The first day with it: what a newcomer runs into, and whether each message says what to do next."""

from __future__ import annotations

import json
import signal

from autoresearchd.domain.randomness import derive_seed
from tests.e2e.conftest import PROGRAM, TASK, Project
from tests.timing import wait_until

READS_DATA = "RATE = 0.1\nprint('score:', float(open('data/d.csv').read()))\n"
OVERRUNS_LATER = f"""\
import os, time
RATE = 0.1
if os.environ["AUTORESEARCHD_SEED"] != "{derive_seed(7, 0, "run", 0)}":
    time.sleep(60)
print("score: 1.5")
"""


# ---------------------------------------------------------------------- what is checked is what is run
def test_the_check_and_the_start_both_name_the_key_that_brings_data_along(project: Project) -> None:
    project.put({"train.py": READS_DATA, ".gitignore": "data/\n"})
    project.write("data/d.csv", "1.5\n")
    for words in (("task", "check", ".", "--run"), ("start", "--foreground", "--policy", "random")):
        refused = project.cli(*words)
        assert refused.returncode == 3
        assert "workspace.data: [data/d.csv]" in refused.stderr, words
    project.put({"task.yaml": TASK.replace("train.py}", "train.py, data: [data/d.csv]}", 1)})
    checked = project.done("task", "check", ".", "--run")
    assert "score 1.5" in checked.stdout
    assert checked.stderr.startswith("running the baseline of toy once: up to 45s\n"), "nobody waits in doubt"


def test_a_baseline_that_fails_once_start_has_returned_is_told_by_status_until_another_begins(project: Project) -> None:
    task = TASK.replace("budget: 20, startup_grace: 5", "budget: 2, startup_grace: 2")
    project.put({"train.py": OVERRUNS_LATER, "task.yaml": task})
    done = project.done("start", "--tag", "t", "--policy", "random", "--max-experiments", "1", "--seed", "7")
    assert "first of 3 baseline runs" in done.stderr
    watched = project.cli("status", "--watch")
    told = project.cli("status")
    assert (watched.returncode, told.returncode) == (3, 3), "who polls must not take it for a session that runs"
    for out in (watched.stdout, told.stdout):
        assert "ended before its first result" in out
        assert "budget_overrun" in out and "startup_grace" in out, "why, and how to fix it"
        assert ".autoresearchd/runs/t" in out
    for more in ((), ("--session", "t")):
        done = project.cli("status", "--json", *more)
        document = json.loads(done.stdout)
        assert done.returncode == 3
        assert document["session"]["state"] == "crashed"
        assert "budget_overrun" in document["session"]["reason"]
        assert document["metric"]["baseline"] is None and document["current"] is None

    project.put({"train.py": PROGRAM, "task.yaml": TASK})
    project.session()
    assert set(document) == set(project.status()), "scripts find the same keys"


def test_a_first_ctrl_c_is_answered_while_a_policy_thinks(project: Project) -> None:
    with project.daemon("start", "--foreground", "--tag", "t", "--policy", "command:sleep 600") as daemon:
        current = wait_until(lambda: project.proposing("t"))
        assert current["budget_s"] is None, "a proposal has no budget of time to be shown"
        daemon.send_signal(signal.SIGINT)
        wait_until(lambda: "ask again" in (project.root / ".autoresearchd/daemon.log").read_text())
        wait_until(lambda: "stopping after experiment 1" in project.cli("status").stdout)
        daemon.send_signal(signal.SIGINT)
        assert daemon.wait() == 130


# ---------------------------------------------------------------------- going on
def test_a_session_at_its_limit_says_how_it_goes_on_and_does(project: Project) -> None:
    assert "self-reported" in project.session().stderr, "who trusts the score should know who measured it"
    for arguments in ((), ("--foreground",)):
        assert "resume t --max-experiments 2" in project.done("resume", *arguments).stderr, (
            "a resume that does nothing must not look like one"
        )
    assert "resume t --max-experiments 2" in project.cli("status").stdout
    project.done("resume", "t", "--max-experiments", "3", "--foreground")
    assert [e["experiment"] for e in project.experiments()] == [0, 1, 2, 3]
    refused = project.cli("resume", "--max-experiments", "1", "--foreground")
    assert "at its limit, so nothing was started" in refused.stderr, "under this one nothing can be done"
    assert "resume t --max-experiments 6" in project.cli("resume").stderr, "the new limit is remembered"


def test_a_second_session_is_warned_that_the_machine_is_shared(project: Project) -> None:
    with project.daemon("start", "--foreground", "--tag", "one", "--policy", "command:sleep 600") as daemon:
        wait_until(lambda: project.proposing("one"))
        said = project.session("random", 0, "--dir", project.root.name, tag="two", cwd=project.root.parent).stderr
        assert "share this machine" in said
        assert f"cd {project.root.name}" in said, "the other commands are given there"
        project.done("stop", "--now", "--session", "one")
        daemon.wait()
