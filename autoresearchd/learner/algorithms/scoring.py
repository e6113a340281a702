"""Examples in batches, scored by a model that learns; what an algorithm is, and the plainest one: imitation (SFT)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from autoresearchd.domain.randomness import derive_seed
from autoresearchd.learner.algorithms.learnable import Learnable, Sample, Statistics, Who
from autoresearchd.learner.algorithms.ratios import Figures, Part, masked_mean, with_tail
from autoresearchd.learner.algorithms.ratios import divergence as divergence_of
from autoresearchd.learner.algorithms.train_options import TOP, TrainOptions
from autoresearchd.learner.data.examples import Example
from autoresearchd.learner.training.prompt_sharing import Sharing, cut


def batches(units: Sequence[Sequence[int]], size: int, seed: int) -> Iterator[list[int]]:
    """Batches without an end: in each pass every unit (examples that stay together) once, in another order.

    A pass has as few batches as ``size`` allows, about equally large.
    """
    total = sum(map(len, units))
    count = -(-total // size)
    number = 0
    while True:
        generator = torch.Generator().manual_seed(derive_seed(seed, number, "order of the examples"))
        parted: list[list[int]] = [[] for _ in range(count)]
        start = 0
        for place in torch.randperm(len(units), generator=generator).tolist():
            parted[start * count // total].extend(units[place])
            start += len(units[place])
        yield from (batch for batch in parted if batch)
        number += 1


def parts(
    examples: Sequence[Example], batch: Sequence[int], size: int, sharing: Sharing | None = None
) -> list[list[int]]:
    """A batch in parts, the longest first: little padding, and a lack of memory shows at once.

    size: examples of a part, at most; where prompts are shared, a part has the answers to one prompt instead, as many
    as have no more tokens, with the prompt once, than so many have with a prompt each.
    """
    lengths = {place: len(examples[place].sample.prompt) + examples[place].tokens for place in batch}
    if sharing is None:
        ordered = sorted(batch, key=lambda place: (-lengths[place], place))
        return [ordered[start : start + size] for start in range(0, len(ordered), size)]
    found = []
    for own in _alike(examples, batch):
        prompts = [examples[place].sample.prompt for place in own]
        for pack in sharing.packs(prompts, [lengths[place] for place in own]):
            pieces = cut(pack, size * max(pack.lengths))
            found += [(-piece.tokens, sorted(own[row] for row in piece.rows)) for piece in pieces]
    return [part for _, part in sorted(found)]


def together(examples: Sequence[Example], places: Sequence[int], size: int, sharing: Sharing | None) -> list[list[int]]:
    """Units of at most ``size`` examples that need not stay together: those with one prompt do where they share it."""
    if sharing is None:
        return [[place] for place in places]
    return [whole[at : at + size] for whole in _alike(examples, places) for at in range(0, len(whole), size)]


def _alike(examples: Sequence[Example], places: Sequence[int]) -> list[list[int]]:
    """Examples by their prompt: those in one list have the same."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for place in places:
        alike.setdefault(examples[place].sample.prompt, []).append(place)
    return list(alike.values())


class NotFinite(ArithmeticError):
    """A model said NaN or infinity: nothing can be learned from that, and the step is left out."""


