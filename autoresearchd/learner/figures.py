"""What a step of training did, in numbers, and what they say of the run: broken, collapsed, or neither."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoresearchd.learner.options import Algo, Collapse
from autoresearchd.learner.updates import Part

PATIENCE = 5
"""So many steps in a row without a usable gradient end a run: a model that has broken does not mend itself."""


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What a step did.

    step: from 1; steps: of the whole run. algo: that was at work, ``sft`` in a warm-up. values: by name, those that the
    algorithm has and that are finite:

    - ``loss``, ``grad_norm`` (before clipping), ``learning_rate``; ``skipped``: 1 where the gradient was not finite and
      nothing was changed; ``cold_start``: 1 where the step was one of a warm-up;
    - ``reward``: mean of the batch; ``advantage``: mean absolute; ``examples``, ``tokens`` (of completions),
      ``seconds`` since the step before, ``tokens_per_s``; ``epoch``: of the batch, from 0;
    - ``entropy``: mean of the tokens'; ``kl_base``: KL(policy ‖ base) for each token, on some steps;
    - ``ratio``, ``clipped_low``, ``clipped_high``, ``clipped_dual``, ``effective_samples``, ``approx_kl`` (from the
      policy that acted), ``kl_update`` (from the one that the update began with): means over the parts of the batch;
    - ``value_loss``, ``value_clipped``, ``explained_variance`` (PPO); ``divergence``, ``tail`` (SDPO);
    - ``round/valid``, ``round/novelty``, ``round/reward``: of all proposals of the round that is learned from (live).
    """

    step: int
    steps: int
    algo: Algo
    values: Mapping[str, float]

    def flat(self) -> dict[str, float]:
        """All numbers by name, the step's own among them."""
        return {"step": float(self.step), **self.values}


class Tally:
    """Figures of the parts of a batch, to be averaged by their weights."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}

    def add(self, part: Part) -> None:
        """Count a part in."""
        for name, (value, weight) in part.figures.items():
            self._sums[name] = self._sums.get(name, 0.0) + value * weight
            self._weights[name] = self._weights.get(name, 0.0) + weight

    def means(self) -> dict[str, float]:
        """Of each figure over all parts that had it."""
        return {name: total / self._weights[name] for name, total in self._sums.items() if self._weights[name]}


def broken(history: Sequence[Mapping[str, float]]) -> str:
    """Why a run cannot go on: its last steps had no gradient that could be used; empty: they had."""
    last = history[-PATIENCE:]
    if len(last) == PATIENCE and all("skipped" in each for each in last):
        return f"the gradients of {PATIENCE} steps in a row were not finite"
    return ""


def collapsed(history: Sequence[Mapping[str, float]], limits: Collapse) -> str:
    """Why the policy counts as collapsed, by the last steps on which each figure was measured; empty: it does not."""
    entropies = _last(history, "entropy", limits.patience)
    if limits.entropy is not None and entropies and max(entropies) < limits.entropy:
        return f"the policy collapsed: its entropy fell to {entropies[0]:.3g} nats (limit {limits.entropy:g})"
    divergences = _last(history, "kl_base", limits.patience)
    if limits.kl is not None and divergences and min(divergences) > limits.kl:
        return (
            f"the policy collapsed: its divergence from the base rose to {divergences[0]:.3g} nats for each token "
            f"(limit {limits.kl:g})"
        )
    return ""


def strayed(history: Sequence[Mapping[str, float]], limits: Collapse) -> bool:
    """Whether the divergence from the base was above its limit when it was last measured.

    It is then measured on each step, so that a collapse is seen in ``patience`` of them: at one measurement in several
    steps, a short run would be over before its guard could speak.
    """
    last = _last(history, "kl_base", 1)
    return limits.kl is not None and bool(last) and last[0] > limits.kl


def _last(history: Sequence[Mapping[str, float]], name: str, count: int) -> list[float]:
    """The last values of a figure, the newest first; none where there are fewer."""
    found: list[float] = []
    for each in reversed(history):
        if name in each:
            found.append(each[name])
            if len(found) == count:
                return found
    return []
