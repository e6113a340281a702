"""What the algorithms share: batches, scores, ratios and divergences; and the plainest of them: imitation (SFT).

Shapes: B completions, padded to T tokens; ``mask`` [B, T] is True on the tokens that are learned from. What stands
elsewhere, NaN included, changes neither a loss nor a gradient.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from autoresearchd.domain.randomness import derive_seed
from autoresearchd.learner.algorithms.learnable import Learnable, Sample, Statistics, Who, spread
from autoresearchd.learner.algorithms.train_options import TOP, Level, Mean, TrainOptions
from autoresearchd.learner.data.examples import Example
from autoresearchd.learner.training.prompt_sharing import Sharing, cut

LOG_LIMIT = 20.0
"""Log-ratios are cut to ± this before they are exponentiated: no ratio overflows; beyond it no gradient flows."""

CAP = 2.0
"""Importance weights are cut to this: a few stale tokens do not outweigh all others."""

Figures = dict[str, tuple[float, float]]
"""By name, each with its weight in the mean over the parts of a batch."""


class Part(NamedTuple):
    """The loss of a part of a batch, to be minimised; the losses of all parts add up to that of the batch."""

    loss: Tensor
    figures: Figures


def log_ratios(new: Tensor, old: Tensor, mask: Tensor, level: Level) -> Tensor:
    """Log-ratios log π_new − log π_old at a level, [B, T], cut to ±LOG_LIMIT; a token has what its completion has."""
    each = torch.where(mask, new, 0.0) - torch.where(mask, old, 0.0)
    if level is not Level.TOKEN:
        whole = each.sum(dim=-1, keepdim=True)
        if level is Level.SEQUENCE:
            whole = whole / mask.sum(dim=-1, keepdim=True).clamp(min=1)
        each = whole.expand(mask.shape)
    return each.clamp(-LOG_LIMIT, LOG_LIMIT)


def truncated_weights(proximal: Tensor, behaviour: Tensor, mask: Tensor, level: Level) -> Tensor:
    """min(π_proximal/π_behaviour, CAP) of each token, detached: stale completions do not count as fresh.

    Truncated importance sampling (Ionides 2008), here beside a ratio that is clipped around the policy with which the
    update began (the decoupled objective of Hilton et al. 2022, arXiv:2110.00641).
    """
    return log_ratios(proximal, behaviour, mask, level).exp().clamp(max=CAP).detach()


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, mask: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """−min(r·A, clip(r, 1−ε_low, 1+ε_high)·A), and for A < 0 at most −c·A; where it was clipped: low, high, dual.

    PPO (Schulman et al. 2017, arXiv:1707.06347, Eq. 7) with the asymmetric range of DAPO (Yu et al. 2025,
    arXiv:2503.14476, §3.1) and the dual clip (Ye et al. 2020, arXiv:1912.09729): without c a single token that the
    policy has made likely, and that turned out badly, has an unbounded loss.

    ratio: [B, T]. advantages: of each completion, [B], constant. dual_clip: c > 1, None for none.
    """
    advantages = torch.where(mask, advantages.detach().unsqueeze(-1), 0.0)
    gain = torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)
    dual = torch.zeros_like(ratio, dtype=torch.bool)
    if dual_clip is not None:
        floor = dual_clip * advantages
        dual = (advantages < 0) & (gain < floor)
        gain = torch.where(dual, floor, gain)
    low = (advantages < 0) & (ratio < 1.0 - clip_low)
    high = (advantages > 0) & (ratio > 1.0 + clip_high)
    return -gain, low, high, dual


def masked_mean(values: Tensor, mask: Tensor, how: Mean = Mean.TOKENS, *, total: float | None = None) -> Tensor:
    """One number of a value for each token. total: tokens or completions of the batch where this is a part of it."""
    kept = torch.where(mask, values, 0.0)
    if how is Mean.TOKENS:
        return kept.sum() / (mask.sum() if total is None else total)
    counts = mask.sum(dim=-1)
    return (kept.sum(dim=-1) / counts.clamp(min=1)).sum() / ((counts > 0).sum() if total is None else total)


def share(where: Tensor, mask: Tensor) -> float:
    """Share of the tokens of the mask that a condition holds for."""
    return float((where & mask).sum() / mask.sum())


def counted(mask: Tensor, level: Level) -> Tensor:
    """Where a ratio counts: at each token, or once for a completion."""
    return mask if level is Level.TOKEN else mask & (mask.cumsum(dim=-1) == 1)


def k3(logprobs: Tensor, reference: Tensor, weight: Tensor) -> Tensor:
    """The estimate k3 of KL(policy ‖ reference) of each token drawn from the policy: (r − 1) − log r, r = π_ref/π.

    Schulman, "Approximating KL divergence" (2020); GRPO (Shao et al. 2024, arXiv:2402.03300), Eq. 4. Unbiased, never
    negative, of low variance. As a term of a loss its expected gradient is that of KL(reference ‖ policy), which pulls
    to the same place by another way (Tang and Munos 2025).

    weight: logarithm of what it is multiplied by, in one exponent with r: where the policy has unlearned a token, r
    alone grows without bound. The exponent is cut to LOG_LIMIT.
    """
    difference = reference - logprobs
    return (weight + difference).clamp(max=LOG_LIMIT).exp() - weight.exp() * (1.0 + difference)


def estimated_kl(new: Tensor, old: Tensor, mask: Tensor, level: Level) -> float:
    """The estimate k3 of KL(old ‖ new), for each token or each completion as the ratio is."""
    each = log_ratios(new.detach(), old, mask, level)[counted(mask, level)].double()
    return float((torch.expm1(each) - each).mean())


def ratio_figures(
    ratio: Tensor, low: Tensor, high: Tensor, new: Tensor, behaviour: Tensor, mask: Tensor, level: Level
) -> Figures:
    """How far the policy is from the one that acted.

    ``ratio``: mean of what is clipped [B, T]. ``clipped_low``, ``clipped_high``: share of it beyond the range, with an
    advantage that would push it further. ``effective_samples``: (Σw)²/(n·Σw²) of the ratios to the behaviour policy
    (Kish 1965), 1: as good as fresh samples. ``approx_kl``: k3 of KL(behaviour ‖ policy).
    """
    where = counted(mask, level)
    weights = log_ratios(new.detach(), behaviour, mask, level)[where].double().exp()
    found = {
        "ratio": float(ratio.detach()[where].double().mean()),
        "clipped_low": share(low, where),
        "clipped_high": share(high, where),
        "effective_samples": float(weights.sum().square() / (weights.numel() * weights.square().sum())),
        "approx_kl": estimated_kl(new, behaviour, mask, level),
    }
    return {name: (value, float(where.sum())) for name, value in found.items()}


def with_tail(top: Tensor) -> Tensor:
    """Log-probabilities [..., k] with the bucket of all other tokens beside them, [..., k + 1]: log(1 − Σp).

    As log(−expm1(logsumexp)), which keeps its digits where Σp is near 1. Where rounding has made the sum 1 or more, the
    bucket holds the smallest probability that the number type tells from nothing beside 1.
    """
    together = torch.logsumexp(top, dim=-1, keepdim=True).clamp(max=-torch.finfo(top.dtype).eps)
    return torch.cat([top, torch.log(-torch.expm1(together))], dim=-1)


def divergence_of(student: Tensor, teacher: Tensor, alpha: float) -> Tensor:
    """Divergence of two distributions given as log-probabilities [..., n]; ``alpha`` as in the options.

    With M = (1 − α)·S + α·T it is (1 − α)·KL(S ‖ M) + α·KL(T ‖ M) between the ends. That vanishes towards both of them:
    0 and 1 are not its limits, but the two KL divergences.
    """
    if alpha == 0:
        return _kl(teacher, student)
    if alpha == 1:
        return _kl(student, teacher)
    mixture = torch.logaddexp(student + math.log1p(-alpha), teacher + math.log(alpha))
    return (1 - alpha) * _kl(student, mixture) + alpha * _kl(teacher, mixture)


def _kl(one: Tensor, other: Tensor) -> Tensor:
    return (one.exp() * (one - other)).sum(dim=-1)


# ---------------------------------------------------------------------- batches and scores
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

    size: examples of a part, at most; where prompts are shared, as many answers to one prompt as have no more tokens.
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
        """What it must know after a restart: another grouping into batches would round these differently."""
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
        return spread(torch.cat([self._began[place] for place in part]), mask)

    def base(self, part: Sequence[int], said: Statistics) -> Tensor:
        """The base's log-probabilities [B, L−1]; each example is scored once."""
        missing = [place for place in dict.fromkeys(part) if place not in self._base]
        if missing:
            scored = self.model.statistics([self.examples[i].sample for i in missing], who=Who.BASE)
            for row, place in enumerate(missing):
                self._base[place] = scored.logprobs[row][scored.batch.mask[row]].detach()
        return spread(torch.cat([self._base[place] for place in part]), said.batch.mask).to(said.logprobs)

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

        That is KL(policy ‖ base) over the policy's likeliest tokens and a bucket of all others: k3 holds for tokens
        that the policy drew, and each stored one that it has unlearned would count by the hundred.
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
