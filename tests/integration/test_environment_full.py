"""A disk that fills up in the middle of a session: nothing is lost, nobody is blamed, and it goes on with the space."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.ports import Event, EventKind
from autoresearchd.executor.gpus import Devices
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.loop.daemon import FileSink
from autoresearchd.loop.session import Backoff
from autoresearchd.loop.upkeep.housekeeping import LOW_DISK_BYTES
from tests.fakes.bench import Mortal
from tests.integration.bench import TASK, Bench
from tests.integration.disks import Disk, memory_disk

EXPERIMENTS = 2
STEPS = [
    "open_experiment", "propose", "record_proposal", "commit", "record_commit", "checkout", "open_run", "start",
    "close_run", "record_decision", "advance", "record_overhead",
]  # fmt: skip
GREEDY = """\
import os
import pathlib

SCALE = 1.0
if SCALE == 4.0:
    (pathlib.Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "checkpoint").write_bytes(bytes(24 << 20))
print(f"score: {(SCALE - 2.0) ** 2}")
"""
TALKATIVE = """\
SCALE = 1.0
if SCALE == 4.0:
    for step in range(200_000):
        print(f"step {step} and what else a program has to say while it trains")
print(f"score: {(SCALE - 2.0) ** 2}")
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with memory_disk(tmp_path / "disk") as found:
        yield found


@dataclass(frozen=True)
class Emptying(Backoff):
    """Waits no time; when the loop has waited twice, somebody makes room."""

    disk: Disk | None = None

    def seconds(self, failures: int) -> float:
        if failures >= 2 and self.disk is not None:
            self.disk.empty()
        return 0.0


def watched(port: Any, before: Callable[[str], None]) -> Mortal:
    """A port of the laboratory that tells before each call."""
    return Mortal(
        port, SimpleNamespace(instant=lambda call, at: before(call.removeprefix(".")) if at == "before" else 0)
    )


def filling(bench: Bench, disk: Disk, step: str, spare: int = 0) -> tuple[Callable[[str], None], list[int]]:
    """Fills the disk at a step of the first experiment; at which it was done."""
    filled: list[int] = []

    def fill(name: str) -> None:
        latest = bench.store.latest(bench.session.id)
        if name == step and not filled and latest is not None and latest.number >= 1:
            disk.fill(spare)
            filled.append(latest.number)

    return fill, filled


def run_session(bench: Bench, wrap: Callable[[Any], Any], backoff: Backoff) -> list[Event]:
    """A session to its end; the events that say that it waited."""
    loop = bench.loop(EXPERIMENTS, bench.laboratory(wrap), backoff=backoff)
    assert loop.run() == "2 experiments done, as asked"
    assert [*bench.messages(EventKind.FAULT)] == [], "nothing was unexpected"
    return [e for e in bench.events.events if e.kind is EventKind.BACKING_OFF]


def results(bench: Bench) -> list[tuple[Any, ...]]:
    """What a session found, without what differs from one to the next: times, and the commits that hold them."""
    found = []
    for e in bench.experiments():
        good = [(run.seed, run.value) for run in e.runs if run.label is Label.NONE]
        found.append((e.number, e.decision.status, e.decision.label, e.decision.value, good))
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    bench = Bench(tmp_path_factory.mktemp("undisturbed"))
    assert run_session(bench, lambda port: port, Backoff(0.0)) == []
    found = results(bench)
    bench.close()
    assert [status for _, status, *_ in found] == [Status.KEEP, Status.DISCARD, Status.KEEP]
    return found


@pytest.mark.parametrize("step", STEPS)
def test_a_disk_full_at_a_step_changes_no_result(step: str, disk: Disk, undisturbed: list[tuple[Any, ...]]) -> None:
    bench = Bench(disk.at)
    fill, filled = filling(bench, disk, step)
    waits = run_session(bench, lambda port: watched(port, fill), Emptying(disk=disk))
    assert filled, "the disk was full at this step"
    assert len(waits) >= 2, "it waited until there was room"
    assert all(re.search("full|No space|couldn't write", e.message) for e in waits), "and said for what"
    assert results(bench) == undisturbed
    branch = bench.git("rev-parse", "autoresearch/t")
    assert branch == bench.store.session("t").incumbent
    bench.close()


@pytest.mark.parametrize(("program", "spare"), [(GREEDY, 8 << 20), (TALKATIVE, 4 << 20)], ids=["checkpoint", "log"])
def test_a_job_that_fills_the_disk_is_run_again_and_not_blamed(program: str, spare: int, disk: Disk) -> None:
    bench = Bench(disk.at, task=TASK, program=program)
    executor = LocalExecutor(devices=Devices())
    fill, _ = filling(bench, disk, "start", spare)
    lab = replace(bench.laboratory(lambda port: watched(port, fill)), executor=watched(executor, fill))
    loop = bench.loop(EXPERIMENTS, lab, backoff=Emptying(disk=disk))
    assert loop.run() == "2 experiments done, as asked"
    first = bench.experiment(1)
    assert (first.decision.status, first.decision.value) == (Status.DISCARD, 4.0)
    labels = [run.label for run in first.runs]
    assert labels[-1] is Label.NONE
    assert set(labels[:-1]) == {Label.DISK_FULL}
    assert any("disk_full: training" in reason for reason in bench.messages(EventKind.BACKING_OFF))
    assert [*bench.messages(EventKind.FAULT)] == []
    bench.close()


def test_a_job_that_fills_any_disk_is_given_up_in_the_end(disk: Disk) -> None:
    program = GREEDY.replace("bytes(24 << 20)", "bytes(400 << 20)")
    bench = Bench(disk.at, program=program)
    disk.fill(LOW_DISK_BYTES + (60 << 20))
    lab = replace(bench.laboratory(), executor=LocalExecutor(devices=Devices()))
    bench.loop(EXPERIMENTS, lab).run()
    first, second = (bench.experiment(n) for n in (1, 2))
    assert [run.label for run in first.runs] == [Label.DISK_FULL, Label.DISK_FULL, Label.ERROR]
    assert first.decision.status is Status.CRASH
    assert "filled the disk 3 times" in first.runs[-1].detail
    assert second.decision.status is Status.KEEP, "research goes on"
    bench.close()


def test_the_log_of_a_daemon_goes_on_where_a_full_disk_stopped_it(disk: Disk) -> None:
    sink = FileSink(disk.at / "daemon.log", "t")
    told = [Event(EventKind.WARNING, datetime.now(UTC), f"line {n} " + "x" * 500) for n in range(60)]
    for event in told[:5]:
        sink.emit(event)
    disk.fill()
    for event in told[5:30]:
        sink.emit(event)
    disk.empty()
    for event in told[30:]:
        sink.emit(event)
    sink.close()
    text = (disk.at / "daemon.log").read_text()
    assert "line 59 " in text, "what is said with room again is there"
    assert "line 4 " in text
