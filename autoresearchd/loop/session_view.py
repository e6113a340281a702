"""What a session has come to: tip, what is believed of it, programs, pace; in memory, so no step reads the past."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TypeVar

from autoresearchd.domain.confirmation import Confirmation, Verdict, ablates
from autoresearchd.domain.errors import StoreError
from autoresearchd.domain.experiment import Experiment, Run
from autoresearchd.domain.labels import Phase
from autoresearchd.domain.task import Direction, Task
from autoresearchd.evaluator.keep.confirm import doubt
from autoresearchd.evaluator.keep.decide import sign_of, step_of, tip_value
from autoresearchd.evaluator.keep.tip_belief import Step, TipBelief, begin, dump, follow, kept_on, load, replay
from autoresearchd.evaluator.rules.run_time import Pace, allowed
from autoresearchd.loop.context import Context
from autoresearchd.loop.messages import ASKED, DOUBT, FAILURES, commit_of, decision_of, is_baseline, is_keep
from autoresearchd.loop.programs import Baseline, Programs

T = TypeVar("T")
RECENT = 32
TOP = 5
CHECKPOINT = 256
"""After so many readings the belief is stored as a whole: a restart replays at most as many."""


class SessionView:
    """Where a session stands: read from the store once, then kept up by ``decided``. Owned by the loop's thread.

    tip_commit: the commit of the tip; belief: of it, None where σ is not known; open_keeps: the chain since the
    confirmed program, oldest first; undecided: after which experiments confirmations decided nothing; tested: after
    which the last was made; looked_after: keeps that ran again because all others failed; extra: runs of confirmations
    that nobody asked for; labels: how many experiments ended under each;
    under_way: gives those that are not settled yet, oldest first.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.under_way: Callable[[], Sequence[Experiment]] = list
        self.programs = Programs(context.workspace, context.task, context.site.pristine)
        self._read()

    def _read(self) -> None:
        task, store = self.context.task, self.context.store
        session = store.session(self.context.tag)
        segment, latest = store.segment(session.id), store.latest(session.id)
        self.segment = segment.number if segment else 0
        self.tip_commit = session.incumbent
        self._recent = self._read_recent()
        self._values = list(store.values(session.id, self.segment))
        self.baseline: Baseline | None = None
        self._tip: Experiment | None = None
        self._confirmed: Experiment | None = None
        self._top: tuple[Experiment, ...] | None = None
        self.totals, self._baselines = store.totals(session.id), store.baselines(session.id)
        self.labels = Counter(store.label_counts(session.id))
        # The baseline is the first kept experiment of the segment; before it there are only baselines that failed.
        first = segment.first if segment else 0
        for number in range(first, latest.number + 1 if latest else first):
            e = store.experiment(session.id, number)
            if is_keep(e):
                self.baseline = Baseline(e, task, store, self.programs)
                self._tip = store.experiment(session.id, max(session.incumbent_experiment, number))
                self._confirmed = store.experiment(session.id, max(session.confirmed_experiment, number))
            if is_keep(e) or not is_baseline(e):
                break
        if self.baseline is None:  # a new one is of what is confirmed
            self.tip_commit = session.confirmed
        self.open_keeps: list[Experiment] = [] if self.baseline is None else [*store.open_keeps(session.id)]
        self._keeps = self._read_keeps()
        past = store.confirmations(session.id, self.segment)
        self.undecided = [c.after for c in past if self._leaves_doubt(c)]
        self._seen_better = {c.experiment for c in past if self._saw_better(c)}
        self.tested = max((c.after for c in past if self._tests_tip(c)), default=-1)
        self.looked_after = {c.experiment for c in past if c.why == FAILURES}
        self.extra = sum(_extra(c) for c in past)
        self._unsaved = 0
        self.belief = self._replay(past)

    def _read_recent(self) -> deque[Experiment]:
        store, session_id = self.context.store, self.context.session_id
        under_way = len(store.unsettled(session_id)) if self.context.slots > 1 else 0
        recent = store.experiments(session_id, last=RECENT + under_way)
        return deque((e for e in recent if e.phase is Phase.DECIDED), maxlen=RECENT)

    def _read_keeps(self) -> list[Experiment]:
        """All of the segment, where an experiment may have begun before one of them; else none."""
        return [*self.context.store.keeps(self.context.session_id, self.segment)] if self._may_lag else []

    @property
    def _may_lag(self) -> bool:
        """Whether the tip may have moved since an experiment was begun: beside it, or earlier in its round."""
        return self.context.slots > 1 or self.context.task.proposing.group > 1

    def _replay(self, past: Sequence[Confirmation]) -> TipBelief | None:
        """What all readings of the segment, and the verdicts between them, lead to believe."""
        task, store, baseline = self.context.task, self.context.store, self.baseline
        if baseline is None:
            return None
        sign, chain, after = sign_of(task.metric), list[int](), float(baseline.number)
        belief = replay([sign * r.value for r in baseline.runs if r.value is not None], ())
        if belief and (saved := self._saved(after)):
            belief, chain, after = saved
        verdicts = deque(c for c in past if c.moved and c.after >= after)
        readings = store.readings(self.context.session_id, self.segment, after)
        self._unsaved = len(readings)
        for number, value, shift, kept in (*readings, (math.inf, 0.0, 0.0, False)):
            while verdicts and verdicts[0].after < number:
                c = verdicts.popleft()
                belief = self._after_verdict(belief, c, chain)
                chain = [n for n in chain if (n <= c.against if c.fell else n > c.experiment)]
            if belief and number < math.inf:
                belief = follow(belief, Step(sign * value + shift, kept))
                chain += [int(number)] if kept else []
        return belief

    def _saved(self, baseline: float) -> tuple[TipBelief, list[int], float] | None:
        """The belief that was stored last in this segment, its chain, and after which experiment."""
        found = self.context.store.belief_state(self.context.session_id)
        if found is None or found[0] <= baseline:
            return None
        try:
            return load(found[1]), [int(n) for n in found[1]["chain"]], found[0]
        except (KeyError, TypeError, ValueError):  # of another version: then all is replayed
            return None

    def _tests_tip(self, c: Confirmation) -> bool:
        return c.verdict is not None and (c.moved or c.why == FAILURES or self._leaves_doubt(c))

    def _saw_better(self, c: Confirmation) -> bool:
        return self._leaves_doubt(c) and c.verdict is not None and (c.verdict.gain or 0.0) > 0

    def _leaves_doubt(self, c: Confirmation) -> bool:
        return c.leaves_doubt(e.number for e in self.open_keeps)

    def _after_verdict(self, belief: TipBelief | None, c: Confirmation, chain: Sequence[int]) -> TipBelief | None:
        """What is believed after a verdict: of the program confirmed, or of the one that the chain fell to.

        chain: numbers of its keeps before it. Where a keep below the tip was confirmed, the tip is believed to be where
        it was, and the rest of its chain would now fall to that.
        """
        if belief is None:
            return None
        if c.why == DOUBT:
            return follow(belief, Step(0.0, back=True))
        if not c.fell and c.experiment not in chain[-1:]:
            return kept_on(belief, sum(n > c.experiment for n in chain))
        values = [r.value for r in c.runs if r.good and (r.of is not None) is c.fell and r.value is not None]
        decided = self.experiment(c.against if c.fell else c.experiment).decision
        value = fmean(values) if values else decided.value if decided is not None else None
        sign = sign_of(self.context.task.metric)
        if belief.exact and len(set(values)) > 1:  # what looked as if it had no noise, has some
            return replace(begin([sign * v for v in values]), counts=belief.counts)
        return follow(belief, Step(sign * (value or 0.0), fell=c.fell, runs=len(values)))

    @property
    def last(self) -> int:
        """Number of the experiment that was decided last; all before it are, as they are in order of number."""
        return self._recent[-1].number if self._recent else -1

    def kept_since(self, e: Experiment) -> list[Experiment]:
        """Keeps that stand and were made after an experiment had begun, oldest first: its parent was the tip then.

        Of a parent that was chosen from the tree it is all that came after that; none, if that is long ago.
        """
        if not self._may_lag:
            return []
        known = (*self._keeps, *self._recent)
        parent = max((k.number for k in known if k.commit == e.parent), default=None)
        if parent is None:
            return []
        return [k for k in self._keeps if k.number > parent and k.number != e.number and k.confirmed is not False]

    @property
    def before_tip(self) -> Experiment:
        """What the tip was kept on."""
        return self.open_keeps[-2] if len(self.open_keeps) > 1 else self.confirmed

    def doubt(self) -> Verdict | None:
        """Why the last keep is to be taken back; None: it is not, and never among reverts, on which programs stand.

        Nor where it was tested and its own runs were the better ones, though they did not decide.
        """
        if not self.open_keeps or self.tip.number in self._seen_better or self.context.task.history == "revert":
            return None
        return doubt(self.tip, self.before_tip, self.belief)

    @property
    def needs_baseline(self) -> bool:
        return self.baseline is None

    @property
    def tip(self) -> Experiment:
        """The experiment that was kept last in this segment and did not fall back."""
        return _measured(self._tip)

    @property
    def confirmed(self) -> Experiment:
        """The experiment whose program the branch has."""
        return _measured(self._confirmed)

    def require_baseline(self) -> Experiment:
        return _measured(self.baseline).experiment

    @property
    def confirmed_commit(self) -> str:
        """Where the branch is."""
        known = self._confirmed
        return commit_of(known) if known else self.context.store.session(self.context.tag).confirmed

    def experiment(self, number: int) -> Experiment:
        return self.context.store.experiment(self.context.session_id, number)

    @property
    def parent(self) -> str:
        """The commit that the next experiment is written on and reverted to."""
        return self.context.workspace.tip() if self.context.task.history == "revert" else self.tip_commit

    def base(self, e: Experiment) -> str:
        """What an experiment would be kept on: the tip, whatever it was written against."""
        return e.parent if self.context.task.history == "revert" else self.tip_commit

    def seed(self, e: Experiment) -> int:
        """The seed of an experiment's next run: one for all of a segment, so that its luck cancels between them.

        Runs of a baseline, which tell σ, have fresh ones, and so have confirmations.
        """
        if self.baseline is None or is_baseline(e):
            return self.context.random_seed(e.number, "run", len({run.seed for run in e.counted_runs}))
        return self.baseline.runs[0].seed

    @property
    def best(self) -> float | None:
        """The tip's metric as it is believed to be: what it was kept with was partly luck."""
        return None if self._tip is None else tip_value(self.context.task, self.belief, self._tip)

    def write_belief(self) -> None:
        """Tell whoever looks at the session what is believed of the tip, since the last experiment or verdict."""
        if self.best is not None and self._recent:
            last, error = self._recent[-1].number, None if self.belief is None else self.belief.error
            after, state = last + 0.5 if self.tested >= last else last, None
            if self.belief is not None and after == last and self._unsaved >= CHECKPOINT:
                state = {**dump(self.belief), "chain": [e.number for e in self.open_keeps]}
            self.context.store.record_belief(self.context.session_id, after, self.best, error, state)
            self._unsaved = self._unsaved if state is None else 0

    @property
    def sigma(self) -> float | None:
        """Standard deviation of the metric between runs of one program."""
        return None if self.belief is None else self.belief.sigma

    @property
    def baseline_runs(self) -> tuple[Run, ...]:
        return self.baseline.runs if self.baseline else ()

    @property
    def pace(self) -> Pace | None:
        """What runs are held to; None until it is measured."""
        return self.baseline.pace if self.baseline else None

    @property
    def run_task(self) -> Task:
        """The task with the time that a run is given in this segment, the same after a restart."""
        return self.baseline.run_task if self.baseline else allowed(self.context.task, ())

    @property
    def shown_task(self) -> Task:
        """The task with what training may take, where that is known from the baseline."""
        task, most = self.context.task, self.pace.most if self.pace else None
        budget = replace(task.execution.budget, most=most)
        return task if most is None else replace(task, execution=replace(task.execution, budget=budget))

    @property
    def recent(self) -> tuple[Experiment, ...]:
        """The last decided experiments, oldest first."""
        return tuple(self._recent)

    @property
    def top(self) -> tuple[Experiment, ...]:
        """The best decided experiments of the segment, best first."""
        if self._top is None:
            context, maximize = self.context, self.context.task.metric.direction is Direction.MAXIMIZE
            self._top = tuple(context.store.top(context.session_id, self.segment, TOP, maximize))
        return self._top

    def values_with(self, e: Experiment) -> list[float]:
        return [*self._values, *(r.value for r in e.good_runs if r.value is not None)]

    @property
    def streak(self) -> int:
        """How many of the last experiments in a row were not kept."""
        return max(0, self._recent[-1].number - self._tip.number) if self._tip and self._recent else 0

    @property
    def experiments(self) -> int:
        """How many were decided, without the baselines."""
        return self.totals.experiments - self._baselines

    def decided(self, e: Experiment) -> None:
        """Take in an experiment whose decision is on disk."""
        decision = decision_of(e)
        self._recent.append(e)
        self.labels[decision.label.value] += 1
        if decision.value is not None:
            self._values.append(decision.value)
            last = self._top[-1].decision if self._top and len(self._top) == TOP else None
            if last is None or last.value is None or self.context.task.metric.better(decision.value, last.value):
                self._top = None
        if is_keep(e) and e.commit is not None:
            self._tip, self.tip_commit = e, e.commit
            self._keeps.append(e)
        if is_baseline(e):
            if is_keep(e):
                self.baseline, self._confirmed = Baseline(e, self.context.task, self.context.store, self.programs), e
                self.belief, self._baselines = self._replay(()), self.context.store.baselines(self.context.session_id)
        elif step := step_of(self.context.task, e):
            self.belief, self._unsaved = self.belief and follow(self.belief, step), self._unsaved + 1
            if step.kept:
                self.open_keeps.append(e)
        self.totals = self.context.store.totals(self.context.session_id)

    def settled(self, c: Confirmation) -> None:
        """Take in a confirmation whose verdict is on disk."""
        self.extra += _extra(c)
        self.tested = max(self.tested, c.after if self._tests_tip(c) else -1)
        if c.why == FAILURES:
            self.looked_after.add(c.experiment)
        if self._leaves_doubt(c):
            self.undecided.append(c.after)
        if self._saw_better(c):
            self._seen_better.add(c.experiment)
        if not c.moved:
            return
        store, session_id = self.context.store, self.context.session_id
        chain = [e.number for e in self.open_keeps]
        self.open_keeps, self._top = [*store.open_keeps(session_id)], None
        self._recent, self._keeps = self._read_recent(), self._read_keeps()
        self.belief = self._after_verdict(self.belief, c, chain)
        if c.fell:
            self._tip = self.experiment(c.against)
            self.tip_commit = commit_of(self._tip)
        else:
            self._confirmed = self.experiment(c.experiment)


def _extra(c: Confirmation) -> int:
    """Runs of a confirmation that is decided, of the session's own share; what a user asks for comes on top."""
    return 0 if c.open or c.why == ASKED or ablates(c.why) else sum(run.counts for run in c.runs)


def _measured(found: T | None) -> T:
    """What is there once a segment has its baseline."""
    if found is None:
        raise StoreError("no baseline has been measured in this segment")
    return found
