"""GRPO on stored completions: advantages within rounds, ratios to the policy that wrote them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from autoresearchd.learner.advantages import GroupAdvantages, Neighbours, group_advantages
from autoresearchd.learner.examples import Example
from autoresearchd.learner.grpo import grpo_loss
from autoresearchd.learner.options import GroupOptions, TrainOptions
from autoresearchd.learner.ratios import Level, Mean
from autoresearchd.learner.scoring import Scorer
from autoresearchd.learner.sdpo import TOP
from autoresearchd.learner.updates import Part, of_ratios


def advantages_of(examples: Sequence[Example], options: GroupOptions) -> GroupAdvantages:
    """The advantages of answers within their rounds; of single ones by their neighbours in the session, if at all."""
    made = [each.trajectory for each in examples]
    near = None
    if options.neighbours is not None:
        sessions, times = [each.session for each in made], [each.at.timestamp() for each in made]
        near = Neighbours(sessions, times, k=options.neighbours, past_only=options.past_only)
    return group_advantages(
        torch.tensor([each.reward for each in made], dtype=torch.float64),
        [(each.session, each.group) for each in made],
        scale=options.scale,
        leave_one_out=options.leave_one_out,
        neighbours=near,
    )


class GrpoObjective:
    """The clipped surrogate over answers whose group has a signal; the others are left out of all batches.

    What is clipped is the ratio to the policy that wrote an answer, as it is stored. The answers stay the same over all
    passes: a ratio to where an update, or a pass, began would be 1 again each time, and would bound nothing.

    Args:
        scorer: the model with the examples.
        found: the examples' advantages.
        options: of the run.
    """

    def __init__(self, scorer: Scorer, found: GroupAdvantages, options: TrainOptions) -> None:
        self._scorer, self._options = scorer, options.grpo
        self._advantages = found.advantages.to(scorer.model.device)
        signal = found.signal.tolist()
        groups: dict[tuple[str, str], list[int]] = {}
        for place, each in enumerate(scorer.examples):
            if signal[place]:
                groups.setdefault((each.trajectory.session, each.trajectory.group), []).append(place)
        # Advantages are constant: a group that is larger than a batch may be cut.
        self._units = [
            whole[at : at + options.batch] for whole in groups.values() for at in range(0, len(whole), options.batch)
        ]
        self._total = 0.0

    @property
    def examples(self) -> Sequence[Example]:
        return self._scorer.examples

    @property
    def units(self) -> Sequence[Sequence[int]]:
        return self._units

    def begin(self, batch: Sequence[int]) -> Mapping[str, float]:
        by_tokens = self._options.mean is Mean.TOKENS
        self._total = float(sum(self.examples[place].tokens for place in batch) if by_tokens else len(batch))
        return {"advantage": float(self._advantages[list(batch)].abs().mean())}

    def loss(self, part: Sequence[int], *, divergence: bool) -> Part:
        found = self._scorer.policy(part, top=TOP if divergence else 0)
        logprobs, mask = found.tokens.logprobs, found.batch.mask
        held = self._options.beta > 0
        result = grpo_loss(
            logprobs,
            found.batch.behaviour.to(logprobs),
            self._advantages[list(part)].to(logprobs),
            mask,
            options=self._options,
            reference=self._scorer.base(part, found) if held else None,
            total=self._total,
        )
        weight = float(result.tokens if self._options.level is Level.TOKEN else len(part))
        figures = of_ratios(result.ratios, weight) | {"clipped_dual": (result.clipped_dual, float(result.tokens))}
        return Part(result.loss, figures | self._scorer.common(part, found, divergence=divergence))

    def drifted(self, figures: Mapping[str, float]) -> bool:
        return False

    def end(self) -> None:
        """Nothing is to be done."""

    def state(self) -> dict[str, Tensor]:
        return self._scorer.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self._scorer.load(state)
