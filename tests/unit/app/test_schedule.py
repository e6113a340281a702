"""A daemon that learns by itself: when it begins, what it waits for, and that no end of a learner hurts the session."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from autoresearchd.config.settings import LearnSettings, ModelSettings
from autoresearchd.domain.experiment import Decision
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.ports import Cancel, EventKind
from autoresearchd.domain.proposal import ASI
from autoresearchd.domain.task import Task
from autoresearchd.learner.learner_process import (
    LearnSchedule,
    hold_learner_lock,
    is_learning,
    schedule_of,
    since_last,
    stopped_mark,
)
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from tests.fakes.executors import FakeExecutor
from tests.fakes.models import PatientCancel
from tests.fakes.stores import open_store
from tests.unit.learner.sessions import ONE_EACH, SHA, START, add_session, make_root

WRITE = "import sys, pathlib; pathlib.Path('argv').write_text(' '.join(sys.argv[1:])); print('kept as v1-00000000')"
GREEDY = """\
import resource
while resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY:  # it is set on the running process
    pass
x = bytearray(2**31)
"""
FOR_EVER = "import pathlib, time; pathlib.Path('began').touch(); time.sleep(600)"


class Watched:
    """A schedule in a repository of its own, and what it told."""

    def __init__(
        self, folder: Path, program: str, settings: LearnSettings, pauses: bool = False, stopping: Cancel | None = None
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

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.schedule.end()

    def free(self) -> None:
        self.freed += 1

    def between(self, enough: Callable[[], bool] = lambda: False) -> None:
        self.schedule.between(enough)

    def wait(self) -> None:
        """Until the learner has ended, and that is told."""
        before = len(self.told)
        while len(self.told) == before:
            self.between()

    @property
    def kinds(self) -> list[EventKind]:
        return [kind for kind, _ in self.told]


def test_a_learner_begins_after_so_many_experiments_and_is_told_what_was_set(tmp_path: Path) -> None:
    settings = LearnSettings(every=3, algo="ppo", steps=7, set={"learning_rate": "0.001"})
    with Watched(tmp_path, WRITE, settings) as w:
        w.count = 2
        w.between()
        assert w.told == []
        w.count = 3
        w.between()
        w.count = 0  # the run that began counts from here
        w.wait()
    assert w.kinds == [EventKind.HOUSEKEEPING, EventKind.LEARNED]
    assert "kept as v1-00000000" in w.told[1][1]
    assert (tmp_path / "argv").read_text() == (
        "learn --algo ppo --model models/small --steps 7 --set learning_rate=0.001"
    )


def test_what_several_slots_have_under_way_puts_no_learner_off(tmp_path: Path) -> None:
    """Else the newest are never all decided, and ``every`` never comes."""
    add_session(make_root(tmp_path), outcomes=ONE_EACH[:3])
    with open_store(layout.database_path(tmp_path)) as store:
        session = store.session("mar8").id
        later = START + timedelta(hours=1)
        open_ones = [store.open_experiment(session, parent=SHA, segment=0, at=later) for _ in range(2)]
        assert since_last(store, session, None) == 3
        run = store.open_learner_run("grpo", "replay", 3, later + timedelta(minutes=1))
        assert since_last(store, session, None) == 0
        for minute, e in enumerate(open_ones, 2):
            refused = Decision(Status.CRASH, Label.MALFORMED_ANSWER, None)
            at = later + timedelta(minutes=minute)
            store.record_decision(session, e.number, refused, ASI(), at, incumbent=None)
        assert since_last(store, session, run.started_at) == 2, "the learner has not seen how they ended"
        assert since_last(store, session, at) == 0


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
        with Watched(tmp_path, WRITE, LearnSettings(), pauses=True, stopping=stopping) as w:
            learner.enter_context(hold_learner_lock(w.locks))
            w.between()
        assert len(stopping.waits) == 1
    reason = f"experiments wait: a learner, process {os.getpid()}, is at work in this repository"
    assert w.told == [(EventKind.WAITING, reason)]
    assert w.waits == [reason, ""]


def test_a_learner_is_not_waited_for_past_the_time_of_the_session(tmp_path: Path) -> None:
    """Its own is stopped as with the session, and begins again with the next; one begun by hand goes on."""
    with Watched(tmp_path, FOR_EVER, LearnSettings(every=1), pauses=True) as w:
        w.count = 1
        w.between(lambda: True)
        assert w.told == [], "none is begun"
        w.between((tmp_path / "began").exists)
        assert w.kinds == [EventKind.HOUSEKEEPING, EventKind.WAITING, EventKind.HOUSEKEEPING]
        assert "stopped with the session" in w.told[-1][1] and stopped_mark(tmp_path).exists() and w.waits[-1] == ""
    with ExitStack() as learner:
        stopping = Releasing(learner)
        with Watched(tmp_path, WRITE, LearnSettings(), pauses=True, stopping=stopping) as w:
            learner.enter_context(hold_learner_lock(w.locks))
            w.between(lambda: bool(w.told))
            assert is_learning(w.locks) and stopping.waits == []


def test_no_session_has_the_lock_of_learners(tmp_path: Path) -> None:
    """Else a session of that tag waits for itself, and all others for it."""
    with hold_learner_lock(tmp_path):
        [lock] = tmp_path.iterdir()
    assert lock.suffix == ".lock" and not layout.valid_tag(lock.stem)


@pytest.mark.parametrize("pauses", [True, False])
def test_it_is_known_beforehand_whether_experiments_must_wait(tmp_path: Path, pauses: bool) -> None:
    """So that several slots are empty by then."""
    with Watched(tmp_path, WRITE, LearnSettings(every=3), pauses=pauses) as w:
        assert not w.schedule.due()
        w.count = 3
        assert w.schedule.due() == pauses
        w.count = 0
        with hold_learner_lock(w.locks):
            assert w.schedule.due() == pauses, "somebody started one by hand"
        assert not w.schedule.due() and w.told == []


class Somewhere(FakeExecutor):
    """An executor on some device."""

    def __init__(self, device: str, slots: int = 1) -> None:
        super().__init__(lambda request: "", slots=slots)
        self._device = device

    def describe(self, task: Task | None = None, setup: Path | None = None) -> Mapping[str, str]:
        return {"device": self._device}


def waits_for_learners(root: Path, executor: FakeExecutor, learn: LearnSettings) -> bool:
    """Whether a session of a local policy has experiments wait for learners."""
    with SqlStore.open(f"sqlite:///{root / '.git/autoresearchd/state.db'}") as store:
        settings, stopping = ModelSettings(learn=learn), PatientCancel()
        found = schedule_of(
            root, store.sessions()[0], store, settings, executor, stopping=stopping, tell=lambda kind, text: None
        )
    return found is not None


@pytest.mark.parametrize(
    ("device", "slots", "settings", "waits"),
    [
        ("cpu", 1, LearnSettings(), True),
        ("cuda:H100", 1, LearnSettings(), True),
        ("cuda:H100", 2, LearnSettings(set={"device": "cuda:1"}), True),
        ("cuda:H100", 2, LearnSettings(set={"device": "cuda:2"}), False),
        ("cuda:H100", 1, LearnSettings(set={"device": "cpu"}), False),
        ("cpu", 1, LearnSettings(pause="never"), False),
        ("cuda:H100", 2, LearnSettings(pause="always", set={"device": "cuda:2"}), True),
    ],
)
def test_experiments_are_not_measured_beside_a_learner_on_the_same_device(
    tmp_path: Path, device: str, slots: int, settings: LearnSettings, waits: bool
) -> None:
    root = make_root(tmp_path / "r")
    add_session(root)
    assert waits_for_learners(root, Somewhere(device, slots), settings) == waits


def test_a_learner_that_fails_is_a_warning_and_nothing_else(tmp_path: Path) -> None:
    with Watched(tmp_path, GREEDY, LearnSettings(every=1, memory_mb=500)) as w:
        w.count = 1
        w.between()
        w.count = 0
        w.wait()
    assert w.kinds == [EventKind.HOUSEKEEPING, EventKind.LEARNER_FAILED]
    assert "exit code 1" in w.told[1][1]


KILLED = "import os, pathlib, signal; pathlib.Path('runs').open('a').write('x'); os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize("pauses", [True, False])
def test_a_learner_that_is_killed_is_begun_once_more_before_the_next_experiment(tmp_path: Path, pauses: bool) -> None:
    """Else its checkpoint is for nothing: it is one of the answers that there were."""
    with Watched(tmp_path, KILLED, LearnSettings(every=1), pauses=pauses) as w:
        w.count = 0
        w.schedule.request()
        w.between()
        assert not pauses or (tmp_path / "runs").read_text() == "xx", "within the wait, where experiments wait"
        while w.kinds.count(EventKind.LEARNER_FAILED) < 2:
            w.between()
        w.between()
        assert (tmp_path / "runs").read_text() == "xx", "and only once"
        warnings = [text for kind, text in w.told if kind is EventKind.LEARNER_FAILED]
    assert "killed by SIGKILL" in warnings[0] and "begun once more" in warnings[0]
    assert "research goes on with the version in use" in warnings[1]
    assert not stopped_mark(tmp_path).exists()


def test_a_learner_that_was_stopped_with_its_session_goes_on_when_that_is_resumed_and_only_once(tmp_path: Path) -> None:
    with Watched(tmp_path, FOR_EVER, LearnSettings(every=100)) as w:
        w.count = 100
        w.between()
        while not (tmp_path / "began").exists():
            os.sched_yield()
    assert "stopped with the session" in w.told[1][1] and stopped_mark(tmp_path).exists()
    with Watched(tmp_path, "raise SystemExit(1)", LearnSettings(every=100)) as w:
        w.between()
        assert "learning by grpo" in w.told[0][1], "it is due at once"
        w.wait()
        w.between()
        assert len(w.told) == 2, "one that failed waits for its next turn"
    with Watched(tmp_path, WRITE, LearnSettings(every=100)) as w:
        w.between()
        assert w.told == [], "also after the next resume"
