"""The reward of each decided experiment, from what the loop knows: the incumbent's resources and the last diffs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from autoresearchd.domain.experiment import Decision, Experiment
from autoresearchd.evaluator.novelty import novelty
from autoresearchd.evaluator.reward import RewardFormula, resources_saved, reward
from autoresearchd.loop.context import Context
from autoresearchd.loop.standing import RECENT, Standing, is_baseline

MEMORY_METRICS = ("peak_vram_mb", "peak_memory_mb", "peak_rss_mb")


class Rewards:
    """Gives rewards; remembers the last diffs, so that none is read from the store twice."""

    def __init__(self, context: Context, formula: RewardFormula | None = None) -> None:
        self._context = context
        self._formula = formula or RewardFormula()
        self._diffs: deque[tuple[int, str]] | None = None

    def give(self, e: Experiment, decision: Decision, standing: Standing, diff: str | None = None) -> Decision:
        """The decision with its reward, for experiments that somebody proposed.

        diff: that of the proposal as the store has it, where it is known; else it is read.
        """
        if is_baseline(e) or e.proposal is None or standing.needs_baseline:
            return decision
        if diff is None:
            diff = self._context.store.diff(self._context.session_id, e.number)
        earlier = self._earlier(e, standing)
        gain, sure = self._gain(e, decision, standing)
        found = reward(
            decision.label,
            gain,
            standing.sigma,
            standing.best,
            sure=sure,
            saved=resources_saved(resources(e), resources(standing.incumbent)),
            distance=novelty(diff, [text for _, text in earlier]) if diff else 0.0,
            formula=self._formula,
        )
        if diff:
            self._diffs = deque([*earlier, (e.number, diff)], maxlen=RECENT)
        if found is None:
            return decision
        return replace(decision, reward=found.total, reward_parts=found.parts, reward_formula=found.formula)

    def of_fallen(self, decision: Decision) -> Decision:
        """A decision on a keep that lost its place, with its penalty in place of the reward that it had."""
        found = reward(decision.label, None, None, None, formula=self._formula)
        if found is None:
            return decision
        return replace(decision, reward=found.total, reward_parts=found.parts, reward_formula=found.formula)

    def _gain(self, e: Experiment, decision: Decision, standing: Standing) -> tuple[float | None, float | None]:
        """The improvement, and how sure it is; of a member of a round, that over what all of its members were shown."""
        shown = standing.turns.of(e, standing).state
        if shown is None or shown.incumbent == standing.parent or None in (decision.value, shown.incumbent_value):
            return decision.delta, decision.sure
        assert decision.value is not None
        assert shown.incumbent_value is not None
        return self._context.task.metric.improvement(decision.value, shown.incumbent_value), None

    def _earlier(self, e: Experiment, standing: Standing) -> Sequence[tuple[int, str]]:
        """Number and diff of the last experiments before this one."""
        if self._diffs is None:
            store, session_id = self._context.store, self._context.session_id
            found = ((past.number, store.diff(session_id, past.number)) for past in standing.recent)
            self._diffs = deque(((n, diff) for n, diff in found if diff), maxlen=RECENT)
        return [(number, diff) for number, diff in self._diffs if number != e.number]


def resources(e: Experiment) -> dict[str, float]:
    """Seconds and memory of an experiment's own runs, on average."""
    runs = e.good_runs
    if not runs:
        return {}
    found = {"seconds": sum(r.duration_s for r in runs) / len(runs)}
    for name in MEMORY_METRICS:
        values = [r.metrics[name] for r in runs if name in r.metrics]
        if len(values) == len(runs):
            found[name] = sum(values) / len(values)
    return found
