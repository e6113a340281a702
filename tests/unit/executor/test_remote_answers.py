"""What both ends of a connection agree about, and what a host may say without harm."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autoresearchd.config.load_task import dump_task, parse_task, read_task_text
from autoresearchd.domain.task import RemoteSlot
from autoresearchd.executor.gpus import Devices, find_devices
from autoresearchd.executor.remote.executor import _checked, _Logs, folder_of
from autoresearchd.executor.remote.hosts import disagreement, own_code, setup_key
from autoresearchd.executor.remote.link import Hello, HostLost, Link, Way
from autoresearchd.executor.remote.remote_supervisor import BOOT, MAGIC, Remote, own_slot, pack
from autoresearchd.executor.remote.trees import Trees
from autoresearchd.sandbox import view
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
    some = Trees().read(tmp_path / "linked", "data", follow=True, without=[top / "inner"])
    assert some.names == ("data/a",), "the answers, too, that a link leads to"
    (top / "gone").symlink_to("nowhere")
    assert Trees().read(top, "data", follow=True) == plain, "what leads nowhere here is no fault of a run there"
    (top / "round").symlink_to(".")
    with pytest.raises(OSError, match="around it"):
        Trees().read(top, "data", follow=True)


def test_what_a_sandbox_puts_in_the_place_of_hidden_files_is_sent() -> None:
    """Else each run of a task that hides a file fails on every host."""
    with own_code() as (top, _):
        assert (top / "autoresearchd" / view._EMPTY.relative_to(Path(view.__file__).parents[1])).is_file()


def test_all_that_runs_over_there_needs_the_standard_library_alone() -> None:
    """Else a host would have to install what the daemon has."""
    with own_code() as (top, tree):
        assert "autoresearchd/executor/remote/remote_supervisor.py" in tree.names
        words = "import autoresearchd.executor.remote.remote_supervisor"
        code = f"import sys; sys.path.append({str(top)!r}); {words}"
        subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=60)


STRANGER = "print('a stranger was run')\ndef serve(top, told): pass\n"


OWN = ("for a group", "by a link", "in a shared one with the sticky bit")
NOT_OWN = ("for all", "another's", "another's code")
IN_ANOTHERS = ("in another's", "in one for a group", "linked into one for a group")


@pytest.mark.parametrize("change", [*OWN, *NOT_OWN, *IN_ANOTHERS])
def test_only_what_the_account_itself_has_made_is_run_over_there(change: str, tmp_path: Path) -> None:
    """Else whoever may write to ``remote_dir`` has a program run as its user, with all that is sent there."""
    top, told = tmp_path / ".autoresearchd", {"folder": str(tmp_path), "code": "f00", "magic": MAGIC.decode()}
    module = top / "code" / "f00" / "autoresearchd" / "executor" / "remote" / "remote_supervisor.py"
    module.parent.mkdir(parents=True)
    module.write_text(STRANGER)
    match change:
        case "for all":
            top.chmod(0o777)
        case "for a group":
            top.chmod(0o775)
        case "by a link":
            top.rename(tmp_path / "moved")
            top.symlink_to("moved")
        case "in a shared one with the sticky bit":
            tmp_path.chmod(0o1777)
        case "in one for a group":
            tmp_path.chmod(0o770)
        case "linked into one for a group":
            (tmp_path / "group").mkdir()
            (tmp_path / "group").chmod(0o770)
            top.rename(tmp_path / "group" / "moved")
            top.symlink_to("group/moved")
        case _ if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        case _:
            given = {"another's": top, "another's code": top / "code", "in another's": tmp_path}
            os.chown(given[change], 65534, 65534)
    words = [sys.executable, "-I", "-S", "-c", BOOT, "", base64.b64encode(json.dumps(told).encode()).decode()]
    done = subprocess.run(words, input=b"g", capture_output=True, timeout=60)
    fault = json.loads(done.stdout.removeprefix(MAGIC).splitlines()[0])["fault"]
    own = change in OWN
    assert (own, own) == (not fault, b"a stranger was run" in done.stdout), done
    assert ("chmod 700 or remove it" in fault) == (change in NOT_OWN)
    assert ("chmod go-w" in fault) == (change in IN_ANOTHERS)
    assert not own or top.stat().st_mode & 0o777 == 0o700


def test_a_host_cannot_write_beside_the_logs(tmp_path: Path) -> None:
    """Else a program that took its host over writes into the daemon's files."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "evaluation.log").symlink_to(tmp_path / "evaluation")
    logs = _Logs(run_dir)
    for name in (
        "../out.log",
        "/tmp/out.log",
        "result.json",
        "check-x.log",
        "check-100.log",
        "training.log\n",
        "evaluation.log",
    ):
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