class Objective(ABC):
    """An algorithm with its examples, which it scores by a model; what does not change meanwhile is scored once.

    That is the base's log-probabilities, for ever, and the policy's at the beginning of an update, until the next.

    units: examples, by their place, that stay together in a batch. total: what the losses of a batch are divided by.
    """

    def __init__(
        self, model: Learnable, examples: Sequence[Example], options: TrainOptions, units: Sequence[Sequence[int]]
    ) -> None:
        self.model, self.examples, self.options, self.units = model, examples, options, units
        self.total = 0.0
        self._base: dict[int, Tensor] = {}
        self._began: dict[int, Tensor] = {}

    def begin(self, batch: Sequence[int]) -> Mapping[str, float]:
        """Fix what is constant in the update on a batch, from the policy as it is now; figures on the batch."""
        self._began = {}
        self.total = float(sum(self.examples[place].tokens for place in batch))
        return {}

    @abstractmethod
    def loss(self, part: Sequence[int], *, divergence: bool) -> Part:
        """The loss of a part of that batch; ``divergence``: with the KL divergence from the base among the figures.

        Raises NotFinite: the model said NaN or infinity.
        """

    def drifted(self, figures: Mapping[str, float]) -> bool:
        """Whether the policy is too far from where the update began, for another step on the same batch."""
        return False

    def end(self) -> None:  # noqa: B027
        """The policy has been updated on the batch."""

    def state(self) -> dict[str, Tensor]:
        """What it must know after a restart, between two updates.

        Of the base's log-probabilities another grouping into batches would round them differently.
        """
        return {f"base.{place}": each.cpu() for place, each in self._base.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Put that back."""
        self._base = {int(name): each.to(self.model.device) for name, each in named(state, "base.").items()}

    # -- scores
    def policy(
        self, part: Sequence[int], *, divergence: bool = False, top: int = 0, values: bool = False
    ) -> Statistics:
        """The policy's statistics of some examples, with gradients. Raises NotFinite: they are not finite.

        divergence: whether ``common`` will be asked for it.
        """
        samples = [self.examples[place].sample for place in part]
        said = self.model.statistics(samples, top=top or (TOP if divergence else 0), values=values)
        finite(said.logprobs[said.batch.mask])
        if said.values is not None:
            finite(said.values)
        return said

    def began(self, part: Sequence[int], said: Statistics) -> Tensor:
        """The log-probabilities [B, L−1] with which the update began; on the first pass those that were just found."""
        current, mask = said.logprobs.detach(), said.batch.mask
        for row, place in enumerate(part):
            if place not in self._began:
                self._began[place] = current[row][mask[row]]
        return _placed([self._began[place] for place in part], mask)

    def base(self, part: Sequence[int], said: Statistics) -> Tensor:
        """The base's log-probabilities [B, L−1]; each example is scored once."""
        missing = [place for place in dict.fromkeys(part) if place not in self._base]
        if missing:
            scored = self.model.statistics([self.examples[i].sample for i in missing], who=Who.BASE)
            for row, place in enumerate(missing):
                self._base[place] = scored.logprobs[row][scored.batch.mask[row]].detach()
        return _placed([self._base[place] for place in part], said.batch.mask).to(said.logprobs)

    def values(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """The value head's values of states, [N], without a gradient. Raises NotFinite: they are not finite."""
        # A value stands at the last token of the prompt: any one token will do for the completion that must follow.
        states = list(dict.fromkeys(tuple(prompt) for prompt in prompts))
        samples, micro = [Sample(state, (self.model.padding,)) for state in states], self.options.micro
        scored: list[Tensor] = []
        with torch.no_grad():
            for start in range(0, len(samples), micro):
                values = self.model.statistics(samples[start : start + micro], values=True).values
                assert values is not None
                scored.append(values.detach())
        together = torch.cat(scored)
        finite(together)
        places = {state: place for place, state in enumerate(states)}
        return together[[places[tuple(prompt)] for prompt in prompts]]

    def common(self, part: Sequence[int], said: Statistics, *, divergence: bool) -> Figures:
        """Figures that all algorithms have: ``entropy``, and ``kl_base`` where it is asked for.

        That is KL(policy ‖ base) at each token, over the policy's likeliest tokens and a bucket of all others. The
        usual estimate k3, from the completions' own tokens, holds for tokens that the policy drew: each stored one that
        it has unlearned would count by the hundred.
        """
        mask, tokens = said.batch.mask, float(said.batch.mask.sum())
        figures = {"entropy": (float(masked_mean(said.entropy.detach(), mask)), tokens)}
        if divergence:
            own, samples = said.top_logprobs, [self.examples[place].sample for place in part]
            base = self.model.statistics(samples, who=Who.BASE, at=said.top_indices).top_logprobs
            assert own is not None and base is not None
            kl = divergence_of(with_tail(own.detach()[mask]), with_tail(base[mask]), 1.0)
            figures["kl_base"] = (float(kl.mean()), tokens)
        return figures


class SftObjective(Objective):
    """Cross-entropy of completions that are worth imitating, each token with the same weight."""

    def __init__(self, model: Learnable, examples: Sequence[Example], options: TrainOptions) -> None:
        units = together(examples, range(len(examples)), options.batch, model.sharing)
        super().__init__(model, examples, options, units)

    def loss(self, part: Sequence[int], *, divergence: bool) -> Part:
        said = self.policy(part, divergence=divergence)
        loss = -masked_mean(said.logprobs, said.batch.mask, total=self.total)
        return Part(loss, self.common(part, said, divergence=divergence))


def finite(values: Tensor) -> None:
    """Refuse NaN and infinity. Raises NotFinite: there is one."""
    bad = int((~torch.isfinite(values.detach())).sum())
    if bad:
        raise NotFinite(f"{bad} of {values.numel()} numbers of the model are NaN or infinite")


def named(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """What of a state begins with a prefix, by the names without it."""
    return {name.removeprefix(prefix): each for name, each in state.items() if name.startswith(prefix)}


def _placed(rows: Sequence[Tensor], mask: Tensor) -> Tensor:
    """One value for each masked token, row by row, in their places; 0 elsewhere."""
    together = torch.cat(list(rows))
    return together.new_zeros(mask.shape).masked_scatter(mask, together)
