"""How a training run goes: the algorithm, its constants, and when it stops by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from autoresearchd.domain.errors import UsageError
from autoresearchd.learner.algorithms.advantages import Scale
from autoresearchd.learner.algorithms.ratios import Level, Mean
from autoresearchd.learner.data.reward_signal import LEAST_USABLE


@dataclass(frozen=True, slots=True)
class GrpoOptions:
    """The constants.

    clip_low, clip_high: ε below and above a ratio of 1. dual_clip: c, bounds the loss of what turned out badly; None:
    not. level: what the ratio is of. mean: how tokens weigh. length: the constant length of the mean ``fixed``.
    weight_cap: of the truncated importance weights. beta: weight of KL(policy ‖ reference policy), at each token.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = 3.0
    level: Level = Level.TOKEN
    mean: Mean = Mean.TOKENS
    length: int | None = None
    weight_cap: float = 2.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.clip_low < 1 or self.clip_high < 0:
            raise UsageError(
                f"the range of the ratio from 1 − {self.clip_low} to 1 + {self.clip_high} is none",
                hint="take a clip_low from 0 to below 1, and a clip_high of at least 0",
            )
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise UsageError(
                f"dual_clip {self.dual_clip} is not above the range of the ratio",
                hint=f"take more than {1 + self.clip_high}, 3 is usual, or none",
            )
        if self.weight_cap <= 0 or self.beta < 0:
            raise UsageError("weight_cap must be above 0, and beta not below it", hint="2 and 0 are usual")
        if (self.mean is Mean.FIXED) != (self.length is not None) or (self.length is not None and self.length < 1):
            raise UsageError(
                "the mean 'fixed' goes with a length, and no other does",
                hint="give the largest number of tokens that a completion may have",
            )


GSPO = GrpoOptions(
    clip_low=3e-4, clip_high=4e-4, dual_clip=None, level=Level.SEQUENCE, mean=Mean.SEQUENCES, weight_cap=2.0
)
"""As in its paper: the geometric mean of many tokens' ratios moves little, so the range is narrow."""


@dataclass(frozen=True, slots=True)
class PpoOptions:
    """The constants.

    clip: ε of the ratio; clip_high: above 1, None: the same. value_clip: how far a value may move from the old one
    before the loss stops to reward it, None: any. value_weight: c1. entropy_weight: c2. level: what the ratio is of.
    dual_clip: as in GRPO. weight_cap: of the truncated importance weights.
    """

    clip: float = 0.2
    clip_high: float | None = None
    value_clip: float | None = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.01
    level: Level = Level.COMPLETION
    dual_clip: float | None = None
    weight_cap: float = 2.0

    def __post_init__(self) -> None:
        high = self.clip if self.clip_high is None else self.clip_high
        if not 0 <= self.clip < 1 or high < 0 or (self.dual_clip is not None and self.dual_clip <= 1 + high):
            raise UsageError(
                f"clip {self.clip}, clip_high {high} and dual_clip {self.dual_clip} do not go together",
                hint="take a clip from 0 to below 1, and a dual_clip above 1 + clip_high or none",
            )
        if min(self.value_weight, self.entropy_weight) < 0 or self.weight_cap <= 0:
            raise UsageError(
                "value_weight and entropy_weight may not be below 0, weight_cap must be above it",
                hint="0.5, 0.01 and 2 are usual",
            )
        if self.value_clip is not None and self.value_clip <= 0:
            raise UsageError(f"value_clip {self.value_clip} is not above 0", hint="take 0.2, or none")


TOP = 20
"""k: how many tokens are compared one by one."""


@dataclass(frozen=True, slots=True)
class SdpoOptions:
    """The constants.

    alpha: 0: KL(teacher ‖ student), which covers all that the teacher does; 1: KL(student ‖ teacher), which keeps to
    what it does most; between them the generalised Jensen–Shannon divergence. ratio_cap: of the importance ratio.
    weight_cap: of the truncated importance weights, where the update began with another policy than the one that acted.
    """

    alpha: float = 1.0
    ratio_cap: float = 2.0
    weight_cap: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise UsageError(f"alpha {self.alpha} is not between 0 and 1", hint="take 1 (reverse KL) or 0 (forward KL)")
        if self.ratio_cap <= 0 or self.weight_cap <= 0:
            raise UsageError("ratio_cap and weight_cap must be above 0", hint="2 is usual for both")


class Algo(StrEnum):
    """What makes the policy better.

    ``grpo``: comparison within groups that answered the same state. ``ppo``: a value head over the sequence of a
    session's experiments. ``sdpo``: the policy that has read the feedback teaches the one that has not. ``sft``:
    likelihood of the answers that were kept.
    """

    GRPO = "grpo"
    PPO = "ppo"
    SDPO = "sdpo"
    SFT = "sft"


_EPOCHS = {Algo.GRPO: 1, Algo.PPO: 4, Algo.SDPO: 1, Algo.SFT: 1}


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """How GRPO's advantages are made of rewards (``group_advantages``).

    neighbours: how many answers next to it give a single one its baseline, an approximation; None: single answers are
    left out. past_only: earlier ones alone.
    """

    scale: Scale = Scale.STD
    leave_one_out: bool = False
    neighbours: int | None = 8
    past_only: bool = False


