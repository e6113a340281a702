"""Where runs on other machines begin, without a machine."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autoresearchd.domain.errors import EnvironmentFailure, PlaceTaken
from autoresearchd.domain.ports import RunRequest
from autoresearchd.domain.task import RemoteSlot
from autoresearchd.executor.remote.executor import RemoteExecutor
from autoresearchd.executor.remote.hosts import Host, Prepared, Times
from autoresearchd.executor.remote.link import HostLost, Way
from autoresearchd.executor.remote.trees import Trees
from autoresearchd.executor.ssh.connection import Address
from autoresearchd.executor.ssh.way import SshWay
from autoresearchd.sandbox.process_tree import start_time
from autoresearchd.sandbox.tiers import AUTO
from tests.contract.executor_contract import make_request, make_task
from tests.timing import wait_until

AT_ONCE = Times(silence=0.01, cool=1000.0, coolest=1000.0)


class Box(Host):
    """One that data is sent to until a test says that it is there, and that is then lost."""

    def __init__(self, name: str) -> None:
        way = cast(Way, SimpleNamespace(name=name, ready=lambda: True))
        super().__init__(way, ["0"], "~", AUTO, AT_ONCE, Trees())
        self.sent, self.asked = threading.Event(), 0

    async def prepare(self, request: RunRequest) -> Prepared:
        self.asked += 1
        await self._long("data", self._send, "its data is being sent")
        raise HostLost(f"{self.name}: cannot be reached")

    async def _send(self) -> None:
        await asyncio.to_thread(self.sent.wait)


class Boxes(RemoteExecutor):
    kind, leave_out = "boxes", ""
    given: Any = ()

    def __init__(self, *boxes: Box) -> None:
        super().__init__(AUTO, AT_ONCE)
        self.boxes = {box.name: box for box in boxes}
        self.given = [RemoteSlot(name, "0", name, "~") for name in self.boxes]

    def _host(self, slots: Any) -> Host:
        return self.boxes[slots[0].host]


@pytest.fixture
def boxes() -> Iterator[Boxes]:
    with closing(Boxes(Box("one"), Box("two"))) as executor:
        yield executor
        for box in executor.boxes.values():
            box.sent.set()


STAGE = {"name": "training", "outcome": "ok", "exit_code": 0, "duration_s": 1.0, "detail": ""}
ANSWER = {"stages": [{**STAGE, "peak_rss_mb": 1, "cpu_s": 1}], "duration_s": 1, "tier": "none", "device": "cpu"}


class Breaks:
    """A connection, and a way over it that breaks some times before what a run has left is here."""

    def __init__(self, breaks: int) -> None:
        self.breaks, self.name, self.hello = breaks, "box", {"top": "/far"}
        self.way, self.left, self.asked = self, set[str](), list[str]()

    async def link(self) -> Breaks:
        return self

    async def guard(self, work: Coroutine[Any, Any, None]) -> None:
        await work

    async def call(self, do: str, **arguments: Any) -> None:
        self.asked.append(do)

    async def fetch(self, folder: str, target: Path, *, output: bool) -> None:
        self.breaks -= 1
        if self.breaks >= 0:
            raise HostLost("box: the transfer broke off")


def test_a_finished_run_is_not_lost_by_a_line_that_breaks_for_seconds(boxes: Boxes, tmp_path: Path) -> None:
    """It may have run for hours, and its result lies there."""
    for breaks in (2, 3):
        host: Any = Breaks(breaks)
        taken = boxes._take(host, host, tmp_path, "run", ANSWER)
        if breaks == 2:
            assert asyncio.run(taken).stages[-1].outcome == "ok" and host.asked == ["forget"]
        else:
            with pytest.raises(HostLost):
                asyncio.run(taken)


class Floods(Breaks):
    """One that sends more files than a run may write."""

    async def fetch(self, folder: str, target: Path, *, output: bool) -> None:
        (target / "output").mkdir()
        for number in range(25_000):
            (target / "output" / str(number)).touch()


def test_what_is_more_than_a_run_may_leave_does_not_stay(boxes: Boxes, tmp_path: Path) -> None:
    host: Any = Floods(0)
    result = asyncio.run(boxes._take(host, host, tmp_path, "run", ANSWER))
    assert result.stages[0].beyond and "20,000 files" in result.stages[0].detail
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_transfer_that_is_given_up_leaves_no_process_that_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rsync forks, and it is the child that writes."""
    (tmp_path / "rsync").write_text(
        f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/new\nmv {tmp_path}/new {tmp_path}/child\nwait\n"
    )
    (tmp_path / "rsync").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    async def give_up() -> None:
        fetch = asyncio.create_task(SshWay(Address("box"), None).fetch("/far", tmp_path, output=True))
        await asyncio.to_thread(wait_until, (tmp_path / "child").exists)
        fetch.cancel()
        await asyncio.wait({fetch})

    asyncio.run(give_up())
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: start_time(child) is None)


def test_a_host_that_is_sent_its_data_is_waited_for_and_has_not_failed(boxes: Boxes, tmp_path: Path) -> None:
    """Else it is left alone for minutes once it has all, and each look writes a run down that never began."""
    request = make_request(tmp_path, make_task())
    one, two = boxes.boxes.values()
    assert not boxes.prepares
    boxes.require(0)
    two.sent.set()
    with pytest.raises(PlaceTaken, match="one: its data is being sent"):
        boxes.start(request)
    assert boxes.prepares and not boxes.ready(0)
    with pytest.raises(PlaceTaken, match="one: its data is being sent"):
        boxes.require(1)  # the other one has failed, and is left alone
    one.sent.set()
    wait_until(lambda: boxes.ready(0))
    boxes.require(0)
    with pytest.raises(EnvironmentFailure, match="one: cannot be reached"):
        boxes.start(request)
    assert (one.asked, two.asked) == (2, 1)
