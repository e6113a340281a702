"""Held-out states as they were: what was shown, the code at the parent, what had been tried by then, and what is legal.

All of it comes out of the stores and the repositories of the sessions; no experiment, ref or commit is written. A
session that cannot be opened or read is left out, with the reason: others can still be asked about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

from autoresearchd import keys
from autoresearchd.config import parse_task
from autoresearchd.domain.errors import (
    AutoresearchdError,
    BaselineError,
    EnvironmentFailure,
    MissingCapability,
    RepositoryError,
    StoreError,
    UsageError,
)
from autoresearchd.domain.experiment import Experiment, RunResult, Session
from autoresearchd.domain.labels import Phase
from autoresearchd.domain.ports import ResearchState
from autoresearchd.domain.redaction import secrets_of_environment
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.keep.decide import belief_of
from autoresearchd.evaluator.keep.tip_belief import TipBelief
from autoresearchd.evaluator.measure.log_text import shorten
from autoresearchd.evaluator.rules.run_time import Pace, overrun, pace_of
from autoresearchd.learner.data.read_sessions import ReadSession
from autoresearchd.learner.data.trajectories import Trajectory, grouped
from autoresearchd.loop.messages import is_keep
from autoresearchd.loop.programs import Baseline, Programs
from autoresearchd.loop.proposing.proposals import EditCheck
from autoresearchd.loop.session_view import RECENT
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.shared import where
from autoresearchd.workspace import layout
from autoresearchd.workspace.git import open_workspace, setup_dir

UNUSABLE = (StoreError, UsageError, MissingCapability, BaselineError, OSError)
"""What a session raises that cannot be used: it is damaged or gone, another version wrote it, its task does not run."""
_UNREADABLE = (*UNUSABLE, EnvironmentFailure)
"""Where it is only read, a fault of its disk or its database server is its own as well."""
_PROGRAMS = 64  # how many programs of a session are remembered
_MAX_REASON = 200


@dataclass(frozen=True, slots=True)
class HeldOutState:
    """A state that was not learned from, as a policy was shown it. key: names it among all.

    number: of the first experiment that was proposed at it. parent, code: what edits are made on. earlier: last diffs.
    """

    key: str
    session: str
    number: int
    parent: str
    messages: tuple[Mapping[str, Any], ...]
    code: Mapping[str, str]
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gathered:
    """Held-out states, and how many groups of trajectories give none, by the reason."""

    states: tuple[HeldOutState, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


class Ground:
    """One session, as far as a proposal for it can be judged. foreign: it is of another repository than the learner."""

    def __init__(self, root: Path, store: SqlStore, session: Session, *, foreign: bool = False) -> None:
        self.session, self.store, self.foreign, self.executor = session, store, foreign, session.executor
        self.task: Task = parse_task(session.task_json)
        self.folder = root / session.folder
        self.workspace = open_workspace(root, session.tag, self.task, self.folder)
        self.redactor = keys.redactor(folder=root).with_values(secrets_of_environment(self.task.execution.env))
        self.pristine = self.workspace.pristine(session.base_commit)
        self.setup = setup_dir(root, self.workspace, session.base_commit, self.task)
        self.scratch: Path = layout.state_dir(root) / "judging" / session.tag
        self._check = EditCheck(self.task, self.store, session.id, self.pristine)
        self.programs = Programs(self.workspace, self.task, self.pristine, _PROGRAMS)
        self._diff = cache(partial(self.store.diff, session.id))
        self.baseline, self.belief = cache(self._baseline), cache(self._belief)  # of a segment

    @cached_property
    def experiments(self) -> Mapping[int, Experiment]:
        """The decided experiments by number, oldest first."""
        every = self.store.experiments(self.session.id)
        return {e.number: e for e in every if e.phase is Phase.DECIDED and e.decision is not None}

    @cached_property
    def _rounds(self) -> Mapping[str, int]:
        """Number of the first experiment of each round."""
        newest_first = reversed(list(self.experiments.values()))
        return {e.proposal.round_id: e.number for e in newest_first if e.proposal and e.proposal.round_id}

    def _kept(self, segment: int) -> list[Experiment]:
        """Those that were kept in a segment; StoreError where not even the baseline was."""
        kept = [e for e in self.experiments.values() if is_keep(e) and e.segment == segment and e.commit]
        if not kept:
            raise StoreError(f"segment {segment} of session {self.session.tag} has no baseline")
        return kept

    def incumbent(self, number: int) -> Experiment:
        """The tip before an experiment, in its segment; StoreError where there was no baseline yet."""
        falls = [c for c in self.store.confirmations(self.session.id) if c.fell and c.after < number]
        kept = [e for e in self._kept(self.experiments[number].segment) if e.number < number]
        before = [e for e in kept if not any(c.against < e.number <= c.experiment for c in falls)]
        if not before:
            raise StoreError(f"experiment {number} of session {self.session.tag} has no baseline before it")
        return before[-1]

    def _baseline(self, segment: int) -> Baseline:
        """The first that was kept in a segment: the program as it was."""
        return Baseline(self._kept(segment)[0], self.task, self.store, self.programs)

    def _belief(self, segment: int) -> TipBelief | None:
        """What a segment has taught of noise and of edits."""
        first = self.baseline(segment).experiment
        rest = (e for e in self.experiments.values() if e.segment == segment and e.number > first.number)
        return belief_of(self.task, first, rest)

    def pace(self, segment: int, beside: RunResult) -> Pace | None:
        """What runs are held to: the baseline's pace as in the loop, or that of a run of the best that is made beside.

        That one counts where it does not keep to the baseline's pace itself: this is a slower machine then.
        """
        baseline = self.baseline(segment)
        if baseline.pace is not None and not overrun(self.task, beside, baseline.pace):
            return baseline.pace
        return pace_of(self.task, baseline.texts, beside.stages)

    def state(self, members: Sequence[Trajectory], key: str) -> HeldOutState | str:
        """The state that trajectories of one group answered, or why it cannot be asked about again, in words."""
        first = members[0]
        e = self.experiments.get(first.number)
        if e is None:
            return "its experiment is not there any more"
        if first.attempt or first.index:
            return "it asks to fix or to repeat an answer"
        began = self._rounds.get(e.proposal.round_id, e.number) if e.proposal is not None else e.number
        try:
            self.programs.code(self.baseline(self.incumbent(began).segment).experiment.commit or "")
            code = self.programs.code(e.parent)
        except StoreError:
            return "there is no baseline to compare with"
        except RepositoryError:
            return "the commit that it was made on cannot be read"
        # The diffs of the last experiments before it, as the loop compares with them.
        diffs = (self._diff(n) for n in reversed(list(self.experiments)) if n < began)
        earlier = tuple(islice(filter(None, diffs), RECENT))[::-1]
        return HeldOutState(key, first.session, began, e.parent, first.messages, code, earlier)

    def legal(self, state: HeldOutState, files: Mapping[str, str]) -> None:
        """Let the changed files of an edit pass, or raise PolicyError, as before a run."""
        tag, redactor = self.session.tag, self.redactor
        seen = ResearchState(tag, state.number, state.parent, self.task, state.code, redactor=redactor)
        self._check.legal(seen, files)

    def was_tried(self, state: HeldOutState, program: str) -> bool:
        """Whether an experiment before the state had this program, in the same segment."""
        segment = self.experiments[state.number].segment
        twin = self.store.find_duplicate(self.session.id, f"{segment}:{program}")
        return twin is not None and twin < state.number


class HeldOut:
    """The sessions that held-out states are of, by name. lost: those that cannot be used, with the reason in words."""

    def __init__(self) -> None:
        self.grounds: dict[str, Ground] = {}
        self.lost: dict[str, str] = {}

    def ground(self, session: str) -> Ground:
        """The session of that name; UsageError where it is not open."""
        if session not in self.grounds:
            what = f"session {session} is not open, so nothing can be judged for it"
            raise UsageError(what, hint="name its folder with --from")
        return self.grounds[session]

    def states(self, trajectories: Iterable[Trajectory], *, most: int | None = None) -> Gathered:
        """One state for each group of trajectories that was asked afresh; at most so many, evenly over time."""
        found: list[HeldOutState] = []
        left_out: Counter[str] = Counter()
        for (session, group), members in grouped(trajectories).items():
            ground = self.grounds.get(session)
            if ground is None:
                left_out[unusable(session, self.lost.get(session, "it is not open"))] += 1
            elif ground.session.policy.removeprefix("hybrid:").partition(":")[0] == "agent":
                left_out["an agent was asked, whose answers are turns"] += 1
            else:
                try:
                    state = ground.state(members, f"{session}/{group}")
                except _UNREADABLE as error:
                    state = unusable(session, reason_of(error))
                if isinstance(state, str):
                    left_out[state] += 1
                else:
                    found.append(state)
        if most is not None and len(found) > most:
            left_out["enough others are asked about"] += len(found) - most
            found = [found[i * len(found) // most] for i in range(most)]
        return Gathered(tuple(found), dict(left_out))


@contextmanager
def opened(sessions: Iterable[ReadSession], names: Iterable[str], own: SqlStore | None = None) -> Iterator[HeldOut]:
    """The sessions of these names, with their stores and repositories, until the end; foreign ones are not upgraded.

    own: the store of those that are not foreign.
    """
    wanted, held, stores = set(names), HeldOut(), dict[Path, SqlStore]()
    with ExitStack() as stack:
        for each in sessions:
            if each.name not in wanted:
                continue
            try:
                store = None if each.foreign else own
                if store is None and each.root not in stores:
                    place = where(layout.database_path(each.root))
                    stores[each.root] = stack.enter_context(SqlStore.open_readonly(place))
                store = store or stores[each.root]
                ground = Ground(each.root, store, store.session(each.tag), foreign=each.foreign)
            except _UNREADABLE as error:
                held.lost[each.name] = reason_of(error)
            except KeyError:
                held.lost[each.name] = "it is not in its database any more"
            else:
                stack.callback(ground.workspace.close)
                held.grounds[each.name] = ground
        yield held


def reason_of(error: Exception) -> str:
    """Why a session cannot be used, on one line."""
    return shorten(error.what if isinstance(error, AutoresearchdError) else str(error), _MAX_REASON)


def unusable(session: str, why: str) -> str:
    """Why a state is left out whose session cannot be used."""
    return f"its session {shorten(session, _MAX_REASON)} cannot be used: {why}"
