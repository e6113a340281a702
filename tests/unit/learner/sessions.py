"""Repositories with sessions in which a model answered, written through the real store."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from autoresearchd.config import dump_task
from autoresearchd.domain.experiment import Decision
from autoresearchd.domain.labels import NEVER_RUN, RULES, Label
from autoresearchd.domain.ports import NewSession
from autoresearchd.domain.proposal import Answer, Cost, Generation, Proposal
from autoresearchd.evaluator.feedback import FORMULA
from autoresearchd.workspace import layout
from tests.fakes.policies import make_task
from tests.fakes.stores import open_store

START = datetime(2026, 3, 8, 20, 0, tzinfo=UTC)
SHA = "0" * 40
ONE_EACH: tuple[tuple[float, Label], ...] = (
    (2.5, Label.NONE), (-0.5, Label.NO_GAIN), (-2.0, Label.MALFORMED_ANSWER), (-2.0, Label.ERROR),
    (1.0, Label.NONE), (-0.4, Label.NO_GAIN), (-0.3, Label.ABORTED_EARLY), (-0.5, Label.DUPLICATE),
)  # fmt: skip


def make_root(root: Path) -> Path:
    """A folder that is a git repository as far as paths go."""
    for name in ("objects", "refs"):
        (root / ".git" / name).mkdir(parents=True)
    (root / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return root


def add_session(
    root: Path,
    tag: str = "mar8",
    outcomes: tuple[tuple[float, Label], ...] = ONE_EACH,
    *,
    group: int = 2,
    policy: str = "local:m",
    model_hash: str = "aa11",
    tokens: bool = True,
    days: int = 0,
    seed: int = 7,
) -> None:
    """A session with one answer to each of its experiments, in rounds of ``group``, after a baseline."""
    database = layout.database_path(root)
    with open_store(database) as store:
        at = START + timedelta(days=days)
        new = NewSession(tag, f"autoresearch/{tag}", dump_task(make_task()), policy, "local", SHA, seed)
        session = store.create_session(new, at)
        store.open_segment(session.id, "f", "first", "cpu", at)
        for number, (reward, label) in enumerate(((0.0, Label.NONE), *outcomes)):
            e = store.open_experiment(session.id, parent=SHA, segment=0, at=at + timedelta(minutes=number))
            first = number - (number - 1) % group
            proposal = Proposal({}, "a reason", "baseline" if not number else policy)
            if number and label is not Label.MALFORMED_ANSWER:
                proposal = replace(proposal, round_id=f"{tag}/{first}", state_id=f"{tag}/{first}")
            if number:
                answer = _answer(f"{root} {tag} {first}", number, label, model_hash if tokens else "", tokens)
                store.record_answer(session.id, number, answer, e.started_at)
            store.record_proposal(session.id, number, proposal, diff="", code_hash=f"h{number}")
            status = RULES[label]
            assert status is not None
            value = 1.0 if label not in NEVER_RUN and label is not Label.ERROR else None
            decision = Decision(status, label, value, reason=f"{label.value or 'better'}.")
            if number:
                decision = replace(decision, reward=reward, reward_formula=FORMULA)
            store.record_decision(session.id, number, decision, proposal.asi, e.started_at, incumbent=None)


def _answer(asked: str, number: int, label: Label, model_hash: str, tokens: bool) -> Answer:
    generation = Generation(
        messages=({"role": "system", "content": "You do research."}, {"role": "user", "content": asked}),
        completion=f"LR = 0.{number}",
        token_ids=(5, 6, number) if tokens else None,
        logprobs=(-0.1, -0.2, -0.3) if tokens else None,
        sampling={"temperature": 1.0},
        model_hash=model_hash or None,
        tokenizer_hash="t",
        template_hash="c",
    )
    error = "there is no edit in the answer" if label is Label.MALFORMED_ANSWER else ""
    return Answer("m", Cost(0.0, 100, 3, 1.0), generation, error, "" if error else "search_replace", "stop")