@dataclass(frozen=True, slots=True)
class MdpOptions:
    """How PPO's advantages are made of rewards (``gae``).

    horizon: answers of a session that are taken together, in whole rounds; the value of the state after them stands for
    all that follows (Schulman et al. 2017, §5). centred: rewards are taken as their difference from the mean of all, so
    that a value head that begins at 0 is right on average (reward centring, Naik et al. 2024, arXiv:2405.09999).
    target_kl: the other epochs of an update are left out where the KL divergence from the policy that it began with
    passes 1.5 times this, per action or per token as the ratio is; None: never.
    """

    gamma: float = 0.99
    lam: float = 0.95
    horizon: int = 16
    centred: bool = True
    target_kl: float | None = 0.02

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise UsageError(f"a horizon of {self.horizon} holds no experiment", hint="take at least 1, 16 is usual")
        if self.target_kl is not None and self.target_kl <= 0:
            raise UsageError(f"target_kl {self.target_kl} is not above 0", hint="take 0.02, or none")


@dataclass(frozen=True, slots=True)
class TeacherOptions:
    """Who teaches in SDPO, and what it reads.

    rate: how far the teacher moves towards the policy after each update, 0: it stays as it began. top: how many of the
    student's likeliest tokens are compared. feedback_chars: feedback is cut to so many characters.
    """

    rate: float = 0.01
    top: int = TOP
    feedback_chars: int = 8000

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise UsageError(f"the teacher's rate {self.rate} is not between 0 and 1", hint="take 0.01, or 0: frozen")
        if self.top < 1 or self.feedback_chars < 1:
            raise UsageError("a teacher compares at least one token, after reading something", hint="20 is usual")


@dataclass(frozen=True, slots=True)
class SftOptions:
    """Which answers are imitated: those that earned more than ``above``, and were kept unless ``kept`` is False."""

    above: float = 0.0
    kept: bool = True


@dataclass(frozen=True, slots=True)
class ColdStart:
    """When the policy is warmed up on kept answers (``sft``) before GRPO or PPO.

    It is where the rewards give no signal at all: then for all steps. Where fewer than ``valid_share`` of the answers
    could be used, for the first ``steps``. allowed: False: never, and rewards without a signal are an error.
    """

    allowed: bool = True
    valid_share: float = LEAST_USABLE
    steps: int = 10


@dataclass(frozen=True, slots=True)
class Collapse:
    """When a policy counts as collapsed, and the run stops; None: never.

    entropy: mean entropy of the tokens' distributions, in nats; below it the policy says the same thing always. kl:
    divergence from the base for each token, in nats; above it the policy has forgotten how to speak. patience: steps
    in a row on which one of them is met.
    """

    entropy: float | None = 0.02
    kl: float | None = 1.0
    patience: int = 3


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The whole of a training run.

    steps: of the optimiser (AdamW). batch: answers that a step learns from, about: what belongs together stays so.
    micro: answers that are in memory at once, or as many to one prompt as have no more tokens; the gradients of its
    parts add up to that of the batch. epochs: steps on each batch; None: 4 for PPO, else 1. clip: largest norm of the
    gradient. warmup: steps on which the learning rate grows to its full size. kl_every: steps between two measurements
    of the KL divergence from the base; where it is above its limit, each step has one. save_every: steps between two
    checkpoints. shuffle_rewards: outcomes are permuted among the answers: the control, which must learn nothing. start:
    what the adapter is before the first step (its version and shape), as the caller names it: a checkpoint of a run
    that began elsewhere is not gone on from.
    """

    algo: Algo = Algo.GRPO
    steps: int = 50
    learning_rate: float = 1e-4
    weight_decay: float = 0.0
    batch: int = 32
    micro: int = 4
    epochs: int | None = None
    clip: float = 1.0
    warmup: int = 5
    seed: int = 0
    kl_every: int = 5
    save_every: int = 10
    shuffle_rewards: bool = False
    start: str = ""
    grpo: GrpoOptions = field(default_factory=GrpoOptions)
    groups: GroupOptions = field(default_factory=GroupOptions)
    ppo: PpoOptions = field(default_factory=PpoOptions)
    mdp: MdpOptions = field(default_factory=MdpOptions)
    sdpo: SdpoOptions = field(default_factory=SdpoOptions)
    teacher: TeacherOptions = field(default_factory=TeacherOptions)
    sft: SftOptions = field(default_factory=SftOptions)
    cold_start: ColdStart = field(default_factory=ColdStart)
    collapse: Collapse = field(default_factory=Collapse)

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "micro", "kl_every", "save_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} {getattr(self, name)} is below 1", hint="take at least 1")
        if (self.epochs is not None and self.epochs < 1) or self.warmup < 0:
            raise UsageError(f"epochs {self.epochs} and warmup {self.warmup} do not go", hint="take 1 and 0, or more")
        if not 0 <= self.learning_rate < 1 or not 0 <= self.weight_decay < 1:
            raise UsageError(
                f"learning_rate {self.learning_rate} and weight_decay {self.weight_decay} must be from 0 to below 1",
                hint="1e-4 and 0 are usual for an adapter",
            )
        if not self.clip > 0:
            raise UsageError(f"a gradient clipped to {self.clip} moves nothing", hint="take 1, or inf: no clipping")

    def epochs_of(self, algo: Algo) -> int:
        """Steps on each batch, of an algorithm."""
        return _EPOCHS[algo] if self.epochs is None else self.epochs

    def rate(self, step: int) -> float:
        """The learning rate of a step, which counts from 0: a linear warm-up, then constant."""
        return self.learning_rate * min(1.0, (step + 1) / (self.warmup + 1))
