"""Supervised warm-up on answers that were kept: rejection sampling, then likelihood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from autoresearchd.learner.algorithms.ratios import masked_mean
from autoresearchd.learner.algorithms.scoring import Part, Scorer, together
from autoresearchd.learner.algorithms.train_options import TOP
from autoresearchd.learner.data.examples import Example


class SftObjective:
    """Cross-entropy of the completions, each token with the same weight.

    scorer: the model with the examples, all of which are worth imitating. size: of a batch.
    """

    def __init__(self, scorer: Scorer, size: int) -> None:
        self._scorer = scorer
        self._units = together(scorer.examples, range(len(scorer.examples)), size, scorer.model.sharing)
        self._total = 0.0

    @property
    def examples(self) -> Sequence[Example]:
        return self._scorer.examples

    @property
    def units(self) -> Sequence[Sequence[int]]:
        return self._units

    def begin(self, batch: Sequence[int]) -> Mapping[str, float]:
        self._scorer.begin()
        self._total = float(sum(self.examples[place].tokens for place in batch))
        return {}

    def loss(self, part: Sequence[int], *, divergence: bool) -> Part:
        found = self._scorer.policy(part, top=TOP if divergence else 0)
        loss = -masked_mean(found.tokens.logprobs, found.batch.mask, total=self._total)
        return Part(loss, self._scorer.common(part, found, divergence=divergence))

    def drifted(self, figures: Mapping[str, float]) -> bool:
        return False

    def end(self) -> None:
        """Nothing is to be done."""

    def state(self) -> dict[str, Tensor]:
        return self._scorer.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self._scorer.load(state)
