"""Scoring of examples by a model that learns, with what does not change meanwhile remembered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from autoresearchd.learner.examples import Example
from autoresearchd.learner.objectives import Learnable, Sample, Statistics, Who
from autoresearchd.learner.ratios import divergence as divergence_of
from autoresearchd.learner.ratios import masked_mean, with_tail


class NotFinite(ArithmeticError):
    """A model said NaN or infinity: nothing can be learned from that, and the step is left out."""


class Scorer:
    """Scores examples, and remembers what does not change meanwhile.

    That is the base's log-probabilities, for ever, and the policy's at the beginning of an update, until the next.
    """

    def __init__(self, model: Learnable, examples: Sequence[Example], micro: int) -> None:
        self.model, self.examples, self.micro = model, examples, micro
        self._base: dict[int, Tensor] = {}
        self._began: dict[int, Tensor] = {}

    def begin(self) -> None:
        """An update begins: the policy as it is at the next scoring of each example is what it began with."""
        self._began = {}

    def policy(self, part: Sequence[int], *, top: int = 0, values: bool = False) -> Statistics:
        """The policy's statistics of some examples, with gradients.

        Raises:
            NotFinite: they are not finite.
        """
        found = self.model.statistics([self.examples[i].sample for i in part], top=top, values=values)
        finite(found.tokens.logprobs[found.batch.mask])
        if found.values is not None:
            finite(found.values)
        return found

    def began(self, part: Sequence[int], found: Statistics) -> Tensor:
        """The log-probabilities [B, L−1] with which the update began; on the first pass those that were just found."""
        current, mask = found.tokens.logprobs.detach(), found.batch.mask
        for row, place in enumerate(part):
            if place not in self._began:
                self._began[place] = current[row][mask[row]]
        return _placed([self._began[place] for place in part], mask)

    def base(self, part: Sequence[int], found: Statistics) -> Tensor:
        """The base's log-probabilities [B, L−1]; each example is scored once."""
        missing = [place for place in dict.fromkeys(part) if place not in self._base]
        if missing:
            scored = self.model.statistics([self.examples[i].sample for i in missing], who=Who.BASE)
            for row, place in enumerate(missing):
                self._base[place] = scored.tokens.logprobs[row][scored.batch.mask[row]].detach()
        return _placed([self._base[place] for place in part], found.batch.mask).to(found.tokens.logprobs)

    def values(self, prompts: Sequence[Sequence[int]]) -> Tensor | None:
        """The value head's values of states, [N], without a gradient; None where the model has no value head.

        Raises:
            NotFinite: they are not finite.
        """
        # A value stands at the last token of the prompt: any one token will do for the completion that must follow.
        states = list(dict.fromkeys(tuple(prompt) for prompt in prompts))
        samples = [Sample(state, (self.model.padding,)) for state in states]
        found: list[Tensor] = []
        with torch.no_grad():
            for start in range(0, len(samples), self.micro):
                values = self.model.statistics(samples[start : start + self.micro], values=True).values
                if values is None:
                    return None
                found.append(values.detach())
        together = torch.cat(found)
        finite(together)
        places = {state: place for place, state in enumerate(states)}
        return together[[places[tuple(prompt)] for prompt in prompts]]

    def common(self, part: Sequence[int], found: Statistics, *, divergence: bool) -> dict[str, tuple[float, float]]:
        """Figures that all algorithms have: ``entropy``, and ``kl_base`` where it is asked for.

        That is KL(policy ‖ base) at each token, over the policy's likeliest tokens and a bucket of all others. The
        usual estimate k3, from the completions' own tokens, holds for tokens that the policy drew: each stored one that
        it has unlearned would count by the hundred.
        """
        mask, tokens = found.batch.mask, float(found.batch.mask.sum())
        figures = {"entropy": (float(masked_mean(found.tokens.entropy.detach(), mask)), tokens)}
        if divergence:
            figures["kl_base"] = (self._divergence(part, found), tokens)
        return figures

    def _divergence(self, part: Sequence[int], found: Statistics) -> float:
        own, indices, mask = found.tokens.top_logprobs, found.tokens.top_indices, found.batch.mask
        if own is None or indices is None:
            raise ValueError("the divergence from the base is measured on likeliest tokens, which were not asked for")
        samples = [self.examples[place].sample for place in part]
        base = self.model.statistics(samples, who=Who.BASE, at=indices).tokens.top_logprobs
        if base is None:
            raise ValueError("the model told no log-probabilities of the tokens asked for")
        return float(divergence_of(with_tail(own.detach()[mask]), with_tail(base[mask]), 1.0).mean())

    def state(self) -> dict[str, Tensor]:
        """The base's log-probabilities: another grouping into batches would round them differently."""
        return {f"base.{place}": each.cpu() for place, each in self._base.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Put them back."""
        self._base = {
            int(name.removeprefix("base.")): each.to(self.model.device)
            for name, each in state.items()
            if name.startswith("base.")
        }


def finite(values: Tensor) -> None:
    """Refuse NaN and infinity.

    Raises:
        NotFinite: there is one.
    """
    bad = int((~torch.isfinite(values.detach())).sum())
    if bad:
        raise NotFinite(f"{bad} of {values.numel()} numbers of the model are NaN or infinite")


def _placed(rows: Sequence[Tensor], mask: Tensor) -> Tensor:
    """One value for each masked token, row by row, in their places; 0 elsewhere."""
    together = torch.cat(list(rows))
    return together.new_zeros(mask.shape).masked_scatter(mask, together)
