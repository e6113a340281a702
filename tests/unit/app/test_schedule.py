"""A daemon that learns by itself: when it begins, what it waits for, and that no end of a learner hurts the session."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autoresearchd.app.schedule import LearnSchedule, since_last
from autoresearchd.domain.events import EventKind
from autoresearchd.domain.experiment import Decision
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.domain.settings import LearnSettings
from autoresearchd.learner.lock import LearnerLock
from autoresearchd.ports import NewSession
from autoresearchd.store.repository import SqlStore
from autoresearchd.testing.models import PatientCancel

WRITE = "import sys, pathlib; pathlib.Path('argv').write_text(' '.join(sys.argv[1:])); print('kept as v1-00000000')"
FOR_EVER = "import pathlib, time; pathlib.Path('began').touch(); time.sleep(600)"


class Watched:
    """A schedule in a repository of its own, and what it told."""

    def __init__(self, folder: Path, program: str, settings: LearnSettings, *, pauses: bool = False) -> None:
        (folder / ".git").mkdir()
        self.folder, self.count, self.told = folder, 0, list[tuple[EventKind, str]]()
        self.locks = folder / "locks"
        self.schedule = LearnSchedule(
            settings,
            "models/small",
            folder,
            self.locks,
            lambda begun: self.count,
            pauses=pauses,
            tell=lambda kind, text: self.told.append((kind, text)),
            stopping=PatientCancel(),
            command=(sys.executable, "-I", "-c", program),
        )

    def wait(self) -> None:
        """Until the learner has ended, and that is told."""
        before = len(self.told)
        while len(self.told) == before:
            self.schedule.between()

    @property
    def kinds(self) -> list[EventKind]:
        return [kind for kind, _ in self.told]


@contextmanager
def watched(folder: Path, program: str, settings: LearnSettings, *, pauses: bool = False) -> Iterator[Watched]:
    found = Watched(folder, program, settings, pauses=pauses)
    try:
        yield found
    finally:
        found.schedule.end()


def test_a_learner_begins_after_so_many_experiments_and_is_told_what_was_set(tmp_path: Path) -> None:
    settings = LearnSettings(every=3, algo="ppo", steps=7, options={"learning_rate": "0.001"})
    with watched(tmp_path, WRITE, settings) as w:
        w.count = 2
        w.schedule.between()
        assert w.told == []
        w.count = 3
        w.schedule.between()
        w.count = 0  # the run that began counts from here
        w.wait()
    assert w.kinds == [EventKind.HOUSEKEEPING, EventKind.HOUSEKEEPING]
    assert "kept as v1-00000000" in w.told[1][1]
    assert (tmp_path / "argv").read_text() == (
        "learn --algo ppo --model models/small --steps 7 --set learning_rate=0.001"
    )


def test_a_learner_that_fails_at_once_is_not_begun_again_after_every_experiment(tmp_path: Path) -> None:
    with SqlStore.open(
        f"sqlite:///{tmp_path / 'state.db'}"
    ) as store:  # no run is recorded by one that finds too little to learn from
        begun = datetime(2026, 1, 1, tzinfo=UTC)
        session = store.create_session(NewSession("t", "b", "{}", "local:m", "local", "0" * 40, 1), begun)
        store.open_segment(session.id, "f", "first", "cpu", begun)
        for number in range(4):
            store.open_experiment(session.id, parent="0" * 40, segment=0, at=begun + timedelta(minutes=number))
            store.record_proposal(session.id, number, Proposal({}, "h", "local:m"), diff="", code_hash=f"{number}")
            decision = Decision(Status.DISCARD, Label.NO_OP)
            store.record_decision(session.id, number, decision, ASI(), begun, incumbent=None)
        assert since_last(store, session.id, 3, None) == 3
        assert since_last(store, session.id, 3, begun + timedelta(minutes=2)) == 1


def test_a_request_of_the_clock_begins_one_and_only_one(tmp_path: Path) -> None:
    with watched(tmp_path, WRITE, LearnSettings(cron="0 4 * * *")) as w:
        w.schedule.between()
        w.schedule.request()
        w.schedule.request()
        w.schedule.between()
        w.wait()
        w.schedule.between()
    assert len(w.told) == 2


def test_experiments_wait_where_learner_and_job_share_a_gpu(tmp_path: Path) -> None:
    with watched(tmp_path, WRITE, LearnSettings(every=1), pauses=True) as w:
        w.count = 1
        w.schedule.between()
        assert len(w.told) == 2, "between() comes back when the learner has ended"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise SystemExit('error: not enough to learn from')", "exit code 1"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("x = bytearray(2**31)", "exit code 1"),
    ],
)
def test_a_learner_that_fails_is_a_warning_and_nothing_else(tmp_path: Path, program: str, words: str) -> None:
    with watched(tmp_path, program, LearnSettings(every=1, memory_mb=500)) as w:
        w.count = 1
        w.schedule.between()
        w.count = 0
        w.wait()
    assert w.kinds == [EventKind.HOUSEKEEPING, EventKind.WARNING]
    assert words in w.told[1][1]


def test_no_second_learner_begins_beside_one_that_somebody_started(tmp_path: Path) -> None:
    with watched(tmp_path, WRITE, LearnSettings(every=1)) as w:
        w.count = 1
        with LearnerLock(w.locks):
            w.schedule.between()
            assert w.told == []
        w.schedule.between()
        assert len(w.told) == 1


def test_the_end_of_the_session_stops_the_learner(tmp_path: Path) -> None:
    with watched(tmp_path, FOR_EVER, LearnSettings(every=1)) as w:
        w.count = 1
        w.schedule.between()
        while not (tmp_path / "began").exists():
            os.sched_yield()
        w.schedule.end()
    assert w.kinds == [EventKind.HOUSEKEEPING] * 2
    assert "stopped with the session" in w.told[1][1]
