"""A daemon that learns by itself: when it begins, what it waits for, and that no end of a learner hurts the session."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.app.learning.learn_request import stopped_mark
from autoresearchd.app.learning.schedule import LearnSchedule, schedule_of, since_last
from autoresearchd.app.make_policy import Offer
from autoresearchd.app.project import Project
from autoresearchd.domain.events import EventKind
from autoresearchd.domain.experiment import Decision
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.model_settings import LearnSettings, ModelSettings
from autoresearchd.domain.ports import Cancel, NewSession
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.domain.task import Task
from autoresearchd.learner.learner_lock import hold_learner_lock
from autoresearchd.store.repository import SqlStore
from tests.fakes.executors import FakeExecutor
from tests.fakes.models import PatientCancel
from tests.unit.learner.sessions import add_session, make_root

WRITE = "import sys, pathlib; pathlib.Path('argv').write_text(' '.join(sys.argv[1:])); print('kept as v1-00000000')"
LIMITS = """
import pathlib, resource
while (found := resource.getrlimit(resource.RLIMIT_DATA))[0] == resource.RLIM_INFINITY:
    pass
pathlib.Path('limits').write_text(f'{found[0]} {found[1]}')
"""
FOR_EVER = "import pathlib, time; pathlib.Path('began').touch(); time.sleep(600)"


class Watched:
    """A schedule in a repository of its own, and what it told."""

    def __init__(
        self,
        folder: Path,
        program: str,
        settings: LearnSettings,
        *,
        pauses: bool = False,
        stopping: Cancel | None = None,
    ) -> None:
        if not (folder / ".git").exists():
            make_root(folder)
        self.folder, self.count, self.told = folder, 0, list[tuple[EventKind, str]]()
        self.freed, self.locks, self.waits = 0, folder / "locks", list[str]()
        self.schedule = LearnSchedule(
            settings,
            "models/small",
            folder,
            self.locks,
            lambda begun: self.count,
            pauses=pauses,
            tell=lambda kind, text: self.told.append((kind, text)),
            stopping=stopping or PatientCancel(),
            waits=self.waits.append,
            free=self.free,
            command=(sys.executable, "-I", "-c", program),
        )

    def free(self) -> None:
        self.freed += 1

    def wait(self) -> None:
        """Until the learner has ended, and that is told."""
        before = len(self.told)
        while len(self.told) == before:
            self.schedule.between()

    @property
    def kinds(self) -> list[EventKind]:
        return [kind for kind, _ in self.told]


@contextmanager
def watched(
    folder: Path, program: str, settings: LearnSettings, *, pauses: bool = False, stopping: Cancel | None = None
) -> Iterator[Watched]:
    found = Watched(folder, program, settings, pauses=pauses, stopping=stopping)
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
        assert w.kinds == [EventKind.HOUSEKEEPING, EventKind.WAITING, EventKind.HOUSEKEEPING], "until it has ended"
        assert [bool(reason) for reason in w.waits] == [True, False], "what status says, and that it goes on"
        assert w.waits[0] == w.told[1][1]
        assert w.freed == 1, "the daemon's own model makes room for it"


class Releasing(PatientCancel):
    """Ends the learner that somebody started by hand while the daemon waits for it."""

    def __init__(self, learner: ExitStack) -> None:
        super().__init__()
        self._learner = learner

    def wait(self, timeout: float | None = None) -> bool:
        self._learner.close()
        return super().wait(timeout)


def test_experiments_wait_for_a_learner_that_somebody_started_by_hand_and_that_is_said_once(tmp_path: Path) -> None:
    with ExitStack() as learner:
        stopping = Releasing(learner)
        with watched(tmp_path, WRITE, LearnSettings(), pauses=True, stopping=stopping) as w:
            learner.enter_context(hold_learner_lock(w.locks))
            w.schedule.between()
        assert len(stopping.waits) == 1
    reason = f"experiments wait: a learner, process {os.getpid()}, is at work in this repository"
    assert w.told == [(EventKind.WAITING, reason)]
    assert w.waits == [reason, ""]


def test_a_session_that_is_to_end_waits_for_no_learner(tmp_path: Path) -> None:
    stopping = PatientCancel(stop_after=1)
    with watched(tmp_path, WRITE, LearnSettings(), pauses=True, stopping=stopping) as w, hold_learner_lock(w.locks):
        w.schedule.between()
        assert len(w.told) == 1
        assert len(w.waits) == 1, "it is said by then that it stops"


class Somewhere(FakeExecutor):
    """An executor on some device."""

    def __init__(self, device: str, slots: int = 1) -> None:
        super().__init__(lambda request: "", slots=slots)
        self._device = device

    def describe(self, task: Task | None = None, setup: Path | None = None) -> Mapping[str, str]:
        return {"device": self._device}


def scheduled(
    root: Path, executor: FakeExecutor, learn: LearnSettings, told: list[str] | None = None
) -> LearnSchedule | None:
    """What a session of a local policy would do about learners."""
    unused: Any = None
    with SqlStore.open(f"sqlite:///{root / '.git/autoresearchd/state.db'}") as store:
        session = store.sessions()[0]
    offer = Offer(
        session.id,
        unused,
        unused,
        unused,
        executor,
        unused,
        unused,
        root,
        root,
        root,
        ModelSettings(learn=learn),
        print,
    )
    found = schedule_of(Project(root), session, offer, PatientCancel(), lambda _, text: (told or []).append(text))
    assert found is None or isinstance(found, LearnSchedule)
    return found


@pytest.mark.parametrize(
    ("device", "slots", "settings", "waits"),
    [
        ("cpu", 1, LearnSettings(), True),
        ("cpu", 4, LearnSettings(), True),
        ("cuda:H100", 1, LearnSettings(), True),
        ("cuda:H100", 2, LearnSettings(), True),
        ("cuda:H100", 2, LearnSettings(options={"device": "cuda"}), True),
        ("cuda:H100", 2, LearnSettings(options={"device": "cuda:1"}), True),
        ("cuda:H100", 2, LearnSettings(options={"device": "cuda:2"}), False),
        ("cuda:H100", 1, LearnSettings(options={"device": "cpu"}), False),
        ("cpu", 1, LearnSettings(pause="never"), False),
        ("cuda:H100", 2, LearnSettings(pause="always", options={"device": "cuda:2"}), True),
    ],
)
def test_experiments_are_not_measured_beside_a_learner_on_the_same_device(
    tmp_path: Path, device: str, slots: int, settings: LearnSettings, waits: bool
) -> None:
    root = make_root(tmp_path / "r")
    add_session(root)
    found = scheduled(root, Somewhere(device, slots), settings)
    assert (found is not None) == waits


@pytest.mark.parametrize("options", [{"learning_rat": "1"}, {"batch": "many"}, {"gamma": "0.9"}])
def test_a_constant_of_the_schedule_that_cannot_be_is_told_when_the_session_begins(
    tmp_path: Path, options: dict[str, str]
) -> None:
    root = make_root(tmp_path / "r")
    add_session(root)
    told: list[str] = [""]
    settings = LearnSettings(every=1, model=str(tmp_path), options=options, pause="never")
    assert scheduled(root, Somewhere("cpu"), settings, told) is None
    assert "learn.set" in told[-1]
    assert next(iter(options)) in told[-1]
    assert scheduled(root, Somewhere("cpu"), replace(settings, options={}), told) is not None


def test_the_memory_limit_is_one_that_the_learner_can_lift_for_its_jobs(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    with watched(tmp_path, LIMITS, LearnSettings(every=1, memory_mb=600)) as w:
        w.count = 1
        w.schedule.between()
        w.count = 0
        w.wait()
    assert (tmp_path / "limits").read_text() == f"{600 * 2**20} {hard}"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise SystemExit('error: not enough to learn from')", "exit code 1"),
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


KILLED = "import os, pathlib, signal; pathlib.Path('runs').open('a').write('x'); os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize("pauses", [True, False])
def test_a_learner_that_is_killed_is_begun_once_more_before_the_next_experiment(tmp_path: Path, pauses: bool) -> None:
    """Else its checkpoint is for nothing: it is one of the answers that there were."""
    with watched(tmp_path, KILLED, LearnSettings(every=1), pauses=pauses) as w:
        w.count = 0
        w.schedule.request()
        w.schedule.between()
        assert not pauses or (tmp_path / "runs").read_text() == "xx", "within the wait, where experiments wait"
        while w.kinds.count(EventKind.WARNING) < 2:
            w.schedule.between()
        w.schedule.between()
        assert (tmp_path / "runs").read_text() == "xx", "and only once"
        warnings = [text for kind, text in w.told if kind is EventKind.WARNING]
    assert "killed by SIGKILL" in warnings[0] and "begun once more" in warnings[0]
    assert "research goes on with the version in use" in warnings[1]
    assert not stopped_mark(tmp_path).exists()


def test_no_second_learner_begins_beside_one_that_somebody_started(tmp_path: Path) -> None:
    with watched(tmp_path, WRITE, LearnSettings(every=1)) as w:
        w.count = 1
        with hold_learner_lock(w.locks):
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
    assert stopped_mark(tmp_path).exists()


def test_a_learner_that_was_stopped_with_its_session_goes_on_when_that_is_resumed_and_only_once(tmp_path: Path) -> None:
    with watched(tmp_path, FOR_EVER, LearnSettings(every=100)) as w:
        w.count = 100
        w.schedule.between()
        while not (tmp_path / "began").exists():
            os.sched_yield()
    with watched(tmp_path, "raise SystemExit(1)", LearnSettings(every=100)) as w:
        w.schedule.between()
        assert "learning by grpo" in w.told[0][1], "it is due at once"
        w.wait()
        w.schedule.between()
        assert len(w.told) == 2, "one that failed waits for its next turn"
    with watched(tmp_path, WRITE, LearnSettings(every=100)) as w:
        w.schedule.between()
        assert w.told == [], "also after the next resume"


def test_a_schedule_that_was_taken_back_begins_nothing(tmp_path: Path) -> None:
    mark = stopped_mark(make_root(tmp_path))
    mark.parent.mkdir(parents=True)
    mark.touch()
    with watched(tmp_path, WRITE, LearnSettings(), pauses=True) as w:
        w.schedule.between()
        assert w.told == []