class Says:
    """A `Channel` to a host that answers the first call with a frame of a test's."""

    def __init__(self, answer: bytes) -> None:
        self._answer, self._output, self._end = answer, asyncio.StreamReader(), asyncio.Event()
        hello = {"top": "", "part": "", "fault": "", "platform": "linux", "there": True, "rsync": True, "time": 0}
        self._output.feed_data(MAGIC + json.dumps(hello).encode() + b"\n")

    async def read_until(self, mark: bytes) -> bytes:
        return await self._output.readuntil(mark)

    async def read_exactly(self, count: int) -> bytes:
        return await self._output.readexactly(count)

    async def complaint(self) -> bytes:
        await self._end.wait()
        return b""

    def write(self, data: bytes) -> None:
        if b'"claim"' in data:
            self._output.feed_data(self._answer)

    async def ended(self) -> None:
        await self._end.wait()

    def abort(self) -> None:
        self._end.set()

    async def closed(self) -> None:
        pass


@pytest.mark.parametrize(
    "answer",
    [
        pack({"id": 1}),
        pack({"id": 1, "error": {"kind": "x", "what": 5}}),
        pack({"id": 1, "error": {"kind": [], "what": "x"}}),
        pack({"id": 1, "error": 5}),
        b"\0\1\x86\xa0\0\0\0\0" + b"[" * 100_000,
    ],
    ids=["no value", "words that are none", "a kind that is none", "an error that is none", "too deep"],
)
def test_a_host_whose_answer_makes_no_sense_is_lost(answer: bytes) -> None:
    """Else a call that may take as long as it needs waits for ever, and the daemon with it."""

    async def ask() -> None:
        channel = Says(answer)

        async def opened(told: Hello, patience: float) -> Says:
            return channel

        async def prepare(hello: Hello) -> None:
            pass

        way = cast(Way, SimpleNamespace(name="box", open=opened))
        link = await Link.open(way, {}, 600.0, 600.0, prepare)
        try:
            with pytest.raises(HostLost, match="box: it says what cannot be understood"):
                await asyncio.wait_for(link.call("claim", slot="one", timeout=None), 60)
        finally:
            await link.close()

    asyncio.run(ask())


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


OWN_SLOT = """
import contextlib, os, sys
from pathlib import Path
from autoresearchd.executor.remote.remote_supervisor import own_slot
mine = contextlib.ExitStack()
print(own_slot(Path(sys.argv[1]), int(sys.argv[2]), mine), *sorted(os.sched_getaffinity(0)), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be shared")
def test_runs_that_were_given_cores_keep_to_some_of_their_own(tmp_path: Path) -> None:
    """Else two of them share a core, and both look slow."""
    first, *others = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as ended:

        def take(count: int) -> tuple[list[str], str]:
            process = subprocess.Popen(
                [sys.executable, "-c", OWN_SLOT, str(tmp_path), str(count)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            ended.enter_context(process)
            ended.callback(process.kill)
            assert process.stdout is not None
            assert process.stderr is not None
            said = process.stdout.readline().split()
            return said, "" if said else process.stderr.read()

        assert take(1)[0] == [f"slot-core-{first}", str(first)]
        assert take(len(others))[0] == [f"slot-core-{others[0]}", *map(str, others)]
        said, why = take(1)
        assert not said
        assert "0 of its" in why


def test_a_slot_with_gpus_is_called_by_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1a/b,3")
    with contextlib.ExitStack() as mine:
        assert own_slot(tmp_path, 0, mine) == "slot-gpu-GPU-1a_b_3"


def test_the_gpu_of_a_slot_is_the_one_that_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a node with two kinds is compared by the wrong one."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho First\necho Second\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert find_devices() == Devices("Second", ("1",))


def test_eight_gpus_are_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look may take seconds, and runs that begin together wait for it."""
    asked = tmp_path / "asked"
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho x >> {asked}\nfor i in 1 2 3; do echo Card; done\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    remote = Remote(tmp_path, "none", lambda header, data: None)
    assert {str(remote._executor(gpu, 1).describe(None, None)["device"]) for gpu in "0120"} == {"cuda:Card"}
    assert asked.read_text() == "x\n"


def test_what_a_broken_transfer_has_brought_is_not_sent_again(tmp_path: Path) -> None:
    """Else 200 GB on a line that breaks each hour never arrive, and each try adds to the disk."""
    remote = Remote(tmp_path, "none", lambda header, data: None)
    first = remote.do_have(1, threading.Event(), "data", "f00")
    (Path(first["part"]) / "half").touch()
    other = tmp_path / "data" / "f00.part-1-1"  # of a process that is alive
    other.mkdir()
    again = remote.do_have(2, threading.Event(), "data", "f00")
    assert (Path(again["part"]) / "half").exists() and not Path(first["part"]).exists() and other.is_dir()


def test_slots_never_share_a_folder_whatever_they_are_called() -> None:
    names = ["a/b", "a b", "a_b", "ä", "ö", "gpu-0", "../x"]
    folders = [folder_of(name) for name in names]
    assert len(set(folders)) == len(names) and "slot-gpu-0" in folders, "plain names are kept"
    assert all("/" not in name and name.isascii() for name in folders)
