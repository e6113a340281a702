"""Supervised warm-up on answers that were kept: rejection sampling, then likelihood."""

from __future__ import annotations

from collections.abc import Sequence

from autoresearchd.learner.algorithms.ratios import masked_mean
from autoresearchd.learner.algorithms.scoring import Objective, Part, Scorer, together
from autoresearchd.learner.algorithms.train_options import TOP


class SftObjective(Objective):
    """Cross-entropy of the completions, each token with the same weight.

    scorer: the model with the examples, all of which are worth imitating. size: of a batch.
    """

    def __init__(self, scorer: Scorer, size: int) -> None:
        super().__init__(scorer, together(scorer.examples, range(len(scorer.examples)), size, scorer.model.sharing))

    def loss(self, part: Sequence[int], *, divergence: bool) -> Part:
        found = self._scorer.policy(part, top=TOP if divergence else 0)
        loss = -masked_mean(found.tokens.logprobs, found.batch.mask, total=self._total)
        return Part(loss, self._scorer.common(part, found, divergence=divergence))
