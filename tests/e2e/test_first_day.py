"""The first day with it: what a newcomer runs into, and whether each message says what to do next."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import PROGRAM, TASK, Project, wait_until

READS_DATA = "RATE = 0.1\nprint('score:', float(open('data/d.csv').read()))\n"
IGNORED = "data/\n"
OVERRUNS_LATER = """\
import os, time
RATE = 0.1
output = os.environ["AUTORESEARCHD_OUTPUT_DIR"]
if os.path.basename(os.path.dirname(output)) != "0":
    time.sleep(60)
print("score: 1.5")
"""


def with_ignored_data(project: Project, task: str = TASK) -> None:
    project.write("train.py", READS_DATA)
    project.write("task.yaml", task)
    project.write(".gitignore", IGNORED)
    project.commit()
    project.write("data/d.csv", "1.5\n")


def start(project: Project, *more: str, policy: str = "random", experiments: int = 1) -> tuple[int, str]:
    done = project.cli(
        "start", "--foreground", "--tag", "t", "--policy", policy, "--max-experiments", str(experiments), *more
    )
    return done.returncode, done.stderr


# ---------------------------------------------------------------------- what is checked is what is run
def test_a_check_fails_where_the_start_would_and_names_the_key_that_mends_it(project: Project) -> None:
    with_ignored_data(project)
    checked = project.cli("task", "check", ".", "--run")
    code, said = start(project)
    assert (checked.returncode, code) == (3, 3)
    for words in (checked.stderr, said):
        assert "workspace.data: [data/d.csv]" in words, words


def test_named_data_is_there_in_the_check_and_in_the_session(project: Project) -> None:
    with_ignored_data(project, TASK.replace("{target_file: train.py}", "{target_file: train.py, data: [data/d.csv]}"))
    checked = project.cli("task", "check", ".", "--run")
    assert checked.returncode == 0, checked.stderr
    assert "score 1.5" in checked.stdout
    assert checked.stderr.startswith("running the baseline of toy once: up to 45 s\n"), "nobody waits in doubt"


def test_a_result_file_that_nobody_writes_is_told_by_the_check(project: Project) -> None:
    for written in (False, True):
        writes = "import os\nopen(os.environ['AUTORESEARCHD_OUTPUT_DIR'] + '/r.json', 'w').write('{}')\n"
        project.write("train.py", PROGRAM + writes * written)
        project.write("task.yaml", TASK.replace("scoring: {", "scoring: {result_file: r.json, "))
        project.commit()
        checked = project.cli("task", "check", ".", "--run")
        assert checked.returncode == 0, checked.stderr
        assert ("scoring.result_file: a run wrote no r.json" in checked.stderr) is not written


def test_an_evaluation_that_fails_is_not_blamed_on_the_program(project: Project) -> None:
    project.write("task.yaml", TASK + "evaluation: {command: python evalute.py}\n")
    project.commit()
    checked = project.cli("task", "check", ".", "--run")
    code, said = start(project)
    assert (checked.returncode, code) == (3, 3)
    for words in (checked.stderr, said):
        assert "fix the evaluation, `python evalute.py`" in words and "runs by itself" not in words, words
    assert "can't open file" in checked.stderr, "the end of its own log"
    assert "0/0/evaluation.log" in said and "training.log" not in said


def test_a_limit_under_which_nothing_can_be_done_is_not_remembered(project: Project) -> None:
    assert start(project, experiments=2)[0] == 0
    refused = project.cli("resume", "--max-experiments", "1", "--foreground")
    assert "at its limit, so nothing was started" in refused.stderr
    assert "2 experiments done, as asked" in project.cli("resume", "--foreground").stderr


def test_the_check_runs_the_commit_and_says_what_is_not_in_it(project: Project) -> None:
    project.write("train.py", "raise SystemExit('not committed')\n")
    project.write("helper.py", "")
    checked = project.cli("task", "check", ".", "--run")
    assert checked.returncode == 0, checked.stderr
    assert "helper.py" in checked.stderr and "train.py" in checked.stderr
    assert "commit" in checked.stderr


def test_outside_git_the_check_says_that_a_start_needs_a_repository(empty: Project) -> None:
    empty.write("train.py", PROGRAM)
    empty.write("task.yaml", TASK)
    checked, started = empty.cli("task", "check", ".", "--run"), empty.cli("start", "--foreground")
    assert (checked.returncode, started.returncode) == (2, 2)
    for words in (checked.stderr, started.stderr):
        assert "git init" in words
    plain = empty.cli("task", "check", ".")
    assert plain.returncode == 0
    assert "git init" in plain.stderr


def test_a_program_that_writes_beside_itself_is_told_where_to_write(project: Project) -> None:
    project.write("train.py", "RATE = 0.1\nopen('model.pt', 'w').write('x')\nprint('score: 1')\n")
    project.commit()
    code, said = start(project)
    assert code == 3
    assert "AUTORESEARCHD_OUTPUT_DIR" in said


def test_after_a_broken_baseline_its_log_can_still_be_found(project: Project) -> None:
    project.write("train.py", "RATE = 0.1\nraise RuntimeError('no luck')\n")
    project.commit()
    assert start(project)[0] == 3
    for command in (("show", "0"), ("resume",), ("experiments",)):
        done = project.cli(*command)
        assert done.returncode == 2, done.stdout
        assert "autoresearchd logs" in done.stderr, command
        assert ".autoresearchd/runs/t" in done.stderr, command


def test_a_baseline_that_fails_once_start_has_returned_is_told_by_status_until_another_begins(project: Project) -> None:
    project.write("train.py", OVERRUNS_LATER)
    project.write("task.yaml", TASK.replace("budget: 20, startup_grace: 5", "budget: 1, startup_grace: 1"))
    project.commit()
    done = project.cli("start", "--tag", "t", "--policy", "random", "--max-experiments", "1")
    assert done.returncode == 0, done.stderr
    assert "first of 3 baseline runs" in done.stderr
    watched = project.cli("status", "--watch")
    told = project.cli("status")
    assert (watched.returncode, told.returncode) == (3, 3), "who polls must not take it for a session that runs"
    for out in (watched.stdout, told.stdout):
        assert "ended before its first result" in out
        assert "budget_overrun" in out and "startup_grace" in out, "why, and how to mend it"
        assert ".autoresearchd/runs/t" in out
    for more in ((), ("--session", "t")):
        done = project.cli("status", "--json", *more)
        document = json.loads(done.stdout)
        assert done.returncode == 3
        assert document["session"]["state"] == "crashed"
        assert "budget_overrun" in document["session"]["reason"]
        assert document["metric"]["baseline"] is None and document["current"] is None

    project.write("train.py", PROGRAM)
    project.commit()
    assert start(project)[0] == 0
    assert set(document) == set(project.json("status", "--json")), "scripts find the same keys"


# ---------------------------------------------------------------------- a policy of one's own
def test_a_policy_that_always_fails_ends_with_an_error_and_says_why(project: Project) -> None:
    code, said = start(project, policy="command:echo no key >&2; exit 3", experiments=3)
    assert code == 1, said
    assert "exit code 3" in said
    table = project.cli("experiments").stdout
    assert table.count("exit code 3") == 3
    assert project.json("status", "--json")["session"]["state"] == "stopped"


def test_a_script_that_is_not_committed_is_refused_before_anything_is_tried(project: Project) -> None:
    project.write("propose.sh", "#!/bin/sh\nsed -i 's/^SCALE = .*/SCALE = 2.0/' train.py\n")
    (project.root / "propose.sh").chmod(0o755)
    for command in ("command:./propose.sh", "command:sh propose.sh"):
        code, said = start(project, policy=command)
        assert code == 2
        assert "git add -- propose.sh" in said
        assert str(project.root / "propose.sh") in said
    project.commit()
    code, said = start(project, policy="command:./propose.sh")
    assert code == 0, said
    assert project.json("experiments", "--json")[1]["status"] == "keep"


def test_a_first_ctrl_c_is_answered_while_a_policy_thinks(project: Project) -> None:
    daemon = project.start_process("start", "--foreground", "--tag", "t", "--policy", "command:sleep 60")
    current = wait_until(lambda: (project.root / ".autoresearchd/runs/t/0/2").exists() and proposing(project))
    assert current["budget_s"] is None, "a proposal has no budget of time to be shown"
    started = time.monotonic()
    daemon.send_signal(signal.SIGINT)
    wait_until(lambda: "ask again" in (project.root / ".autoresearchd/daemon.log").read_text())
    wait_until(lambda: "stopping after experiment 1" in project.cli("status").stdout)
    daemon.send_signal(signal.SIGINT)
    daemon.communicate(timeout=30)
    assert daemon.returncode == 130
    assert time.monotonic() - started < 40


def proposing(project: Project) -> dict[str, Any] | None:
    current = project.json("status", "--json")["current"]
    return current if current and current["phase"] == "proposing" else None


# ---------------------------------------------------------------------- going on
def test_a_session_at_its_limit_says_how_it_goes_on_and_does(project: Project) -> None:
    code, said = start(project)
    assert code == 0
    assert "self-reported" in said, "who trusts the score should know who measured it"
    for arguments in ((), ("--foreground",)):
        done = project.cli("resume", *arguments)
        assert done.returncode == 0
        assert "resume t --max-experiments 2" in done.stderr, "a resume that does nothing must not look like one"
    assert "resume t --max-experiments 2" in project.cli("status").stdout
    done = project.cli("resume", "t", "--max-experiments", "3", "--foreground")
    assert done.returncode == 0, done.stderr
    assert [e["experiment"] for e in project.json("experiments", "--json")] == [0, 1, 2, 3]
    assert "resume t --max-experiments 6" in project.cli("resume").stderr, "the new limit is remembered"


def test_a_refused_resume_announces_no_daemon_and_leaves_the_session_stopped(project: Project) -> None:
    assert start(project)[0] == 0
    kept = project.git("rev-parse", "autoresearch/t")
    project.git("branch", "-f", "autoresearch/t", project.git("commit-tree", "-m", "mine", "HEAD^{tree}"))
    done = project.cli("resume", "--max-experiments", "9")
    assert done.returncode == 2, done.stderr
    assert "the daemon is process" not in done.stderr
    assert project.json("status", "--json")["session"]["state"] == "stopped"
    project.git("branch", "-f", "autoresearch/t", kept)


def test_a_second_session_is_warned_that_the_machine_is_shared(project: Project) -> None:
    daemon = project.start_process("start", "--foreground", "--tag", "one", "--policy", "command:sleep 60")
    wait_until(lambda: (project.root / ".autoresearchd/runs/one/0/2").exists())
    done = project.cli(
        "start", "--foreground", "--tag", "two", "--policy", "random", "--max-experiments", "0",
        "--dir", project.root.name, cwd=project.root.parent, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "share this machine" in done.stderr
    assert f"cd {project.root.name}" in done.stderr, "the other commands are given there"
    project.cli("stop", "--now", "--session", "one")
    daemon.communicate(timeout=30)


@pytest.mark.parametrize("command", [("start",), ("start", "--foreground")])
def test_a_folder_that_does_not_exist_is_called_so(project: Project, command: tuple[str, ...], tmp_path: Path) -> None:
    done = project.cli(*command, "--dir", str(tmp_path / "nowhere"))
    assert done.returncode == 2
    assert "does not exist" in done.stderr


def test_logs_and_results_that_were_thrown_away_stop_no_resume(project: Project) -> None:
    begun = project.cli("start", "--foreground", "--tag", "t", "--policy", "random", "--max-experiments", "1")
    assert begun.returncode == 0, begun.stderr
    shutil.rmtree(project.root / ".autoresearchd")
    done = project.cli("resume", "t", "--max-experiments", "2")
    assert done.returncode == 0, done.stderr
    project.cli("stop", "--now")
