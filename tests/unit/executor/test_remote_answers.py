"""What both ends of a connection agree about, and what a host may say without harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.config.load_task import dump_task, parse_task, read_task_text
from autoresearchd.domain.task import RemoteSlot
from autoresearchd.executor.remote.executor import _checked, _Logs
from autoresearchd.executor.remote.hosts import disagreement, own_code, setup_key
from autoresearchd.executor.remote.trees import Trees
from tests.contract.executor_contract import make_task


def folder(at: Path) -> Path:
    (at / "inner").mkdir(parents=True)
    (at / "a").write_text("a\n")
    (at / "inner" / "b").write_text("b\n")
    (at / "link").symlink_to("inner/b")
    return at


def test_the_same_content_has_the_same_hash_wherever_it_lies(tmp_path: Path) -> None:
    """Else everything is sent again, or something old is used."""
    one, other = folder(tmp_path / "one"), folder(tmp_path / "other")
    tree = Trees().read(one)
    assert tree.names == ("a", "inner/b", "link")
    for ignored in ("__pycache__", ".git"):
        (other / ignored).mkdir()
        (other / ignored / "x").write_text("x")
    (other / "out").symlink_to(tmp_path / "one")
    (other / "up").symlink_to("../one")
    assert Trees().read(other) == tree


@pytest.mark.parametrize("change", ["content", "mode", "name", "link", "more"])
def test_each_change_is_seen_also_by_one_that_has_read_it_before(change: str, tmp_path: Path) -> None:
    """Else an experiment runs the program of the one before it."""
    top, trees = folder(tmp_path / "top"), Trees()
    before = trees.read(top)
    match change:
        case "content":
            facts = (top / "a").stat()
            (top / "a").write_text("z\n")
            os.utime(top / "a", ns=(facts.st_atime_ns, facts.st_mtime_ns))
        case "mode":
            (top / "a").chmod(0o755)
        case "name":
            (top / "a").rename(top / "c")
        case "link":
            (top / "link").unlink()
            (top / "link").symlink_to("a")
        case "more":
            (top / "c").touch()
    assert trees.read(top).hash != before.hash


def test_data_is_what_its_links_lead_to(tmp_path: Path) -> None:
    top = folder(tmp_path / "top")
    (tmp_path / "linked").symlink_to(top)
    plain = Trees().read(top, "data", follow=True)
    assert plain.names == ("data/a", "data/inner/b", "data/link")
    assert Trees().read(tmp_path / "linked", "data", follow=True) == plain
    (top / "round").symlink_to(".")
    with pytest.raises(OSError, match="around it"):
        Trees().read(top, "data", follow=True)


def test_all_that_runs_over_there_needs_the_standard_library_alone() -> None:
    """Else a host would have to install what the daemon has."""
    with own_code() as (top, tree):
        assert "autoresearchd/executor/remote/remote_supervisor.py" in tree.names
        words = "import autoresearchd.executor.remote.remote_supervisor"
        code = f"import sys; sys.path.append({str(top)!r}); {words}"
        subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=60)


def test_a_host_cannot_write_beside_the_logs(tmp_path: Path) -> None:
    """Else a program that took its host over writes into the daemon's files."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "evaluation.log").symlink_to(tmp_path / "evaluation")
    logs = _Logs(run_dir)
    for name in ("../out.log", "/tmp/out.log", "result.json", "check-x.log", "training.log\n", "evaluation.log"):
        logs.told(name, b"x", False)
    logs.told("training.log", b"1", False)
    logs.told("training.log", b"2", True)
    logs.close()
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "evaluation.log",
        "run",
        "training.log",
        "training.log.1",
    ]
    assert (run_dir / "training.log").read_text() == "2"


GOOD = {
    "name": "training",
    "outcome": "ok",
    "exit_code": 0,
    "duration_s": 1,
    "peak_rss_mb": 1,
    "cpu_s": 1,
    "detail": "",
}


@pytest.mark.parametrize(
    "wrong", [{"name": "../x"}, {"outcome": "won"}, {"exit_code": "x"}, {"duration_s": None}, {"detail": "a\x1b[2Jb"}]
)
def test_a_result_of_a_host_is_read_with_care(wrong: dict[str, Any], tmp_path: Path) -> None:
    answer = {"stages": [{**GOOD, **wrong}], "duration_s": 1, "tier": "bubblewrap", "device": "cpu"}
    if "detail" in wrong:
        assert "\x1b" not in _checked(answer, tmp_path, "box").stages[0].detail
    else:
        with pytest.raises((ValueError, TypeError)):
            _checked(answer, tmp_path, "box")


def test_hosts_that_differ_are_named_with_what_they_have() -> None:
    alike = {"device": "cuda:A100", "cpu": "x8", "python": "3.11.2"}
    assert disagreement({"one": alike, "two": dict(alike)}, "leave two out") is None
    error = disagreement({"one": alike, "two": {**alike, "python": "3.12.1"}}, "leave two out")
    assert error is not None
    assert "3.11.2 on one; 3.12.1 on two" in error.what


def test_the_fleet_of_a_task_is_kept_with_its_session() -> None:
    text = (
        "name: t\nworkspace: {target_file: train.py, remote_dir: ~/work}\nexecution: {run_command: python train.py}\n"
        "scoring: {metric: loss, direction: minimize}\n"
        "fleet: {slots: [{host: box, gpu_id: 1}, {host: me@other, name: b, remote_dir: /data}]}\n"
    )
    task = read_task_text(text)
    first, second = RemoteSlot("box", "1", "box-gpu1", "~/work"), RemoteSlot("me@other", "0", "b", "/data")
    assert task.remote_slots == (first, second)
    assert parse_task(dump_task(task)) == task
    old = json.loads(dump_task(task))
    del old["remote_slots"]
    assert parse_task(json.dumps(old)).remote_slots == ()


def test_set_up_is_done_again_for_what_it_depends_on(tmp_path: Path) -> None:
    tree = Trees().read(folder(tmp_path / "top"))
    keys = {
        setup_key(make_task(execution=more), tree)
        for more in ({}, {"setup_commands": ("a",)}, {"python": "python3.12"}, {"env": {"A": "1"}})
    }
    assert len(keys) == 4
