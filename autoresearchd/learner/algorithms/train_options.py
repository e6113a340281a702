"""How a training run goes: the algorithm, its constants, and when it stops by itself.

``training.constant_values`` checks what ``--set`` may say of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autoresearchd.domain.errors import UsageError
from autoresearchd.learner.data.data_summary import LEAST_USABLE

TOP = 20
"""k: how many tokens are compared one by one."""


class Algo(StrEnum):
    """What makes the policy better.

    Comparison within groups that answered the same state; a value head over a session's experiments; a teacher that has
    read the feedback; likelihood of the answers that were kept, in a warm-up.
    """

    GRPO = "grpo"
    PPO = "ppo"
    SDPO = "sdpo"
    SFT = "sft"


class Level(StrEnum):
    """What an importance ratio is a ratio of.

    ``token``: of each token given those before it (GRPO, DAPO). ``sequence``: the geometric mean of a completion's
    tokens' (GSPO). ``completion``: their product, the true importance weight of the research MDP.
    """

    TOKEN = "token"  # noqa: S105 - a level, not a secret
    SEQUENCE = "sequence"
    COMPLETION = "completion"


class Mean(StrEnum):
    """How a loss of tokens becomes one number: all tokens weigh the same (DAPO), or all completions (GRPO, GSPO)."""

    TOKENS = "tokens"
    SEQUENCES = "sequences"


class Scale(StrEnum):
    """What group advantages are divided by: the standard deviation of the group (GRPO), or nothing (Dr. GRPO)."""

    STD = "std"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class GrpoOptions:
    """The constants of GRPO.

    clip_low, clip_high: ε below and above a ratio of 1. dual_clip: c, None: no bound. beta: weight of KL(policy ‖
    base), at each token. scale, leave_one_out: of ``group_advantages``. neighbours: so many answers next to it give a
    single one its baseline, an approximation; None: single answers are left out.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = 3.0
    level: Level = Level.TOKEN
    mean: Mean = Mean.TOKENS
    beta: float = 0.0
    scale: Scale = Scale.STD
    leave_one_out: bool = False
    neighbours: int | None = 8

    def __post_init__(self) -> None:
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise UsageError(
                f"clip_high {self.clip_high:g} is above what bounds the loss of a bad answer",
                hint=f"take less than {self.dual_clip - 1:g}",
            )


GSPO = GrpoOptions(clip_low=3e-4, clip_high=4e-4, dual_clip=None, level=Level.SEQUENCE, mean=Mean.SEQUENCES)
"""As in its paper: the geometric mean of many tokens' ratios moves little, so the range is narrow."""


@dataclass(frozen=True, slots=True)
class PpoOptions:
    """The constants of PPO.

    clip: ε of the ratio; clip_high: above 1, None: the same. value_clip: how far a value may move from the old one.
    value_weight: c1. entropy_weight: c2. level: by default each token's ratio, since the product of a long answer's
    leaves the range after one step. gamma, lam: of ``gae``. horizon: answers of a session that are taken together, in
    whole rounds (Schulman et al. 2017, §5). centred: rewards are their difference from the mean of all, so that
    a value head that begins at 0 is right on average (Naik et al. 2024, arXiv:2405.09999). target_kl: the other epochs
    of an update are left out where its KL divergence passes 1.5 times this; None: never.
    """

    clip: float = 0.2
    clip_high: float | None = None
    value_clip: float = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.01
    level: Level = Level.TOKEN
    gamma: float = 0.99
    lam: float = 0.95
    horizon: int = 16
    centred: bool = True
    target_kl: float | None = 0.02


@dataclass(frozen=True, slots=True)
class SdpoOptions:
    """The constants of SDPO.

    alpha: 0: KL(teacher ‖ student); 1: KL(student ‖ teacher); between them the generalised Jensen–Shannon divergence.
    rate: how far the teacher moves towards the policy after each update. top: how many of the student's likeliest
    tokens are compared.
    """

    alpha: float = 1.0
    rate: float = 0.01
    top: int = TOP
    feedback_chars: int = 8000


@dataclass(frozen=True, slots=True)
class ColdStart:
    """When the policy is warmed up on kept answers (``sft``) before GRPO or PPO; allowed: False: never.

    For all steps where the rewards give no signal; for the first ones where fewer answers than a share could be used.
    """

    allowed: bool = True
    valid_share: float = LEAST_USABLE
    steps: int = 10


@dataclass(frozen=True, slots=True)
class Collapse:
    """When a policy counts as collapsed, and the run stops; None: never.

    entropy: mean of the tokens' distributions; kl: divergence from the base for each token, beyond that with which the
    run began, both in nats. patience: steps in a row on which one of them is met. began: None: as on the first step.
    """

    entropy: float | None = 0.02
    kl: float | None = 1.0
    patience: int = 3
    began: float | None = None


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The whole of a training run.

    steps: of the optimiser (AdamW). batch: answers that a step learns from, about: what belongs together stays so.
    micro: answers that are in memory at once, or as many to one prompt as have no more tokens. epochs: steps on each
    batch; None: 4 for PPO, else 1. clip: largest norm of the gradient. warmup: steps on which the learning rate grows
    to its full size. kl_every: steps between two measurements of the KL divergence from the base; where it is above its
    limit, each step has one. save_every: steps between two checkpoints. shuffle_rewards: outcomes are permuted among
    the answers: the control, which must learn nothing. start: what the adapter is before the first step (its version
    and shape): a checkpoint of a run that began elsewhere is not gone on from.
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
    grpo: GrpoOptions = GrpoOptions()
    ppo: PpoOptions = PpoOptions()
    sdpo: SdpoOptions = SdpoOptions()
    cold_start: ColdStart = ColdStart()
    collapse: Collapse = Collapse()

    def epochs_of(self, algo: Algo) -> int:
        """Steps on each batch, of an algorithm."""
        return self.epochs or (4 if algo is Algo.PPO else 1)

    def rate(self, step: int) -> float:
        """The learning rate of a step, which counts from 0: a linear warm-up, then constant."""
        return self.learning_rate * min(1.0, (step + 1) / (self.warmup + 1))
