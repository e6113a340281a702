"""Where a session stands: incumbent, baseline, σ and recent history, in memory so that no step reads the whole past."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from autoresearchd.domain.events import EventKind
from autoresearchd.domain.experiment import Experiment, Run
from autoresearchd.domain.labels import RULES, Phase, Status
from autoresearchd.domain.metric import Direction
from autoresearchd.domain.proposal import Repair
from autoresearchd.domain.state import ResearchState
from autoresearchd.errors import StoreError
from autoresearchd.evaluator.decide import incumbent_value, samples_of
from autoresearchd.evaluator.ledger import Ledger
from autoresearchd.evaluator.legality import required_symbols
from autoresearchd.loop.artifacts import read_sources
from autoresearchd.loop.context import Context
from autoresearchd.loop.diagnostics import Diagnostics
from autoresearchd.loop.pacing import Pacing
from autoresearchd.loop.role_history import RoleHistory
from autoresearchd.loop.turns import Turn, Turns
from autoresearchd.loop.words import commit_of

BASELINE = "baseline"
RECENT = 32
TOP = 5
LEARNINGS_EVERY = 5
"""Experiments between two times that ``autoresearch.md`` is brought up to date without a keep."""
DOUBTED_AFTER = 3
"""Experiments that failed in a row before the incumbent is run again beside the next one that does."""
PROGRAMS = 4
"""How many programs are remembered: the incumbent, the parent, and those that are compared with them."""


class Standing:
    """Read from the store once, then kept up by ``decided`` and ``settled``. Owned by the loop's thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._read()

    def _read(self) -> None:
        """Everything, from the store."""
        context = self._context
        session = context.store.session(context.tag)
        segment = context.store.segment(session.id)
        self.segment = segment.number if segment else 0
        self._incumbent_commit = session.incumbent
        decided = [e for e in context.store.experiments(session.id, last=RECENT) if e.phase is Phase.DECIDED]
        self._recent: deque[Experiment] = deque(decided, maxlen=RECENT)
        self._values = list(context.store.values(session.id, self.segment))
        self.ledger = Ledger(samples_of(context.task, context.store.decided_runs(session.id, self.segment)))
        self._baseline: Experiment | None = None
        self._incumbent: Experiment | None = None
        self._code: dict[str, Mapping[str, str]] = {}
        self._shown: list[int] = []
        self._top: tuple[Experiment, ...] | None = None
        self._required: Mapping[str, frozenset[str]] | None = None
        self.totals = context.store.totals(session.id)
        self._labels = Counter(context.store.label_counts(session.id))
        self.pacing = Pacing(context, self)
        self.turns = Turns(context)
        self._roles = RoleHistory(context, RECENT)
        self._diagnostics = Diagnostics(context)
        self._find_baseline(segment.first if segment else 0, session.incumbent_experiment)
        latest = context.store.latest(session.id)
        if latest is not None and latest.phase is not Phase.DECIDED and latest.fallen:
            self.follow(latest)

    def _find_baseline(self, first: int, incumbent: int) -> None:
        """The baseline is the first kept experiment of the segment; before it there are only baselines that failed."""
        store, session_id = self._context.store, self._context.session_id
        latest = store.latest(session_id)
        for number in range(first, latest.number + 1 if latest else first):
            found = store.experiment(session_id, number)
            if _is_keep(found):
                self._baseline = found
                self._incumbent = store.experiment(session_id, max(incumbent, number))
                return
            if not is_baseline(found):
                return

    # ------------------------------------------------------------------ what the next experiment builds on
    @property
    def needs_baseline(self) -> bool:
        """Whether the program as it is has yet to be measured in this segment."""
        return self._baseline is None

    @property
    def parent(self) -> str:
        """The commit that the next experiment is written on and reverted to."""
        return self._context.workspace.tip() if self._context.task.history == "revert" else self._incumbent_commit

    @property
    def left(self) -> str:
        """The commit that the branch was left at, or whose files it has, where reverts are written on it."""
        return self._incumbent_commit

    @property
    def incumbent(self) -> Experiment:
        """The best kept experiment of this segment."""
        if self._incumbent is None:
            raise StoreError("no baseline has been measured in this segment")
        return self._incumbent

    def rival(self, e: Experiment) -> Experiment:
        """What an experiment is compared with: the incumbent or, where that failed twice beside it, the keep before.

        The baseline, with which everything began, keeps its place.
        """
        found, first = self.incumbent, self._baseline.number if self._baseline is not None else 0
        while found.number in e.fallen and found.number > first:
            before = (
                self._context.store.experiment(self._context.session_id, n) for n in range(found.number - 1, first, -1)
            )
            found = next((k for k in before if _is_keep(k)), self._baseline or found)
        return found

    def doubts(self, e: Experiment) -> bool:
        """Whether what an experiment is compared with may fail by now, as all did that were measured since it last ran.

        What is built on it holds its code. The baseline is never doubted, as it keeps its place.
        """
        rival, failed = self.rival(e).number, 0
        if self._baseline is None or rival == self._baseline.number:
            return False
        for before in islice(reversed(self._recent), RECENT - 1):  # one less after a restart, when e is among the last
            own = before.last_own
            ended = None if own is None else RULES[own.label].status
            if ended is None:  # no job was spent on it, or it was taken from it
                continue
            beside = any(run.of == rival and run.counts for run in before.runs)
            if before.number <= rival or beside or ended not in (Status.CRASH, Status.CHECKS_FAILED):
                break
            failed += 1
        return failed >= DOUBTED_AFTER

    def follow(self, e: Experiment) -> str:
        """Let the incumbent lose its place where it failed twice beside an experiment; the fact in words, else empty.

        In memory alone: the runs say it, and the store follows with the decision on the experiment.
        """
        rival, fallen = self.rival(e), self.incumbent
        if rival.number == fallen.number:
            return ""
        self._incumbent, self._incumbent_commit = rival, commit_of(rival)
        return (
            f"experiment {fallen.number}, the best so far, failed twice when it ran again and lost its place: "
            f"experiment {rival.number} is the incumbent again"
        )

    def fallen(self, e: Experiment) -> tuple[Experiment, ...]:
        """Keeps that lost their place beside an experiment, the latest first; also once that is in the store."""
        first = self._baseline.number if self._baseline is not None else 0
        return tuple(self._context.store.experiment(self._context.session_id, n) for n in e.fallen if n > first)

    def commit_of(self, program: int) -> str:
        """The commit of the incumbent or, where it is another one, of the baseline, by the experiment's number."""
        baseline = self._baseline
        return commit_of(baseline if baseline is not None and baseline.number == program else self.incumbent)

    def named(self, program: int | None) -> str:
        """A program that is run beside an experiment, in words; empty for the experiment's own."""
        if program is None:
            return ""
        return f"the {'incumbent' if program == self.incumbent.number else 'baseline'} (experiment {program})"

    @property
    def baseline_value(self) -> float | None:
        """The baseline's metric, the mean of its runs."""
        return self._baseline.decision.value if self._baseline and self._baseline.decision else None

    @property
    def baseline_sigma(self) -> float | None:
        """Standard deviation of the metric between the first runs of the baseline."""
        return self._baseline.decision.sigma if self._baseline and self._baseline.decision else None

    @property
    def baseline_runs(self) -> tuple[Run, ...]:
        """The runs of the segment's baseline that ended well."""
        return self._baseline.good_runs if self._baseline else ()

    @property
    def baseline_commit(self) -> str | None:
        """The commit of the program as it was; None before it has been measured."""
        return self._baseline.commit if self._baseline else None

    @property
    def best(self) -> float | None:
        """The incumbent's metric, estimated anew from all of its runs: what it was kept with was partly luck."""
        if self._incumbent is None or self._incumbent.decision is None:
            return None
        known = self.ledger.values(self._incumbent.number)
        return (
            incumbent_value(self._context.task, self.ledger, self._incumbent)
            if known
            else self._incumbent.decision.value
        )

    @property
    def sigma(self) -> float | None:
        """Standard deviation of the metric between runs of the incumbent, as all repeats together tell it."""
        noise = self.ledger.noise(self._incumbent.number) if self._incumbent else self.ledger.noise()
        return noise.sigma if noise else None

    @property
    def recent(self) -> tuple[Experiment, ...]:
        """The last decided experiments, oldest first."""
        return tuple(self._recent)

    @property
    def top(self) -> tuple[Experiment, ...]:
        """The best decided experiments of the segment, best first."""
        if self._top is None:
            context, maximize = self._context, self._context.task.metric.direction is Direction.MAXIMIZE
            self._top = tuple(context.store.top(context.session_id, self.segment, TOP, maximize))
        return self._top

    def _joins_top(self, value: float) -> bool:
        last = self._top[-1].decision if self._top and len(self._top) == TOP else None
        return last is None or last.value is None or self._context.task.metric.improvement(value, last.value) > 0

    def values_with(self, e: Experiment) -> list[float]:
        """Values of all decided experiments of the segment, and of this one."""
        return [*self._values, *(r.value for r in e.good_runs if r.value is not None)]

    def code(self, commit: str) -> Mapping[str, str]:
        """Text of the editable files at a commit; the last few that were asked for are remembered."""
        if commit not in self._code:
            workspace, editable = self._context.workspace, self._context.task.editable
            self._code[commit] = {path: workspace.read(commit, path) for path in editable}
            while len(self._code) > PROGRAMS:
                del self._code[next(iter(self._code))]
        return self._code[commit]

    def next_parent(self) -> str:
        """The commit that the next experiment is written on: the incumbent, unless parents are selected otherwise."""
        return self.turns.next(self)

    def base(self, e: Experiment) -> str:
        """What an experiment is compared with and would be kept on: the incumbent, whatever it was written against."""
        return e.parent if self._context.task.history == "revert" else self._incumbent_commit

    def compared(self, e: Experiment) -> str:
        """The commit of what an experiment is compared with."""
        return commit_of(self.rival(e)) if e.fallen else self.base(e)

    @property
    def failures(self) -> dict[str, int]:
        """How many decided experiments of the session ended under each label."""
        return dict(self._labels)

    @property
    def streak(self) -> int:
        """How many of the last experiments in a row were not kept."""
        if self._incumbent is None or not self._recent:
            return 0
        return max(0, self._recent[-1].number - self._incumbent.number)

    @property
    def required(self) -> Mapping[str, frozenset[str]]:
        """For each editable file the names that the protected programs take from it."""
        if self._required is None:
            self._required = required_symbols(
                self._context.task, read_sources(self._context.task, self._context.site.pristine)
            )
        return self._required

    def state(self, e: Experiment, repair: Repair | None = None) -> ResearchState:
        """All that a policy is shown, for a proposal or for the repair of one that failed.

        Members of a round are shown what its first was shown.
        """
        turn = self.turns.of(e, self)
        frozen = None if repair is not None else turn.state
        if frozen is not None:
            return replace(frozen, number=e.number, seed=self._context.random_seed(e.number, "policy"))
        state = self._state(e, turn, repair)
        if repair is None:
            self.turns.freeze(e, state)
        return state

    def _state(self, e: Experiment, turn: Turn, repair: Repair | None) -> ResearchState:
        context, store = self._context, self._context.store
        notes = store.unseen_notes(context.session_id)
        self._shown = [note.id for note in notes]
        return ResearchState(
            tag=context.tag,
            number=e.number,
            parent=e.parent,
            task=self.pacing.task(),
            code=self.code(e.parent),
            recent=tuple(self._recent),
            top=self.top,
            own=self._roles.before(turn.role, self._recent[0].number if self._recent else 0),
            baseline=self.baseline_value,
            incumbent_value=self.best,
            sigma=self.sigma,
            notes=tuple(note.text for note in notes),
            diagnostics=self._diagnostics.of(self.recent, self._incumbent),
            role=turn.role,
            seed=context.random_seed(e.number, "policy" if repair is None else f"repair {repair.attempt}"),
            state_id=f"{context.tag}/{e.number}" + (f"/{repair.attempt}" if repair else ""),
            round_id=f"{context.tag}/{turn.first}" + (f"/{e.number}/{repair.attempt}" if repair else ""),
            incumbent=self._incumbent_commit,
            failures=self.failures,
            streak=self.streak,
            memo=context.memo.read(),
            repair=repair,
            redactor=context.redactor,
        )

    # ------------------------------------------------------------------ keeping up
    def write_learnings(self, e: Experiment) -> None:
        """Bring ``autoresearch.md`` up to date after a keep, and now and then."""
        memo = self._context.memo
        kept = _is_keep(e)
        if memo.path is None or not (kept or e.number % LEARNINGS_EVERY == 0):
            return
        failed = memo.failed
        memo.keep_up(self._context.task, self.recent, self.top, self.failures, self.sigma)
        if memo.failed and memo.failed != failed:
            self._context.emit(EventKind.WARNING, f"autoresearch.md is not kept up: {memo.failed}")

    def notes_shown(self, e: Experiment) -> None:
        """The notes of the last state have reached a policy."""
        if self._shown:
            self._context.store.mark_notes_seen(self._context.session_id, self._shown, e.number)
            self._shown = []

    def decided(self, e: Experiment) -> None:
        """A decision is on disk."""
        decision = e.decision
        if decision is None:
            return
        if e.fallen:  # rare, and what was remembered of those that lost their place is wrong now
            self._read()
            return
        self._recent.append(e)
        self._roles.decided(e)
        self._labels[decision.label.value] += 1
        self.ledger.take(samples_of(self._context.task, e.current_runs))
        if decision.value is not None:
            self._values.append(decision.value)
            if self._joins_top(decision.value):
                self._top = None
        if decision.status is Status.KEEP and e.commit is not None:
            self._incumbent, self._incumbent_commit = e, e.commit
            if is_baseline(e):
                self._baseline = e
        self.totals = self._context.store.totals(self._context.session_id)

    def figures(self) -> dict[str, Any]:
        """Figures for displays: best, baseline, σ and counts."""
        return {
            "best": self.best,
            "baseline": self.baseline_value,
            "sigma": self.sigma,
            "experiments": self.experiments,
            "keeps": max(0, self.totals.keeps - self._baselines),
        }

    @property
    def experiments(self) -> int:
        """Decided experiments of the session, baselines not counted."""
        return max(0, self.totals.experiments - self._baselines)

    @property
    def _baselines(self) -> int:
        """How many baselines the session has measured: one for each segment."""
        return self.segment + (0 if self.needs_baseline else 1)


def _is_keep(e: Experiment) -> bool:
    return e.decision is not None and e.decision.status is Status.KEEP


def is_baseline(e: Experiment) -> bool:
    """Whether the experiment measures the program as it is."""
    return e.proposal is not None and e.proposal.policy == BASELINE
