"""Examples in batches, scored by a model that learns; what an algorithm is, and the plainest one: imitation (SFT)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from autoresearchd.domain.randomness import derive_seed
from autoresearchd.learner.algorithms.learnable import Learnable, Sample, Statistics, Who
from autoresearchd.learner.algorithms.ratios import RatioFigures, masked_mean, with_tail
from autoresearchd.learner.algorithms.ratios import divergence as divergence_of
from autoresearchd.learner.algorithms.train_options import TOP
from autoresearchd.learner.data.examples import Example
from autoresearchd.learner.training.prompt_sharing import Sharing, cut


@dataclass(frozen=True, slots=True)
class Part:
    """The loss of a part of a batch, to be minimised; the losses of all parts add up to that of the batch.

    figures: by name, each with its weight in the mean over the parts.
    """

    loss: Tensor
    figures: Mapping[str, tuple[float, float]]


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
    found: dict[tuple[int, ...], list[int]] = {}
    for place in places:
        found.setdefault(examples[place].sample.prompt, []).append(place)
    return list(found.values())


def of_ratios(found: RatioFigures, weight: float) -> dict[str, tuple[float, float]]:
    """Figures on the importance ratios of a part; ``approx_kl`` is from the policy that acted."""
    return {name: (value, weight) for name, value in asdict(found).items()}


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
        """The policy's statistics of some examples, with gradients. Raises NotFinite: they are not finite."""
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

        Raises NotFinite: they are not finite.
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
            own, samples = found.tokens.top_logprobs, [self.examples[place].sample for place in part]
            base = self.model.statistics(samples, who=Who.BASE, at=found.tokens.top_indices).tokens.top_logprobs
            assert own is not None and base is not None
            kl = divergence_of(with_tail(own.detach()[mask]), with_tail(base[mask]), 1.0)
            figures["kl_base"] = (float(kl.mean()), tokens)
        return figures

    def state(self) -> dict[str, Tensor]:
        """The base's log-probabilities: another grouping into batches would round them differently."""
        return {f"base.{place}": each.cpu() for place, each in self._base.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Put them back."""
        names = [name for name in state if name.startswith("base.")]
        self._base = {int(name.removeprefix("base.")): state[name].to(self.model.device) for name in names}


class Objective(ABC):
    """An algorithm with its examples. units: examples, by their place, that stay together in a batch."""

    def __init__(self, scorer: Scorer, units: Sequence[Sequence[int]]) -> None:
        self._scorer, self.units = scorer, units
        self._total = 0.0

    @property
    def examples(self) -> Sequence[Example]:
        """What it learns from."""
        return self._scorer.examples

    def begin(self, batch: Sequence[int]) -> Mapping[str, float]:
        """Fix what is constant in the update on a batch, from the policy as it is now; figures on the batch."""
        self._scorer.begin()
        self._total = float(sum(self.examples[place].tokens for place in batch))
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
        """What it must know after a restart, between two updates."""
        return self._scorer.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Put that back."""
        self._scorer.load(state)


class SftObjective(Objective):
    """Cross-entropy of completions that are worth imitating, each token with the same weight. size: of a batch."""

    def __init__(self, scorer: Scorer, size: int) -> None:
        super().__init__(scorer, together(scorer.examples, range(len(scorer.examples)), size, scorer.model.sharing))

    def loss(self, part: Sequence[int], *, divergence: bool) -> Part:
        found = self._scorer.policy(part, top=TOP if divergence else 0)
        loss = -masked_mean(found.tokens.logprobs, found.batch.mask, total=self._total)
        return Part(loss, self._scorer.common(part, found, divergence=divergence))


def finite(values: Tensor) -> None:
    """Refuse NaN and infinity. Raises NotFinite: there is one."""
    bad = int((~torch.isfinite(values.detach())).sum())
    if bad:
        raise NotFinite(f"{bad} of {values.numel()} numbers of the model are NaN or infinite")


def _placed(rows: Sequence[Tensor], mask: Tensor) -> Tensor:
    """One value for each masked token, row by row, in their places; 0 elsewhere."""
    together = torch.cat(list(rows))
    return together.new_zeros(mask.shape).masked_scatter(mask, together)
