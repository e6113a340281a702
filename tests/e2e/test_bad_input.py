"""Bad input gets a clear error and its exit code, and nothing of the user's is changed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest

from tests.e2e.conftest import PROGRAM, TASK, Project


def refused(project: Project, code: int, *words: str, arguments: tuple[str, ...] = (), **more: object) -> str:
    """``start`` ends with the code, says the words, prints no traceback and changes nothing."""
    before = project.snapshot() if (project.root / ".git/HEAD").exists() else None
    done = project.cli("start", "--foreground", "--policy", "random", "--max-experiments", "1", *arguments, **more)
    assert done.returncode == code, done.stderr + done.stdout
    for word in words:
        assert word in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    if before is not None:
        assert project.snapshot() == before
    return done.stderr


def test_no_git(project: Project) -> None:
    refused(project, 5, "git", env={"PATH": "/nonexistent"})


def test_not_a_repository(empty: Project) -> None:
    empty.write("train.py", PROGRAM)
    empty.write("task.yaml", TASK)
    refused(empty, 2, "git init")


def test_modified_tracked_files(project: Project) -> None:
    project.write("train.py", PROGRAM + "# mine\n")
    refused(project, 2, "train.py", "commit")


def test_a_program_without_anything_to_tune(project: Project) -> None:
    project.write("train.py", "print('METRIC loss=1.0')\n")
    project.commit("no constants")
    refused(project, 2, "nothing to tune", "--policy command:CMD")
    assert not (project.root / ".autoresearchd").exists()


def test_a_bare_repository(project: Project) -> None:
    bare = project.root.parent / "bare.git"
    subprocess.run(["git", "clone", "-q", "--bare", str(project.root), str(bare)], check=True)
    done = project.cli("start", "--foreground", "--policy", "random", cwd=bare)
    assert done.returncode == 2
    assert "bare" in done.stderr


def test_a_branch_of_that_name(project: Project) -> None:
    project.git("branch", "autoresearch/t")
    refused(project, 2, "autoresearch/t", arguments=("--tag", "t"))


def test_no_commits_yet(empty: Project) -> None:
    empty.git("init", "-q", "-b", "main")
    empty.write("train.py", PROGRAM)
    empty.write("task.yaml", TASK)
    done = empty.cli("start", "--foreground", "--policy", "random")
    assert done.returncode == 2
    assert "commit" in done.stderr


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("budget: 20", "budgte: 20", ("task.yaml:3", "budgte", "budget")),
        ("budget: 20", "budget: soon", ("task.yaml:3", "execution.budget")),
        ("direction: minimize", "direction: down", ("task.yaml:4", "direction", "maximize")),
        ("metric: score, ", "", ("task.yaml:4", "metric")),
        ("name: toy\n", "name: toy\nfoo: 1\n", ("task.yaml:2", "foo")),
        ("scoring:", "scoring: [", ("task.yaml",)),
    ],
)
def test_a_wrong_key_is_named_with_its_line(project: Project, old: str, new: str, words: tuple[str, ...]) -> None:
    project.write("task.yaml", TASK.replace(old, new))
    project.commit()
    refused(project, 2, *words)


def missing(project: Project) -> None:
    (project.root / "train.py").unlink()


def binary(project: Project) -> None:
    (project.root / "train.py").write_bytes(b"\0\xff\xfe" * 100)


def symlink(project: Project) -> None:
    missing(project)
    (project.root / "train.py").symlink_to("task.yaml")


def outside(project: Project) -> None:
    project.write("task.yaml", TASK.replace("train.py}", "../train.py}"))


@pytest.mark.parametrize("spoil", [missing, binary, symlink, outside])
def test_a_target_file_that_cannot_be_edited(project: Project, spoil: Callable[[Project], None]) -> None:
    spoil(project)
    project.commit()
    refused(project, 2, "train.py")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise ValueError('broken here')\n", ("broken here",)),
        ("print('hello')\n", ("score",)),
        ("print('score: nan')\n", ("score",)),
        ("print('score: inf')\n", ("score",)),
        ("print('score: 1.0')\nraise SystemExit(1)\n", ("exit",)),
    ],
)
def test_a_baseline_that_gives_no_metric(project: Project, program: str, words: tuple[str, ...]) -> None:
    project.write("train.py", f"RATE = 0.1\n{program}")
    project.commit()
    refused(project, 3, *words)


def test_a_baseline_that_gives_no_metric_is_told_by_a_start_in_the_background_too(project: Project) -> None:
    project.write("train.py", "RATE = 0.1\nraise ValueError('broken here')\n")
    project.commit()
    done = project.cli("start", "--tag", "t", "--policy", "random")
    assert done.returncode == 3, done.stderr
    assert "broken here" in done.stderr


def test_an_interpreter_that_does_not_run_is_what_the_machine_lacks_and_leaves_no_session(project: Project) -> None:
    broken = project.root.parent / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    project.write("task.yaml", TASK.replace("budget: 20", f"python: {broken}, budget: 20"))
    project.commit()
    refused(project, 5, f"interpreter {broken} does not run")
    assert project.cli("status").returncode != 0
    assert "autoresearch/" not in project.git("branch", "--all")


def test_a_baseline_that_never_ends(project: Project) -> None:
    project.write("train.py", "import time\nRATE = 0.1\nprint('score: 1', flush=True)\nwhile True: time.sleep(1)\n")
    project.write("task.yaml", TASK.replace("budget: 20, startup_grace: 5", "budget: 0.5, startup_grace: 0.2"))
    project.commit()
    refused(project, 3)


def test_unknown_names(project: Project) -> None:
    refused(project, 2, "nonsense", arguments=("--task", "nonsense"))
    refused(project, 2, "serach", arguments=("--policy", "serach"))
    refused(project, 2, "elsewhere", arguments=("--executor", "elsewhere"))
    refused(project, 2, arguments=("--budget", "soon"))
    refused(project, 2, arguments=("--tag", "-x/../y"))


def test_a_log_that_is_not_text_is_read_all_the_same(project: Project) -> None:
    project.write(
        "train.py", "import sys\nX = 1.0\nsys.stdout.buffer.write(b'\\xff\\xfe\\x00' * 1000 + b'\\nscore: 1.5\\n')\n"
    )
    project.commit()
    done = project.cli("start", "--foreground", "--policy", "random", "--max-experiments", "1")
    assert done.returncode == 0, done.stderr
    assert project.json("experiments", "--json")[0]["metric"] == 1.5


@pytest.mark.nightly  # a gigabyte is written, through the executor, in tests/integration/test_environment_output.py
def test_a_huge_log_is_capped_on_disk_and_the_metric_at_its_end_is_found(project: Project) -> None:
    project.write("train.py", "X = 1.0\nline = 'x' * 999\nfor i in range(100_000): print(line)\nprint('score: 1.5')\n")
    project.commit()
    done = project.cli("start", "--foreground", "--tag", "t", "--policy", "random", "--max-experiments", "0")
    assert done.returncode == 0, done.stderr
    assert project.json("experiments", "--json")[0]["metric"] == 1.5
    size = sum(p.stat().st_size for p in (project.root / ".autoresearchd/runs/t/0/0").rglob("*") if p.is_file())
    assert size < 40e6


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_makes_the_daemon_wait_and_say_so(project: Project) -> None:
    small = project.root.parent / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        subprocess.run(["cp", "-r", f"{project.root}/.", str(small)], check=True)
        daemon = Project(small, project.environment)
        process = daemon.start_process("start", "--foreground", "--tag", "t", "--policy", "random")
        line = next(line for line in process.stdout or () if "free" in line or "disk" in line)
        assert "MB" in line
        assert daemon.json("status", "--json")["session"]["state"] == "backing_off"
        process.terminate()
        process.communicate(timeout=30)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
