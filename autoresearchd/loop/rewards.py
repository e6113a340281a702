"""The reward of each decided experiment, from what the loop knows: the incumbent's resources and the last diffs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from autoresearchd.domain.experiment import Decision, Experiment
from autoresearchd.evaluator.reward import Reward, RewardFormula, novelty, resources_saved, reward
from autoresearchd.loop.messages import is_baseline
from autoresearchd.loop.proposing.build_state import Turns
from autoresearchd.loop.session_view import RECENT, SessionView

MEMORY_METRICS = ("peak_vram_mb", "peak_memory_mb", "peak_rss_mb")


class Rewards:
    """Gives rewards; remembers the last diffs, so that none is read from the store twice."""

    def __init__(self, view: SessionView, turns: Turns) -> None:
        self._view, self._turns, self._context = view, turns, view.context
        self._formula = RewardFormula()
        self._diffs: deque[tuple[int, str]] | None = None

    def with_reward(self, e: Experiment, decision: Decision) -> Decision:
        """The decision with its reward, for experiments that somebody proposed."""
        view = self._view
        if is_baseline(e) or e.proposal is None or view.needs_baseline:
            return decision
        diff = self._context.store.diff(self._context.session_id, e.number)
        earlier = self._earlier(e)
        gain, sure = self._gain(e, decision)
        earned = reward(
            decision.label,
            gain,
            view.sigma,
            view.best,
            sure=sure,
            saved=resources_saved(resources(e), resources(view.tip)),
            distance=novelty(diff, [text for _, text in earlier]) if diff else 0.0,
            formula=self._formula,
        )
        if diff:
            self._diffs = deque([*earlier, (e.number, diff)], maxlen=RECENT)
        return _with(decision, earned)

    def with_penalty(self, decision: Decision) -> Decision:
        """A decision on a keep that lost its place, with its penalty in place of the reward that it had."""
        return _with(decision, reward(decision.label, None, None, None, formula=self._formula))

    def _gain(self, e: Experiment, decision: Decision) -> tuple[float | None, float | None]:
        """The improvement, and how sure it is; of a member of a round, that over what all of its members were shown."""
        shown = self._turns.turn_of(e).state
        if shown is None or shown.incumbent == self._view.parent or None in (decision.value, shown.incumbent_value):
            return decision.delta, decision.sure
        assert decision.value is not None
        assert shown.incumbent_value is not None
        return self._context.task.metric.improvement(decision.value, shown.incumbent_value), None

    def _earlier(self, e: Experiment) -> Sequence[tuple[int, str]]:
        if self._diffs is None:
            store, session_id = self._context.store, self._context.session_id
            found = ((past.number, store.diff(session_id, past.number)) for past in self._view.recent)
            self._diffs = deque(((n, diff) for n, diff in found if diff), maxlen=RECENT)
        return [(number, diff) for number, diff in self._diffs if number != e.number]


def _with(decision: Decision, earned: Reward | None) -> Decision:
    if earned is None:
        return decision
    return replace(decision, reward=earned.total, reward_parts=earned.parts, reward_formula=earned.formula)


def resources(e: Experiment) -> dict[str, float]:
    """Seconds and memory of an experiment's own runs, on average."""
    runs = e.good_runs
    if not runs:
        return {}
    known = [name for name in MEMORY_METRICS if all(name in r.metrics for r in runs)]
    memory = {name: sum(r.metrics[name] for r in runs) / len(runs) for name in known}
    return {"seconds": sum(r.duration_s for r in runs) / len(runs), **memory}
