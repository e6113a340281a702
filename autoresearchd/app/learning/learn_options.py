"""The options of a learner run, of all its parts, from the constants that ``--set`` names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from autoresearchd.app.learning.learn_request import LearnRequest
from autoresearchd.learner.algorithms.advantages import Scale
from autoresearchd.learner.algorithms.ratios import Level
from autoresearchd.learner.algorithms.train_options import (
    GSPO,
    Algo,
    ColdStart,
    Collapse,
    GroupOptions,
    GrpoOptions,
    MdpOptions,
    PpoOptions,
    SdpoOptions,
    TrainOptions,
)
from autoresearchd.learner.gate.promotion_needs import COUNT, JUDGE, STATES
from autoresearchd.learner.training.constant_values import SHARE, asks_at_home, values_of
from autoresearchd.learner.training.load_model import LoraOptions, ModelOptions


@dataclass(frozen=True, slots=True)
class GateSettings:
    """How two policies are asked and judged.

    judge: ``real`` (experiments are run), ``checks`` (nothing is run: only validity, duplicates and novelty are
    compared), or ``auto``: real where a run trains for ten seconds at most.
    states: at most; count: proposals for each; max_tokens: of a proposal, 0: as long as those that were stored.
    run_foreign: whether experiments of other repositories' sessions may be run, too.
    """

    judge: str = JUDGE
    states: int = STATES
    count: int = COUNT
    max_tokens: int = 0
    temperature: float = 1.0
    run_foreign: bool = False

    @property
    def at_home(self) -> bool:
        """Whether only the repository's own sessions are asked about."""
        return asks_at_home(self.judge, run_foreign=self.run_foreign)


@dataclass(frozen=True, slots=True)
class Constants:
    """All of a run.

    share: of the answers that are held out. rounds: of new experiments, in live mode. max_length: tokens of a prompt
    with its answer; what is longer is left out, None: nothing is.
    """

    train: TrainOptions
    model: ModelOptions
    gate: GateSettings = field(default_factory=GateSettings)
    share: float = SHARE
    rounds: int = 8
    max_length: int | None = None
    trackers: tuple[str, ...] = ()


def constants_of(request: LearnRequest) -> Constants:
    """The constants that a request names, and the usual ones for all others.

    Raises UsageError: there is none of that name, or its value is none; MissingCapability: a tracker is not installed.
    """
    values = values_of(request.options, request.algo)
    usual = TrainOptions(Algo(request.algo))
    if request.steps is not None:
        usual = replace(usual, steps=request.steps)

    def some(*names: str, **renamed: str) -> dict[str, Any]:
        return {
            **{name: values[name] for name in names if name in values},
            **{name: values[key] for name, key in renamed.items() if key in values},
        }

    for name, kind in (("level", Level), ("scale", Scale)):
        if name in values:
            values[name] = kind(values[name])
    # GSPO is more than a level: its range and its mean are its paper's.
    grpo = GSPO if values.get("level") is Level.SEQUENCE else GrpoOptions(**some("level"))
    train = replace(
        usual,
        **some("learning_rate", "weight_decay", "batch", "micro", "epochs", "clip", "warmup", "seed", "save_every"),
        **some("shuffle_rewards", "kl_every"),
        grpo=replace(grpo, **some("clip_low", "clip_high", "beta")),
        groups=replace(GroupOptions(), **some("leave_one_out", "neighbours", "scale")),
        ppo=replace(
            PpoOptions(), **some("level", "clip_high", clip="clip_low", value_weight="c1", entropy_weight="c2")
        ),
        mdp=replace(MdpOptions(), **some("gamma", "lam", "horizon", "target_kl")),
        sdpo=replace(SdpoOptions(), **some("top", alpha="sdpo_alpha", rate="teacher_rate")),
        cold_start=replace(ColdStart(), **some(allowed="cold_start", valid_share="valid_share")),
        collapse=replace(Collapse(), **some(entropy="least_entropy", kl="most_kl")),
    )
    model = ModelOptions(
        lora=replace(LoraOptions(), **some("rank", "alpha", "dropout")),
        value_head=request.algo == "ppo",
        seed=train.seed,
        **some("device", "dtype", "threads", "checkpointing", "generated", "share_prompts"),
    )
    gate = replace(GateSettings(), **some("judge", "states", "count", "max_tokens", "temperature", "run_foreign"))
    return Constants(train, model, gate, **some("share", "rounds", "max_length", "trackers"))
