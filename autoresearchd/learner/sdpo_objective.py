"""SDPO on stored completions: who teaches, what it reads, and how its words stand beside the student's.

The words around the feedback are after those of the project autoresearch-distillation (Hübotter et al. 2026), which has
them at the end of the question. Here they stand before it: a small model answers what it reads last, and with the form
of the answer out of sight its teacher wrote prose alone (docs/adr/0035).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from autoresearchd.learner.examples import Example, fits
from autoresearchd.learner.logprobs import collate
from autoresearchd.learner.objectives import Learnable, Sample, Statistics, Who
from autoresearchd.learner.options import TrainOptions
from autoresearchd.learner.scoring import Scorer, finite
from autoresearchd.learner.sdpo import ema_update, sdpo_loss
from autoresearchd.learner.updates import Part, of_ratios, together

FEEDBACK = (
    "The following is feedback from a previous attempt at the problem below:\n\n{feedback}\n\n"
    "Using this information, provide the best possible solution."
)
"""What the teacher reads beside what the student was shown."""

Messages = Sequence[Mapping[str, Any]]


def with_feedback(messages: Messages, feedback: str, most: int) -> list[dict[str, Any]]:
    """What the teacher is shown: what the student was, and the feedback on its answer.

    It stands at the head of the last message where that is a user's, since many chat templates refuse two turns of a
    user in a row, and what the answer has to look like must stay the last thing that is read; else in a message of its
    own.

    Args:
        messages: the student's.
        feedback: on the answer.
        most: characters of the feedback that are told.
    """
    words = FEEDBACK.replace("{feedback}", feedback[:most])
    told = [dict(each) for each in messages]
    if told and told[-1].get("role") == "user" and isinstance(told[-1].get("content"), str):
        told[-1]["content"] = f"{words}\n\n{told[-1]['content']}"
    else:
        told.append({"role": "user", "content": words})
    return told


def lessons(model: Learnable, examples: Sequence[Example], most: int) -> list[Sample | None]:
    """Of each example the same completion after the teacher's prompt.

    None where there was no feedback to read, or no room for it in the model's context.
    """
    found: list[Sample | None] = []
    for each in examples:
        made = each.trajectory
        if not made.feedback.strip():
            found.append(None)
            continue
        prompt = model.encode(with_feedback(made.messages, made.feedback, most))
        lesson = Sample(prompt, each.sample.completion, temperature=each.sample.temperature)
        found.append(lesson if fits(model, lesson) else None)
    return found


class SdpoObjective:
    """Divergence from the teacher over the student's own completions; those without feedback are in no batch.

    Args:
        scorer: the model with the examples.
        lessons: what the teacher scores, of each example.
        options: of the run.
    """

    def __init__(self, scorer: Scorer, lessons: Sequence[Sample | None], options: TrainOptions) -> None:
        self._scorer, self._lessons = scorer, lessons
        self._options, self._constants = options.teacher, options.sdpo
        taught = [place for place, lesson in enumerate(lessons) if lesson is not None]
        self._units = together(scorer.examples, taught, options.batch, scorer.model.sharing)
        self._teacher = scorer.model.adapter_state()
        scorer.model.set_teacher(self._teacher)
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
        found = self._scorer.policy(part, top=self._options.top)
        logprobs, mask = found.tokens.logprobs, found.batch.mask
        student = found.tokens.top_logprobs
        if student is None:
            raise ValueError("the model told no likeliest tokens")
        result = sdpo_loss(
            student,
            self._taught(part, found),
            logprobs,
            found.batch.behaviour.to(logprobs),
            mask,
            torch.ones(len(part), dtype=torch.bool, device=mask.device),
            options=self._constants,
            proximal=self._scorer.began(part, found),
            total=self._total,
        )
        tokens = float(result.tokens)
        figures = {"divergence": (result.divergence, tokens), "tail": (result.tail, tokens)}
        figures |= of_ratios(result.ratios, tokens)
        return Part(result.loss, figures | self._scorer.common(part, found, divergence=divergence))

    def drifted(self, figures: Mapping[str, float]) -> bool:
        return False

    def end(self) -> None:
        """The teacher follows the policy a little."""
        if self._options.rate > 0:
            self._teacher = ema_update(self._teacher, self._scorer.model.adapter_state(), self._options.rate)
            self._scorer.model.set_teacher(self._teacher)

    def state(self) -> dict[str, Tensor]:
        return self._scorer.state() | {f"teacher.{name}": each for name, each in self._teacher.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self._scorer.load(state)
        names = [name for name in state if name.startswith("teacher.")]
        self._teacher = {name.removeprefix("teacher."): state[name] for name in names}
        self._scorer.model.set_teacher(self._teacher)

    def _taught(self, part: Sequence[int], found: Statistics) -> Tensor:
        """The teacher's log-probabilities [B, L−1, k] of the student's likeliest tokens, where the student's stand."""
        samples = [lesson for lesson in (self._lessons[place] for place in part) if lesson is not None]
        mask, indices, own = found.batch.mask, found.tokens.top_indices, found.tokens.top_logprobs
        assert indices is not None and own is not None
        # Both batches hold the same completions in the same order: so do their tokens that count, whatever the padding.
        prompts, completions = [each.prompt for each in samples], [each.completion for each in samples]
        there = collate(prompts, completions, padding=self._scorer.model.padding).mask.to(mask.device)
        at = indices.new_zeros((*there.shape, indices.shape[-1]))
        at[there] = indices[mask]
        scored = self._scorer.model.statistics(samples, who=Who.TEACHER, at=at).tokens.top_logprobs
        if scored is None:
            raise ValueError("the model told no log-probabilities of the tokens asked for")
        finite(scored[there])
        taught = torch.zeros_like(own)
        taught[mask] = scored[there].to(taught)
        return taught
