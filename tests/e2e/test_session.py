"""A whole session through the command line: what a user starts, watches, stops, resumes and takes home."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from autoresearchd.app.compose import laboratory
from autoresearchd.app.project import Project as AppProject
from autoresearchd.executor.local import LocalExecutor
from tests.e2e.conftest import PROGRAM, TASK, Project
from tests.timing import wait_until

SLOW = PROGRAM.replace("print(f", "import time\ntime.sleep(600)\nprint(f")


def write_slow(project: Project) -> None:
    """A program that is still at work whenever a busy machine gets round to asking."""
    project.put({"train.py": SLOW, "task.yaml": TASK.replace("budget: 20", "budget: 900")})


def test_a_session_improves_the_program_on_its_own_branch_and_leaves_the_checkout_alone(project: Project) -> None:
    before = project.snapshot()
    project.session("search", 12)
    after = project.snapshot()
    assert {**before, "branches": after["branches"]} == after
    experiments = project.json("experiments", "--json")
    assert [e["experiment"] for e in experiments] == list(range(13))
    assert experiments[0]["status"] == "keep"
    assert len(experiments[0]["runs"]) == 3
    assert len({run["seed"] for run in experiments[0]["runs"]}) == 3

    proven = [e["commit"] for e in experiments[1:] if e["confirmed"]]
    assert proven, "twelve experiments on a bowl find an improvement, and it is confirmed at the end"
    on_branch = project.git("rev-list", "--reverse", "main..autoresearch/t").split()
    assert on_branch == proven, "the branch holds the confirmed commits, in order, and nothing else"
    for e in experiments:
        if e["commit"]:
            assert project.git("rev-parse", f"refs/autoresearch/t/{e['experiment']}") == e["commit"]
    message = project.git("log", "-1", "--format=%B", "autoresearch/t")
    assert "Experiment:" in message and "Metric: score=" in message

    status = project.json("status", "--json")
    assert status["session"]["state"] == "stopped"
    assert status["session"]["experiments"] >= 12
    assert status["metric"]["source"] == "self-reported"
    metric = status["metric"]
    assert metric["best"] < metric["baseline"]
    assert (metric["best"], metric["best_experiment"]) == tuple(metric["confirmed"][n] for n in ("value", "experiment"))
    assert project.git("rev-parse", "refs/autoresearch/t/tip") == experiments[metric["tip"]["experiment"]]["commit"]
    shown = project.json("show", str(metric["best_experiment"]), "--json")
    assert [c["outcome"] for c in shown["confirmations"] if c["experiment"] == metric["best_experiment"]] == [
        "confirmed"
    ]
    assert status["current"] is None
    assert status["overhead"]["median_ms"] > 0


def test_a_session_can_be_made_again_by_its_seed(project: Project) -> None:
    """Else nobody can look into why a night went as it did."""
    edits = []
    for tag, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        project.session("random", 2, "--seed", seed, tag=tag)
        found = project.json("experiments", "--json", "--session", tag)
        edits.append([(e["description"], [run["seed"] for run in e["runs"][:1]]) for e in found])
    assert edits[0] == edits[1] != edits[2]


def test_after_kill_9_resume_goes_on_without_a_gap_a_double_or_an_orphan(project: Project) -> None:
    project.put({"train.py": SLOW.replace("sleep(600)", "sleep(0.3)")})
    with project.daemon("start", "--foreground", "--tag", "t", "--policy", "random"):
        wait_until(lambda: (project.root / ".autoresearchd/runs/t/2/0").exists())
    marker = str(project.root)
    wait_until(lambda: not processes_below(marker))
    assert project.status()["session"]["state"] == "crashed"

    shutil.rmtree(project.root / ".autoresearchd")  # logs and results that are thrown away stop no resume
    with project.daemon("resume", "--foreground") as again:
        wait_until(lambda: (project.root / ".autoresearchd/runs/t/5").exists())
        again.send_signal(signal.SIGTERM)
        assert again.wait() == 143
    found = project.experiments()
    assert [e["experiment"] for e in found] == list(range(len(found)))
    proven = [e["commit"] for e in found if e["confirmed"] and e["experiment"]]
    assert project.git("rev-list", "--reverse", "main..autoresearch/t").split() == proven
    assert all(e["status"] for e in found)
    assert not processes_below(marker)


def processes_below(folder: str) -> list[str]:
    """Command lines of live processes whose working folder lies below ``folder``, the daemon's own not counted."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                where = str((process / "cwd").readlink())
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if where.startswith(folder) and line:
                found.append(line)
    return found


def test_a_second_daemon_is_told_who_holds_the_session(project: Project) -> None:
    write_slow(project)
    with project.daemon("start", "--foreground", "--tag", "t", "--policy", "random") as daemon:
        wait_until(lambda: (project.root / ".autoresearchd/runs/t/0/0").exists())
        for command in (("start", "--policy", "random"), ("resume", "t"), ("start", "--tag", "t")):
            second = project.cli(*command)
            assert second.returncode == 75, second.stderr
            assert str(daemon.pid) in second.stderr
        project.done("stop", "--now")
        assert daemon.wait() == 0
    assert project.status()["session"]["state"] == "stopped"


