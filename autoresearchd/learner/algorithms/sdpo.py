"""SDPO on stored completions: the policy that has read the feedback on its answer teaches the policy that has not.

Self-Distillation Policy Optimization (Hübotter et al. 2026), as the project autoresearch-distillation uses it. Student
and teacher score the same tokens, those of the student's own completion; the teacher's prompt holds the feedback as
well. Both distributions are cut to the student's k likeliest tokens and a bucket for all others, so that k + 1 numbers
of each token are compared instead of a vocabulary. The divergence is one of the family of Agarwal et al. 2024
(arXiv:2306.13649).

The words around the feedback are after those of that project, which has them at the end of the question. Here they
stand before it: a small model answers what it reads last, and with the form of the answer out of sight its teacher
wrote prose alone (docs/adr/0035).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from autoresearchd.learner.algorithms import scoring
from autoresearchd.learner.algorithms.learnable import Learnable, Sample, Statistics, Who, collate, spread
from autoresearchd.learner.algorithms.train_options import Level, SdpoOptions, TrainOptions
from autoresearchd.learner.data.examples import Example, fits


def sdpo_loss(
    student_top: Tensor,
    teacher_top: Tensor,
    logprobs: Tensor,
    behaviour: Tensor,
    proximal: Tensor,
    mask: Tensor,
    *,
    options: SdpoOptions,
    total: float | None = None,
) -> scoring.Part:
    """Mean over tokens of ratio · weight · divergence; gradients flow through ``student_top`` alone.

    student_top: log-probabilities of the student's k likeliest tokens, [B, T, k], over the whole vocabulary;
    teacher_top: the teacher's of the same tokens. logprobs, behaviour, proximal: of the completions' own tokens, as in
    ``ppo_loss``. total: as in ``masked_mean``. Figures: ``divergence``, the mean over the tokens without ratios and
    weights; ``tail``, the mean probability of the student's bucket of all other tokens: where it is large, k is too
    small; ``clipped_high``, the share of ratios above CAP.
    """
    logprobs, behaviour, proximal = logprobs.detach(), behaviour.detach(), proximal.detach()
    raw = scoring.log_ratios(logprobs, proximal, mask, Level.TOKEN).exp()
    weights = scoring.truncated_weights(proximal, behaviour, mask, Level.TOKEN)
    student, teacher = scoring.with_tail(student_top[mask]), scoring.with_tail(teacher_top.detach()[mask])
    each = scoring.divergence_of(student, teacher, options.alpha)
    scaled = (raw.clamp(max=scoring.CAP) * weights)[mask] * each
    above = raw > scoring.CAP
    tokens = float(mask.sum())
    figures = scoring.ratio_figures(raw, torch.zeros_like(mask), above, logprobs, behaviour, mask, Level.TOKEN) | {
        "divergence": (float(each.detach().double().mean()), tokens),
        "tail": (float(student.detach()[:, -1].double().exp().mean()), tokens),
    }
    return scoring.Part(scaled.sum() / (mask.sum() if total is None else total), figures)


def ema_update(teacher: Mapping[str, Tensor], student: Mapping[str, Tensor], rate: float) -> dict[str, Tensor]:
    """The teacher's next parameters: θ_T ← (1 − τ)·θ_T + τ·θ_S, once for each update of the policy."""
    return {name: torch.lerp(old, student[name].to(old), rate) for name, old in teacher.items()}


FEEDBACK = (
    "The following is feedback from a previous attempt at the problem below:\n\n{feedback}\n\n"
    "Using this information, provide the best possible solution."
)
"""What the teacher reads beside what the student was shown."""


def with_feedback(messages: Sequence[Mapping[str, Any]], feedback: str, most: int) -> list[dict[str, Any]]:
    """What the teacher is shown: what the student was, and ``most`` characters of the feedback on its answer.

    It stands at the head of the last message where that is a user's: many chat templates refuse two turns of a user in
    a row, and what the answer has to look like must stay the last thing that is read.
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
    made: list[Sample | None] = []
    for each in examples:
        shown, lesson = each.trajectory, None
        if shown.feedback.strip():
            prompt = model.encode(with_feedback(shown.messages, shown.feedback, most))
            lesson = Sample(prompt, each.sample.completion, temperature=each.sample.temperature)
        made.append(lesson if lesson is not None and fits(model, lesson) else None)
    return made


class SdpoObjective(scoring.Objective):
    """Divergence from the teacher over the student's own completions; those without a lesson are in no batch."""

    def __init__(
        self, model: Learnable, examples: Sequence[Example], options: TrainOptions, lessons: Sequence[Sample | None]
    ) -> None:
        taught = [place for place, lesson in enumerate(lessons) if lesson is not None]
        super().__init__(model, examples, options, scoring.together(examples, taught, options.batch, model.sharing))
        self._lessons = lessons
        self._teach(model.adapter_state())

    def _teach(self, state: dict[str, Tensor]) -> None:
        self._teacher = state
        self.model.set_teacher(state)

    def loss(self, part: Sequence[int], *, divergence: bool) -> scoring.Part:
        said = self.policy(part, top=self.options.sdpo.top)
        logprobs, student = said.logprobs, said.top_logprobs
        assert student is not None
        loss, figures = sdpo_loss(
            student,
            self._taught(part, said),
            logprobs,
            said.batch.behaviour.to(logprobs),
            self.began(part, said),
            said.batch.mask,
            options=self.options.sdpo,
            total=self.total,
        )
        return scoring.Part(loss, figures | self.common(part, said, divergence=divergence))

    def end(self) -> None:
        """The teacher follows the policy a little."""
        if self.options.sdpo.rate > 0:
            self._teach(ema_update(self._teacher, self.model.adapter_state(), self.options.sdpo.rate))

    def state(self) -> dict[str, Tensor]:
        return super().state() | {f"teacher.{name}": each for name, each in self._teacher.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        super().load(state)
        self._teach(scoring.named(state, "teacher."))

    def _taught(self, part: Sequence[int], said: Statistics) -> Tensor:
        """The teacher's log-probabilities [B, L−1, k] of the student's likeliest tokens, where the student's stand."""
        samples = [lesson for lesson in (self._lessons[place] for place in part) if lesson is not None]
        mask, indices, own = said.batch.mask, said.top_indices, said.top_logprobs
        assert indices is not None and own is not None
        # Both batches hold the same completions in the same order: so do their tokens that count, whatever the padding.
        there = collate(samples, padding=self.model.padding).mask.to(mask.device)
        scored = self.model.statistics(samples, who=Who.TEACHER, at=spread(indices[mask], there)).top_logprobs
        assert scored is not None
        scoring.finite(scored[there])
        return spread(scored[there].to(own), mask)
