"""What an algorithm is to the training loop: batches of examples, and the loss of each part of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from autoresearchd.domain.randomness import derive_seed
from autoresearchd.learner.examples import Example
from autoresearchd.learner.packing import Sharing, cut
from autoresearchd.learner.ratios import RatioFigures


@dataclass(frozen=True, slots=True)
class Part:
    """The loss of a part of a batch, to be minimised; the losses of all parts add up to that of the batch.

    figures: by name, each with its weight in the mean over the parts.
    """

    loss: Tensor
    figures: Mapping[str, tuple[float, float]]


class Objective(Protocol):
    """An algorithm with its examples."""

    @property
    def examples(self) -> Sequence[Example]:
        """What it learns from."""
        ...

    @property
    def units(self) -> Sequence[Sequence[int]]:
        """Examples, by their place, that stay together in a batch."""
        ...

    def begin(self, batch: Sequence[int]) -> Mapping[str, float]:
        """Fix what is constant in the update on a batch, from the policy as it is now; figures on the batch."""
        ...

    def loss(self, part: Sequence[int], *, divergence: bool) -> Part:
        """The loss of a part of that batch; ``divergence``: with the KL divergence from the base among the figures.

        Raises:
            NotFinite: the model said NaN or infinity.
        """
        ...

    def drifted(self, figures: Mapping[str, float]) -> bool:
        """Whether the policy is too far from where the update began, for another step on the same batch."""
        ...

    def end(self) -> None:
        """The policy has been updated on the batch."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What it must know after a restart, between two updates."""
        ...

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Put that back."""
        ...


def batches(units: Sequence[Sequence[int]], size: int, seed: int) -> Iterator[list[int]]:
    """Batches without an end: in each pass over the data every unit once, in another order, in batches of about a size.

    Args:
        units: examples that stay together; at least one.
        size: of a batch; a pass has as few batches as that allows, about equally large.
        seed: the same seed gives the same batches.
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

    Args:
        examples: what the batch is of.
        batch: places of examples.
        size: of a part, at most; where prompts are shared, a part has the answers to one prompt instead, as many as
            have no more tokens, with the prompt once, than so many have with a prompt each.
        sharing: how answers to one prompt share it; None: they do not.
    """
    lengths = {place: len(examples[place].sample.prompt) + examples[place].tokens for place in batch}
    if sharing is None:
        ordered = sorted(batch, key=lambda place: (-lengths[place], place))
        return [ordered[start : start + size] for start in range(0, len(ordered), size)]
    found = []
    for own in alike(examples, batch):
        prompts = [examples[place].sample.prompt for place in own]
        for pack in sharing.packs(prompts, [lengths[place] for place in own]):
            pieces = cut(pack, size * max(pack.lengths))
            found += [(-piece.tokens, sorted(own[row] for row in piece.rows)) for piece in pieces]
    return [part for _, part in sorted(found)]


def alike(examples: Sequence[Example], places: Sequence[int]) -> list[list[int]]:
    """Examples by their prompt: those in one list have the same."""
    found: dict[tuple[int, ...], list[int]] = {}
    for place in places:
        found.setdefault(examples[place].sample.prompt, []).append(place)
    return list(found.values())


def together(examples: Sequence[Example], places: Sequence[int], size: int, sharing: Sharing | None) -> list[list[int]]:
    """Units of examples that need not stay together: those with one prompt do where they share it.

    Args:
        examples: what there is.
        places: those that are learned from.
        size: of a batch: a unit has no more.
        sharing: how answers to one prompt share it; None: they do not, and each is a unit.
    """
    if sharing is None:
        return [[place] for place in places]
    return [whole[at : at + size] for whole in alike(examples, places) for at in range(0, len(whole), size)]


def of_ratios(found: RatioFigures, weight: float) -> dict[str, tuple[float, float]]:
    """Figures on the importance ratios of a part; ``approx_kl`` is from the policy that acted."""
    return {
        "ratio": (found.mean, weight),
        "clipped_low": (found.clipped_low, weight),
        "clipped_high": (found.clipped_high, weight),
        "effective_samples": (found.effective_sample_size, weight),
        "approx_kl": (found.approx_kl, weight),
    }