def test_a_daemon_in_the_background_can_be_watched_paused_and_stopped(project: Project) -> None:
    project.done("start", "--tag", "t", "--policy", "random")
    wait_until(lambda: project.latest_run() >= 3)
    project.done("note", "look at SHIFT")
    project.done("pause")
    wait_until(lambda: project.status()["session"]["state"] == "paused")
    count = len(project.experiments())
    project.done("unpause")
    wait_until(lambda: project.latest_run() >= count)
    project.done("stop")
    wait_until(lambda: project.status()["session"]["state"] == "stopped")
    assert "t" in project.done("logs").stdout


def test_a_folder_shaped_like_karpathys_works_unmodified_and_is_marked_self_reported(empty: Project) -> None:
    train = (
        "import random\nfrom prepare import TIME_BUDGET\nMATRIX_LR = 0.04\nDEPTH = 8\n"
        "for i in range(20):\n"
        "    print(f'\\rstep {i:05d} ({5 * i:.1f}%) | loss: {9 - i / 10:.6f} | lrm: 1.00 | dt: 300ms "
        "| tok/sec: 1,700,000 | mfu: 39.8% | epoch: 1 | remaining: {300 - i}s    ', end='')\n"
        "print()\nprint('---')\n"
        "print(f'val_bpb:          {0.99 + abs(MATRIX_LR - 0.05) + random.gauss(0, 1e-4):.6f}')\n"
        "print('training_seconds: 300.1')\nprint('peak_vram_mb:     45060.2')\nprint(f'depth:            {DEPTH}')\n"
    )
    package = '[project]\nname = "autoresearch"\nversion = "0.1"\n'
    own = {"prepare.py": "TIME_BUDGET = 300\n", "program.md": "# autoresearch\n", "pyproject.toml": package}
    empty.begin({"train.py": train, **own}).session("search", 3)
    status = empty.status()
    assert status["metric"]["name"] == "val_bpb"
    assert status["metric"]["source"] == "self-reported"
    assert "self-reported" in empty.cli("status").stdout
    baseline = empty.experiments()[0]
    assert baseline["metrics"]["peak_vram_mb"] == pytest.approx(45060.2)
    assert empty.git("status", "--porcelain") == ""


def test_a_time_limit_before_the_first_result_is_exit_4_and_leaves_nothing(project: Project) -> None:
    write_slow(project)
    before = project.snapshot()
    done = project.cli("start", "--foreground", "--tag", "t", "--policy", "random", "--max-time", "2s")
    assert done.returncode == 4, done.stderr
    assert "--max-time" in done.stderr
    assert project.snapshot() == before


def test_runs_of_a_failed_session_are_gone_when_a_new_one_takes_its_tag(project: Project) -> None:
    project.put({"train.py": "RATE = 0.1\nraise SystemExit('broken')\n"})
    assert project.cli("start", "--foreground", "--tag", "t", "--policy", "random").returncode == 3
    runs = project.root / ".autoresearchd/runs/t"
    assert "broken" in (runs / "0/0/training.log").read_text(), "the log that says why stays"
    for command in (("show", "0"), ("resume",), ("experiments",)):
        done = project.cli(*command)
        assert done.returncode == 2, done.stdout
        assert "autoresearchd logs" in done.stderr and ".autoresearchd/runs" in done.stderr, command
    (runs / "0/2").mkdir()
    (runs / "7/0").mkdir(parents=True)
    project.put({"train.py": PROGRAM})
    project.session()
    assert sorted(p.name for p in runs.iterdir() if p.name.isdigit()) == ["0", "1"]
    assert "broken" not in "".join(p.read_text() for p in runs.rglob("*.log"))


def test_a_check_that_is_ended_leaves_no_folder_and_no_process(project: Project, tmp_path: Path) -> None:
    write_slow(project)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with project.daemon("task", "check", "--run", env={"TMPDIR": str(scratch)}) as check:
        wait_until(lambda: list(scratch.glob("autoresearchd-check-*/run-*/training.log")))
        check.send_signal(signal.SIGINT)
        assert check.wait() == 130
    assert not list(scratch.glob("autoresearchd-check-*"))
    wait_until(lambda: not processes_below(str(scratch)))


def test_a_task_in_a_subfolder_is_found_again_by_resume(empty: Project) -> None:
    empty.begin({"deep/er/train.py": PROGRAM, "deep/er/task.yaml": TASK, "other.txt": "mine\n"})
    folder = empty.root / "deep" / "er"
    empty.session(cwd=folder)
    empty.done("resume", "--foreground", cwd=folder)
    assert [e["experiment"] for e in empty.experiments()] == [0, 1]
    changed = empty.git("diff", "--name-only", "main", "refs/autoresearch/t/1")
    assert changed == "deep/er/train.py"


def test_what_a_policys_own_model_computes_on_a_gpu_is_no_stranger_to_a_run(project: Project) -> None:
    project.session("random", 0)
    place = AppProject.at(project.root)
    with closing(place.existing_store()) as store:
        session = place.pick(store, "t")
        for policy, shared in (("random", False), ("command:./policy", True)):
            lab = laboratory(place, replace(session, policy=policy), store, project.root, [])
            assert isinstance(lab.executor, LocalExecutor) and lab.executor.shared is shared
