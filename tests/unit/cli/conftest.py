"""A repository with a session in it, written through the real store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autoresearchd.cli.main import run
from autoresearchd.domain.confirmation import Verdict
from autoresearchd.domain.experiment import Decision, Measurement
from autoresearchd.domain.labels import Label, Outcome, SessionState, Status
from autoresearchd.domain.ports import NewSession
from autoresearchd.domain.proposal import ASI, Cost, Generation, Proposal
from autoresearchd.domain.proposal import Answer as Answered
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from tests.fakes.stores import open_store
from tests.unit.learner.sessions import make_root
from tests.unit.store.driver import execute

START = datetime(2026, 3, 8, 20, 0, tzinfo=UTC)
HOSTILE = "try\x1b]0;owned\x07 a \x1b[31mred\x1b[0m [bold]herring[/bold]\r\n\u202egnirts $x_{"
SHA = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str


Command = Callable[..., Answer]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command line in this process."""

    def call(*arguments: str) -> Answer:
        capsys.readouterr()
        code = run(list(arguments))
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call


@pytest.fixture
def empty_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a git repository without a session."""
    root = make_root(tmp_path / "repository")
    monkeypatch.chdir(root)
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return root


@pytest.fixture
def repository(empty_repository: Path, written_once: Path) -> Path:
    """The working directory: a repository with the session ``mar8`` of five experiments, stopped."""
    target = layout.database_path(empty_repository)
    target.parent.mkdir(parents=True)
    shutil.copyfile(written_once, target)
    return empty_repository


@pytest.fixture(scope="session")
def written_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of ``repository``: making one takes longer than most tests."""
    root = make_root(tmp_path_factory.mktemp("written"))
    add_session(root, "mar8")
    return layout.database_path(root)


def add_session(
    root: Path, tag: str, *, state: SessionState = SessionState.STOPPED,
    pid: int | None = None, reason: str = "", policy: str = "search",
) -> None:  # fmt: skip
    """A session with a baseline, a keep, a discard, a crash and a hostile discard."""
    database = layout.database_path(root)
    scoring = {"metric": "val_bpb", "direction": "minimize", "source": "evaluator"}
    task = {"name": "autoresearch", "scoring": scoring, "execution": {"budget": {"training": 300.0}}}
    with open_store(database) as store:
        session = store.create_session(
            NewSession(tag, f"autoresearch/{tag}", json.dumps(task), policy, "local", SHA, 7), START
        )
        store.open_segment(session.id, "f", "first", "cpu", START)
        for values, status, label, description in (
            ([0.9979, 0.9981, 0.9977], Status.KEEP, Label.NONE, "baseline"),
            ([0.986041], Status.KEEP, Label.NONE, "halve batch 524K to 262K (more steps in 5 min)"),
            ([0.982603], Status.DISCARD, Label.NO_GAIN, "add 5% warmup"),
            ([], Status.CRASH, Label.OOM, "batch 131K"),
            ([0.99], Status.DISCARD, Label.NO_GAIN, HOSTILE),
        ):
            add_experiment(store, session.id, values, status, label, description)
        store.set_state(session.id, state, START + timedelta(hours=3), pid=pid, reason=reason)


def give_secret(root: Path) -> str:
    """The jobs of all sessions are given it by ``execution.env``."""
    set_it = "UPDATE session SET task_json = json_set(task_json, '$.execution.env', json(?))"
    execute(layout.database_path(root), set_it, '{"WEIGHTS_PASSWORD": "correct-horse-battery-staple"}')
    return "correct-horse-battery-staple"


def add_hybrid(root: Path, *, away: bool = False) -> None:
    """The session ``mixed``: five experiments of search, a model's keep, a pass, and maybe a turn without it."""
    add_session(root, "mixed", policy="hybrid:local:m")
    first = Answered("m", Cost(None, 9, 9, 30.0), Generation(), HOSTILE)
    then = Answered("m", Cost(None, 9, 9, 12.0), Generation(), form="pass")
    with open_store(layout.database_path(root)) as store:
        session, kept, lost = store.session("mixed").id, (Status.KEEP, Label.NONE), (Status.DISCARD, Label.NO_GAIN)
        add_experiment(store, session, [0.98], *kept, "wider", policy="local:m", answers=[then])
        add_experiment(store, session, [0.99], *lost, "x 1 → 2", extra={"passed_by": "local:m"}, answers=[first, then])
        if away:
            add_experiment(store, session, [0.99], *lost, "x 1 → 3", extra={"unused": f"{HOSTILE} {'far ' * 60}"})


def add_confirmation(root: Path, outcome: Outcome | None) -> None:
    """Two pairs of runs of the keep of ``mar8`` beside the baseline, and their verdict; None: it is under way."""
    with open_store(layout.database_path(root)) as store:
        session = store.session("mar8")
        store.open_confirmation(session.id, experiment=1, against=0, why="gain", at=START)
        for of, seed, value in ((None, 7, 0.9871), (0, 7, 0.9979), (0, 8, 0.9981), (None, 8, 0.9875)):
            row = store.open_confirmation_run(session.id, 0, seed, START, of=of)
            store.close_confirmation_run(row.id, Measurement(Label.NONE, value), None, START + timedelta(minutes=5))
        if outcome is not None:
            verdict = Verdict(outcome, 0.0107, 0.0002, 0.999, "Experiment 1 is 0.0107 better than experiment 0.")
            store.decide_confirmation(session.id, 0, verdict, START + timedelta(hours=2))


def add_experiment(
    store: SqlStore, session_id: int, values: list[float], status: Status, label: Label, description: str, *,
    role: str = "", reward: float | None = None, policy: str = "search", extra: Mapping[str, str] | None = None,
    answers: Sequence[Answered] = (),
) -> None:  # fmt: skip
    """One experiment, taken through all its phases."""
    e = store.open_experiment(session_id, parent=SHA, segment=0, at=START)
    at = START + timedelta(minutes=6 * e.number)
    for answer in answers:
        store.record_answer(session_id, e.number, answer, at)
    asi = ASI(hypothesis="more steps help", extra=extra or {"learned": "\x1b[2Jnothing"})
    proposal = Proposal({"train.py": "x = 1\n"}, "more steps help", policy, description=description, role=role, asi=asi)
    diff = f"--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-x = 0\n+x = {e.number}  # \x1b[31m\n"
    store.record_proposal(session_id, e.number, proposal, diff=diff, code_hash=f"hash-{e.number}")
    commit = f"{e.number:040x}"
    store.record_commit(session_id, e.number, commit)
    for index, value in enumerate(values):
        run_row = store.open_run(session_id, e.number, 100 + index, at)
        measured = Measurement(Label.NONE, value, {"val_bpb": value, "peak_vram_mb": 45060.2})
        store.close_run(run_row.id, measured, None, at + timedelta(minutes=5), last=index == len(values) - 1)
    mean = sum(values) / len(values) if values else None
    metrics = {} if mean is None else {"val_bpb": mean, "peak_vram_mb": 45060.2}
    delta = None if mean is None or e.number == 0 else 0.9979 - mean
    rest = {"reason": "as measured", "reward": reward}
    decision = Decision(status, label, mean, delta, metrics, 2.5 if e.number else None, **rest)
    then = at + timedelta(seconds=302)
    incumbent = commit if status is Status.KEEP else None
    store.record_decision(session_id, e.number, decision, asi, then, incumbent=incumbent, confirmed=e.number == 0)
    store.record_overhead(session_id, e.number, 41.0)
