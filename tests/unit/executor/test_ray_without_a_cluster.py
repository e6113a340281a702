"""What ``--executor ray:…`` means, what a cluster gives for it, and files on their way, without a cluster."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.app.compose import executor_spec, make_executor
from autoresearchd.domain.errors import AutoresearchdError, EnvironmentFailure, MissingCapability, UsageError
from autoresearchd.executor.ray.bridge import Bridge
from autoresearchd.executor.ray.carrier import Carrier
from autoresearchd.executor.ray.wanted import Wanted, share
from autoresearchd.executor.ray.way import RayWay, _batches
from autoresearchd.executor.remote.hosts import Times
from autoresearchd.executor.remote.link import HostLost, Like
from autoresearchd.executor.remote.trees import Trees
from tests.contract.executor_contract import make_task


@pytest.mark.parametrize(
    "text",
    ["", "auto", "local", "10.0.0.5:6379", "ray://head:10001", "[::1]:6379", "auto?gpu=A100&gpus=2&dir=~/here&slots=3"],
)
def test_what_was_asked_for_is_remembered(text: str) -> None:
    assert str(Wanted.read(text)) == text
    spec = executor_spec(f"ray:{text}".rstrip(":"), None)
    assert executor_spec(spec, None) == spec
    make_executor(spec, make_task())  # reaches nothing yet
    assert Wanted.read(executor_spec(spec, "none", 7).removeprefix("ray:")).slots == 7


@pytest.mark.parametrize(
    "text", ["head", "http://head:1", "auto?gpus=0", "auto?gpus=x", "auto?x=1", "auto?gpu=", "a b:1"]
)
def test_what_cannot_be_meant_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="for instance") as caught:
        executor_spec(f"ray:{text}", None)
    assert text in caught.value.what


GPU_NODE = {"CPU": 16.0, "GPU": 4.0, "accelerator_type:A100": 1.0}


@pytest.mark.parametrize(
    ("text", "nodes", "slots", "options"),
    [
        ("", [GPU_NODE, {"CPU": 8.0}], 4, {"num_gpus": 1, "num_cpus": 0}),
        ("?gpus=2&cpus=6", [GPU_NODE, GPU_NODE], 4, {"num_gpus": 2, "num_cpus": 6}),
        ("?cpus=16", [GPU_NODE, GPU_NODE], 2, {"num_gpus": 1, "num_cpus": 16}),
        ("?gpu=A100", [GPU_NODE, {"GPU": 2.0}], 4, {"num_gpus": 1, "num_cpus": 0, "accelerator_type": "A100"}),
        ("?gpu=H100", [GPU_NODE], 0, {"num_gpus": 1, "num_cpus": 0, "accelerator_type": "H100"}),
        ("?gpu=H100&slots=8", [], 8, {"num_gpus": 1, "num_cpus": 0, "accelerator_type": "H100"}),
        ("", [{"CPU": 8.0}, {"CPU": 8.0}, {"memory": 1.0}], 2, {"num_gpus": 0, "num_cpus": 8}),
        ("?slots=5", [{"CPU": 8.0}, {"CPU": 8.0}], 5, {"num_gpus": 0, "num_cpus": 2}),
        ("?cpus=3", [{"CPU": 8.0}, {"CPU": 8.0}], 4, {"num_gpus": 0, "num_cpus": 3}),
        ("", [], 0, {"num_gpus": 0, "num_cpus": 1}),
    ],
)
def test_slots_are_what_the_cluster_has(
    text: str, nodes: list[Mapping[str, float]], slots: int, options: dict[str, Any]
) -> None:
    """Else GPUs idle, or runs share what each was measured alone on."""
    found = share(Wanted.read(text), nodes)
    assert (found.slots, found.options) == (slots, options)


# -- files -------------------------------------------------------------------------------------------------------------
class Here:
    """An actor that is in this process."""

    def __init__(self) -> None:
        self.carrier, self.sent = Carrier(), 0

    async def call(self, do: str, data: bytes = b"", **arguments: Any) -> tuple[Any, bytes]:
        self.sent += len(data)
        text, data = self.carrier.call(do, json.dumps(arguments), data)
        answer = json.loads(text)
        if "errno" in answer:
            raise OSError(answer["errno"], answer["what"])
        return answer["value"], data


class Way(RayWay):
    """One that has its actor."""

    def __init__(self) -> None:
        super().__init__(Bridge("", Times()), asyncio.get_running_loop(), "ray-1", "1 CPU", {}, gpus=False)
        self.here = Here()

    @property
    def _placed_actor(self) -> Any:
        return self.here


def test_what_a_job_has_put_out_of_reach_is_missed_and_the_rest_comes(tmp_path: Path) -> None:
    """Else one such edit is taken for a node that fails, and is run again for ever."""
    (tmp_path / "there/output").mkdir(parents=True)
    (tmp_path / "there/output/kept").write_text("x")
    top = folder = os.open(tmp_path / "there/output", os.O_PATH)
    for _ in range(30):  # as deep as no path leads
        os.mkdir("d" * 200, dir_fd=folder)
        inner = os.open("d" * 200, os.O_PATH, dir_fd=folder)
        os.close(folder) if folder != top else None
        folder = inner
    os.close(folder), os.close(top)
    (tmp_path / "here").mkdir()
    asyncio.run(_fetch(tmp_path / "there", tmp_path / "here"))
    assert (tmp_path / "here/output/kept").read_text() == "x"


def test_a_tree_arrives_as_it_is_and_only_what_differs_is_sent(tmp_path: Path) -> None:
    """Else runs are of another program, or each of them sends the whole repository."""
    pristine, workspace, there, at = (tmp_path / name for name in ("pristine", "workspace", "there", "at"))
    for top in (pristine, workspace):
        (top / "inner").mkdir(parents=True)
        (top / "inner" / "large").write_bytes(bytes(range(256)) * 40_000)  # more than one call takes
        (top / "run.sh").write_text("x")
        (top / "run.sh").chmod(0o755)
        (top / "empty").touch()
        (top / "link").symlink_to("inner/large")
        (top / "ünïcode \udcff").write_text("name")
    (workspace / "run.sh").write_text("edited")
    there.mkdir()
    at.mkdir()
    trees = Trees()

    async def send() -> tuple[int, int]:
        way, other = Way(), Way()
        await way.send(pristine, trees.read(pristine), str(there))
        await other.send(
            workspace, trees.read(workspace), str(at), like=Like(trees.read(pristine), pristine, str(there))
        )
        return way.here.sent, other.here.sent

    whole, part = asyncio.run(send())
    assert Trees().read(there) == trees.read(pristine)
    assert Trees().read(at) == trees.read(workspace)
    assert (whole > 10_000_000, part) == (True, len("edited"))


def test_what_comes_back_is_files_links_inside_and_nothing_else(tmp_path: Path) -> None:
    """Else a program that was run writes into the daemon's files, or has them read."""
    run, target = tmp_path / "run", tmp_path / "target"
    (run / "output" / "empty").mkdir(parents=True)
    target.mkdir()
    (run / "training.log").write_text("log\n")
    (run / "training.log.1").write_text("older\n")
    (run / "result.json").write_text("{}")
    (run / "other.log").write_text("x")
    output = run / "output"
    (output / "model").write_bytes(os.urandom(5_000_000))
    (output / "tool").write_text("#!")
    (output / "tool").chmod(0o4777)
    os.mkfifo(output / "pipe")
    for name, leads in {"out": "/etc", "up": "../..", "in": "model", "chain": "out/passwd"}.items():
        (output / name).symlink_to(leads)
    (target / "training.log").write_text("partly and longer than it is\n")
    asyncio.run(_fetch(run, target))
    found = {str(path.relative_to(target)) for path in target.rglob("*")}
    kept = {"output/empty", "output/model", "output/tool", "output/in"}
    assert found == {"training.log", "training.log.1", "output", *kept}
    assert (target / "training.log").read_text() == "log\n"
    assert (target / "output" / "in").read_bytes() == (output / "model").read_bytes()
    assert (target / "output" / "tool").stat().st_mode & 0o7777 == 0o755


