"""What must hold after every death and at the end of every session: the promises of durability, and breaches."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from autoresearchd.config import parse_task
from autoresearchd.domain.confirmation import Confirmation
from autoresearchd.domain.experiment import Experiment, Session, Totals
from autoresearchd.domain.labels import Label, Phase
from autoresearchd.store.repository import SqlStore
from tests.chaos.world import TAG, World

KINDS = ("lost", "duplicated", "unconfirmed", "orphans", "user_files", "repeated", "failed")
"""unconfirmed: the branch has what no confirmation has proven.

repeated: the session went another way than an undisturbed one; failed: a daemon ended by itself with an error."""


@dataclass
class Breaches:
    """Breaches by kind."""

    found: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def add(self, kind: str, what: str) -> None:
        self.found[kind].append(what)

    def merge(self, other: Breaches) -> None:
        for kind, lines in other.found.items():
            self.found[kind] += lines

    def lines(self) -> list[str]:
        return [f"{kind}: {line}" for kind, lines in self.found.items() for line in lines]


@dataclass(frozen=True)
class Journal:
    """What the store says at one instant."""

    experiments: tuple[Experiment, ...]
    totals: Totals
    session: Session
    confirmations: tuple[Confirmation, ...]

    @classmethod
    def read(cls, world: World) -> Journal:
        return cls.of(world.project.open_store())

    @classmethod
    def peek(cls, world: World, aside: Path) -> Journal:
        """Read a copy of it: whoever closes a database last moves its log into it."""
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for name in ("state.db", "state.db-wal"):
            if (world.state / name).exists():
                shutil.copy(world.state / name, aside / name)
        return cls.of(SqlStore.open(f"sqlite:///{aside / 'state.db'}"))

    @classmethod
    def of(cls, store: SqlStore) -> Journal:
        """What a store says; it is closed then."""
        with store:
            session = store.session(TAG)
            totals = store.totals(session.id)
            listed = store.experiments(session.id)
            experiments = tuple(store.experiment(session.id, e.number) for e in listed)  # with their files
            return cls(experiments, totals, session, tuple(store.confirmations(session.id)))

    @property
    def confirmed(self) -> list[str]:
        """Commits of confirmed experiments but the baseline, oldest first."""
        return [e.commit for e in self.experiments if e.number and e.commit and e.confirmed]

    @property
    def reverts(self) -> bool:
        return parse_task(self.session.task_json).history == "revert"

    def phase(self, world: World) -> str:
        """Where a daemon was that died now, as rows of the table."""
        if not self.experiments:
            return "starting"
        latest = self.experiments[-1]
        if any(c.open for c in self.confirmations):
            return "confirming"
        if latest.phase is Phase.RUNNING:
            folder = world.runs / str(latest.number) / str(latest.runs[-1].index)
            return "evaluating" if (folder / "evaluation.log").exists() else "training"
        if latest.phase is Phase.DECIDED:
            return "settling" if latest.overhead_ms is None else "housekeeping"
        before = {Phase.PROPOSING: "proposing", Phase.PROPOSED: "committing", Phase.COMMITTED: "launching"}
        return before.get(latest.phase, "deciding")

    def outcome(self) -> list[tuple[Any, ...]]:
        """What must not depend on where daemons died."""
        by_commit = {e.commit: e.number for e in self.experiments if e.commit and e.number}
        rows = []
        for e in self.experiments:
            p, d = e.proposal, e.decision
            said = p and (dict(p.files), p.hypothesis, p.description, dict(p.changes))
            judged = d and (d.status, d.label, d.value, d.delta, d.sigma, d.reason)
            runs = [(run.seed, run.value, run.label) for run in e.counted_runs]
            rows.append((f"experiment {e.number}", by_commit.get(e.parent, 0), said, judged, runs, e.confirmed))
        for c in self.confirmations:
            runs = [(run.seed, run.of, run.value, run.label) for run in c.runs if run.counts]
            of = (c.experiment, c.against, c.after, c.why)
            rows.append((f"confirmation {c.number}", c.segment, of, c.verdict, runs, c.moved))
        return rows


def check_after_death(world: World, before: Journal | None, breaches: Breaches, where: str) -> Journal:
    """What holds at the very instant of a death, before anything is fixed."""
    now = Journal.read(world)
    _check_branch(world, now, breaches, where)
    if before is not None:
        _check_nothing_vanished(before, now, breaches, where)
    return now


def _check_branch(world: World, now: Journal, breaches: Breaches, where: str) -> None:
    """The branch has confirmed programs alone; it may not have the last one yet, whose verdict is on disk."""
    branch = world.branch_commits(now.session.base_commit)
    if now.reverts:  # what was discarded, or fell, is in its past, but it ends with a program that is confirmed
        proven = {world.tree(commit) for commit in (now.session.base_commit, *now.confirmed)}
        strangers = [commit for commit in branch[-1:] if world.tree(commit) not in proven]
    else:
        strangers = sorted(set(branch) - set(now.confirmed))
    if strangers:
        breaches.add("unconfirmed", f"{where}: on the branch, but not confirmed: {strangers}")


def _check_nothing_vanished(before: Journal, now: Journal, breaches: Breaches, where: str) -> None:
    """What was written down stays: numbers, proposals with their cost, runs, decisions."""
    later = {e.number: e for e in now.experiments}
    for old in before.experiments:
        new = later.get(old.number)
        if new is None:
            breaches.add("lost", f"{where}: experiment {old.number} has vanished")
            continue
        if old.proposal is not None and new.attempt == old.attempt and new.proposal != old.proposal:
            breaches.add("lost", f"{where}: experiment {old.number} lost its proposal or its cost")
        if old.decision is not None and (new.decision, new.commit) != (old.decision, old.commit):
            breaches.add("lost", f"{where}: experiment {old.number} was decided twice")
        if len(new.runs) < len(old.runs) or new.attempt < old.attempt or new.started_at != old.started_at:
            breaches.add("lost", f"{where}: experiment {old.number} lost a run")
        if old.phase is Phase.DECIDED and new.phase is not Phase.DECIDED:
            breaches.add("lost", f"{where}: experiment {old.number} went back to {new.phase.value}")
    for c, there in zip_longest(before.confirmations, now.confirmations[: len(before.confirmations)]):
        if there is None or len(there.runs) < len(c.runs) or (c.verdict is not None and c.verdict != there.verdict):
            breaches.add("lost", f"{where}: confirmation {c.number} lost a run, its verdict, or all")


def check_end(world: World, experiments: int, reference: Journal | None, breaches: Breaches, where: str) -> Journal:
    """What holds once a session has done all its experiments."""
    now = Journal.read(world)
    _check_numbers(now, experiments, breaches, where)
    _check_runs(now, breaches, where)
    _check_git(world, now, breaches, where)
    if reference is not None and now.outcome() != reference.outcome():
        breaches.add("repeated", f"{where}: {first_difference(now, reference)}")
    return now


def _check_numbers(now: Journal, experiments: int, breaches: Breaches, where: str) -> None:
    numbers = [e.number for e in now.experiments]
    if len(set(numbers)) != len(numbers) or now.totals.experiments > experiments + 1:
        breaches.add("duplicated", f"{where}: numbers {numbers}, counted {now.totals.experiments}")
    open_ = [e.number for e in now.experiments if e.decision is None or e.overhead_ms is None]
    if sorted(set(numbers)) != list(range(experiments + 1)) or open_ or now.totals.experiments < experiments + 1:
        breaches.add("lost", f"{where}: numbers {numbers}, not settled {open_}, counted {now.totals.experiments}")
    costs = [e.proposal.cost for e in now.experiments if e.proposal]
    if (sum(c.tokens_in for c in costs), sum(c.tokens_out for c in costs)) != (
        now.totals.tokens_in,
        now.totals.tokens_out,
    ) or abs(sum(c.usd or 0.0 for c in costs) - now.totals.usd) > 1e-9:
        breaches.add("duplicated", f"{where}: the costs of proposals do not add up to the totals")


def _check_runs(now: Journal, breaches: Breaches, where: str) -> None:
    for e in now.experiments:
        counted = e.counted_runs
        baseline = e.proposal is not None and e.proposal.policy == "baseline"
        most = 3 if baseline else 1
        spent = e.decision is not None and e.decision.label not in (Label.DUPLICATE, Label.NO_OP)
        if len(counted) > most or len({(run.seed, run.of) for run in counted}) != len(counted):
            breaches.add("duplicated", f"{where}: experiment {e.number} was measured {len(counted)} times")
        if spent and not counted:
            breaches.add("lost", f"{where}: experiment {e.number} was decided without a run")
        if any(run.open for run in e.runs):
            breaches.add("lost", f"{where}: experiment {e.number} has an open run")
    for c in now.confirmations:
        counted = [run for run in c.runs if run.counts]
        if len({(run.seed, run.of) for run in counted}) != len(counted):
            breaches.add("duplicated", f"{where}: confirmation {c.number} counts a run twice")
        if c.open:
            breaches.add("lost", f"{where}: confirmation {c.number} has no verdict")


def _check_git(world: World, now: Journal, breaches: Breaches, where: str) -> None:
    _check_branch(world, now, breaches, where)
    refs, session = world.refs(), now.session
    tip, branch = refs.get("tip", ""), world.branch_commits(session.base_commit)
    if now.reverts:
        follows = [world.tree(tip), *map(world.tree, branch[-1:])] == [
            world.tree(session.incumbent), *(world.tree(session.confirmed) for _ in branch[-1:])
        ]  # fmt: skip
    else:
        follows = (tip, branch) == (session.incumbent, now.confirmed)
    if not follows:
        breaches.add("lost", f"{where}: branch {branch} and tip {tip}, not {now.confirmed} and {session.incumbent}")
    for e in now.experiments:
        if e.commit and refs.get(str(e.number)) != e.commit:
            breaches.add("lost", f"{where}: ref of experiment {e.number} is at {refs.get(str(e.number))}")
    said = world.git("fsck", "--strict", "--no-dangling", "--no-progress", check=False)
    if said:
        breaches.add("lost", f"{where}: git fsck: {said[:300]}")


def check_user(before: dict[str, str], world: World, breaches: Breaches, where: str) -> None:
    """Nothing of the user's has changed, come or gone."""
    after = world.users_files()
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            breaches.add("user_files", f"{where}: {name}: {before.get(name)} → {after.get(name)}")


def processes_of(root: Path) -> list[str]:
    """Live processes that name a folder in their environment, their command or as where they stand."""
    mark, found = os.fsencode(root), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if entry.joinpath("stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X"):
                continue
            text = entry.joinpath("environ").read_bytes() + entry.joinpath("cmdline").read_bytes()
            if mark + b"/" in text or text.endswith(mark) or mark + b"\0" in text:
                found.append(f"{entry.name} {entry.joinpath('cmdline').read_bytes()[:160]!r}")
        except OSError:
            continue
    return found


def first_difference(one: Journal, other: Journal) -> str:
    """Where two sessions part."""
    for a, b in zip(one.outcome(), other.outcome(), strict=False):
        if a != b:
            parts = [f"{x!r} instead of {y!r}" for x, y in zip(a, b, strict=True) if x != y]
            return f"{a[0]}: " + "; ".join(parts)[:600]
    rows = (len(journal.experiments) + len(journal.confirmations) for journal in (one, other))
    return "{} experiments and confirmations instead of {}".format(*rows)
