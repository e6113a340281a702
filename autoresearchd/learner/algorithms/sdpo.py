"""The loss of SDPO: the policy that has read the feedback on its answer teaches the policy that has not.

Self-Distillation Policy Optimization (Hübotter et al. 2026), as the project autoresearch-distillation uses it. Student
and teacher score the same tokens, those of the student's own completion; the teacher's prompt holds the feedback as
well. Both distributions are cut to the student's k likeliest tokens and a bucket for all others, so that k + 1 numbers
of each token are compared instead of a vocabulary. The divergence is one of the family of Agarwal et al. 2024
(arXiv:2306.13649).

SDPO on stored completions: who teaches, what it reads, and how its words stand beside the student's.

The words around the feedback are after those of the project autoresearch-distillation (Hübotter et al. 2026), which has
them at the end of the question. Here they stand before it: a small model answers what it reads last, and with the form
of the answer out of sight its teacher wrote prose alone (docs/adr/0035).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autoresearchd.domain.errors import UsageError
from autoresearchd.learner.algorithms.learnable import Learnable, Sample, Statistics, Who
from autoresearchd.learner.algorithms.ratios import (
    Level,
    RatioFigures,
    check,
    divergence,
    figures,
    log_ratios,
    truncated_weights,
    with_tail,
)
from autoresearchd.learner.algorithms.scoring import Objective, Part, Scorer, finite, of_ratios, together
from autoresearchd.learner.algorithms.train_options import SdpoOptions, TrainOptions
from autoresearchd.learner.data.examples import Example, fits
from autoresearchd.learner.training.logprobs import collate


@dataclass(frozen=True, slots=True)
class SdpoLoss:
    """The loss, to be minimised, and figures on it, detached.

    divergence: from the teacher, mean over the tokens, without ratios and weights. tail: mean probability of the
    student's bucket of all other tokens: where it is large, k is too small. taught: share of the completions with a
    teacher. ratios: ``clipped_high`` is the share above ``ratio_cap``; nothing is clipped below.
    """

    loss: Tensor
    divergence: float
    tail: float
    taught: float
    ratios: RatioFigures
    entropy: float | None
    tokens: int


def sdpo_loss(
    student_top: Tensor,
    teacher_top: Tensor,
    logprobs: Tensor,
    behaviour: Tensor,
    mask: Tensor,
    taught: Tensor,
    *,
    options: SdpoOptions | None = None,
    proximal: Tensor | None = None,
    entropy: Tensor | None = None,
    total: float | None = None,
) -> SdpoLoss:
    """Mean over tokens of ratio · weight · divergence; gradients flow through ``student_top`` alone.

    Args:
        student_top: log-probabilities of the student's k likeliest tokens, [B, T, k], over the whole vocabulary.
        teacher_top: the teacher's of the same tokens (``token_statistics(..., at=indices)``); constant.
        logprobs: of the completions' own tokens under the student, [B, T].
        behaviour: those that were stored when the tokens were drawn.
        mask: [B, T], True on the completions' tokens.
        taught: m_i, [B], bool: whether the teacher knows more than the student (there was feedback to read).
        options: the constants.
        proximal: log-probabilities under the policy with which this update began (as for ``grpo_loss``).
        entropy: of each token's distribution, for the figures only.
        total: tokens of the whole batch, those of taught completions, where this is a part of it.

    Raises:
        UsageError: no completion has a teacher, NaN or infinity.
    """
    options = options or SdpoOptions()
    if taught.shape != mask.shape[:1] or taught.dtype is not torch.bool:
        raise ValueError(
            f"taught: {taught.dtype} of shape {tuple(taught.shape)}, expected one bool for each completion"
        )
    if student_top.shape != teacher_top.shape or student_top.dim() != 3:
        raise ValueError(
            f"student_top of shape {tuple(student_top.shape)} and teacher_top of shape {tuple(teacher_top.shape)} "
            "do not belong together: expected [B, T, k] of both"
        )
    learned = mask & taught.unsqueeze(-1)
    check(
        learned,
        student_top=student_top,
        teacher_top=teacher_top,
        logprobs=logprobs,
        behaviour=behaviour,
        proximal=proximal,
        entropy=entropy,
    )
    logprobs, behaviour = logprobs.detach(), behaviour.detach()
    anchor = behaviour if proximal is None else proximal.detach()
    raw = log_ratios(logprobs, anchor, learned, Level.TOKEN).exp()
    weights = truncated_weights(proximal, behaviour, learned, Level.TOKEN, options.weight_cap)
    student, teacher = with_tail(student_top[learned]), with_tail(teacher_top.detach()[learned])
    each = divergence(student, teacher, options.alpha)
    tokens = int(learned.sum())
    loss = ((raw.clamp(max=options.ratio_cap) * weights)[learned] * each).sum() / (tokens if total is None else total)
    return SdpoLoss(
        loss=loss,
        divergence=float(each.detach().double().mean()),
        tail=float(student.detach()[:, -1].double().exp().mean()),
        taught=float(taught.double().mean()),
        ratios=figures(
            raw, torch.zeros_like(learned), raw > options.ratio_cap, logprobs, behaviour, learned, Level.TOKEN
        ),
        entropy=None if entropy is None else float(entropy.detach()[learned].double().mean()),
        tokens=tokens,
    )


def ema_update(teacher: Mapping[str, Tensor], student: Mapping[str, Tensor], rate: float) -> dict[str, Tensor]:
    """The teacher's next parameters: θ_T ← (1 − τ)·θ_T + τ·θ_S, once for each update of the policy.

    A rate of 0 freezes the teacher: what comes back are its own tensors. Whole numbers (buffers) are taken from the
    student. The teacher is kept in float32 where the rate is small: a sum of 8 significant bits does not move by a
    hundredth.

    teacher: parameters by name; not changed. student: parameters of the same names and shapes. rate: τ, from 0 to 1.
    Raises UsageError: the rate is none, the names differ, or a parameter of the student is not finite.
    """
    if not 0 <= rate <= 1:
        raise UsageError(f"the teacher's update rate {rate} is not between 0 and 1", hint="take 0.01, or 0: frozen")
    different = sorted(teacher.keys() ^ student.keys())
    if different:
        raise UsageError(
            f"teacher and student do not have the same parameters: {', '.join(different[:3])}",
            hint="start the teacher from the student's own parameters",
        )
    if rate == 0:
        return dict(teacher)
    return {name: _moved(name, old, student[name].detach(), rate) for name, old in teacher.items()}


def _moved(name: str, old: Tensor, new: Tensor, rate: float) -> Tensor:
    if old.shape != new.shape:
        raise UsageError(
            f"{name}: shape {tuple(old.shape)} in the teacher, {tuple(new.shape)} in the student",
            hint="start the teacher from the student's own parameters",
        )
    if not old.is_floating_point():
        return new.clone()
    if not bool(torch.isfinite(new).all()):
        raise UsageError(
            f"{name}: the student's parameters are NaN or infinite",
            hint="leave the update out, lower the learning rate, and go back to the last checkpoint",
        )
    return torch.lerp(old.detach(), new.to(old), rate)


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

    messages: the student's. feedback: on the answer. most: characters of the feedback that are told.
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


class SdpoObjective(Objective):
    """Divergence from the teacher over the student's own completions; those without feedback are in no batch.

    scorer: the model with the examples. lessons: what the teacher scores, of each example. options: of the run.
    """

    def __init__(self, scorer: Scorer, lessons: Sequence[Sample | None], options: TrainOptions) -> None:
        taught = [place for place, lesson in enumerate(lessons) if lesson is not None]
        super().__init__(scorer, together(scorer.examples, taught, options.batch, scorer.model.sharing))
        self._lessons = lessons
        self._options, self._constants = options.teacher, options.sdpo
        self._teacher = scorer.model.adapter_state()
        scorer.model.set_teacher(self._teacher)

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

    def end(self) -> None:
        """The teacher follows the policy a little."""
        if self._options.rate > 0:
            self._teacher = ema_update(self._teacher, self._scorer.model.adapter_state(), self._options.rate)
            self._scorer.model.set_teacher(self._teacher)

    def state(self) -> dict[str, Tensor]:
        return super().state() | {f"teacher.{name}": each for name, each in self._teacher.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        super().load(state)
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