async def _fetch(run: Path, target: Path) -> None:
    await Way().fetch(str(run), target, output=True)


def test_a_log_that_is_a_link_here_is_not_written_through(tmp_path: Path) -> None:
    run, target = tmp_path / "run", tmp_path / "target"
    for folder in (run, target):
        folder.mkdir()
    (run / "training.log").write_text("x")
    (target / "training.log").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic"):
        asyncio.run(_fetch(run, target))
    assert not (tmp_path / "other").exists()


def test_no_call_takes_more_than_a_beat_can_wait_for() -> None:
    files = [("output/a", 0o644, 10 << 20), *((f"output/{n}", 0o644, 0) for n in range(2500))]
    parts = list(_batches(files))
    assert max(sum(length for *_, length in batch) for batch in parts) <= 4 << 20
    assert max(map(len, parts)) <= 1000
    assert sum(length for batch in parts for *_, length in batch) == 10 << 20
    assert {name for batch in parts for name, *_ in batch} == {name for name, *_ in files}


# -- a Ray that is not there ---------------------------------------------------------------------------------------
def told(package: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **times: float) -> AutoresearchdError:
    """What a user reads where the package ray is this."""
    (folder / "ray").mkdir()
    (folder / "ray" / "__init__.py").write_text(package)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    async def ask() -> None:
        bridge = Bridge("auto", Times(**times))
        try:
            await bridge.ask("nodes")
        finally:
            await bridge.close()

    with pytest.raises((MissingCapability, EnvironmentFailure)) as caught:
        asyncio.run(ask())
    return caught.value


def test_a_ray_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = told("raise ImportError('No module named ray')", tmp_path, monkeypatch, connect=120.0)
    assert isinstance(error, MissingCapability)
    assert "needs the package ray" in error.what
    assert "autoresearchd[ray]" in error.hint


def test_a_ray_that_ends_its_process_does_not_end_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does where it loses the cluster."""
    error = told("import os, sys; print('boom', file=sys.stderr); os.abort()", tmp_path, monkeypatch, connect=120.0)
    assert isinstance(error, HostLost)
    assert "boom" in error.what


def test_a_cluster_that_says_nothing_is_waited_for_no_longer_than_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = told("import time; time.sleep(600)", tmp_path, monkeypatch, connect=1.0)
    assert "the Ray cluster at auto does not answer within 1 s" in error.what
    assert "ray://HOST:10001" in error.hint
