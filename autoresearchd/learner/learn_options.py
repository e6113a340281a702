"""What a learner run is asked for, and the options of all its parts, from the constants that ``--set`` names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autoresearchd.learner.algorithms.train_options import (
    GSPO,
    Algo,
    ColdStart,
    Collapse,
    GrpoOptions,
    Level,
    PpoOptions,
    Scale,
    SdpoOptions,
    TrainOptions,
)
from autoresearchd.learner.gate.promotion_needs import GateSettings
from autoresearchd.learner.training.constant_values import SHARE, values_of
from autoresearchd.learner.training.load_model import ModelOptions


@dataclass(frozen=True, slots=True)
class LearnRequest:
    """What ``learn`` is asked for.

    mode: ``replay`` (stored answers) or ``live`` (new experiments). model: folder or name of the base model, empty:
    local.model of config.yaml. steps: None: the algorithm's own number. places: other repositories to read. options: as
    ``--set`` gives them.
    """

    algo: str
    mode: str = "replay"
    model: str = ""
    steps: int | None = None
    places: tuple[Path, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Constants:
    """All of a run. share: of the answers that are held out. rounds: of new experiments, in live mode.

    max_length: tokens of a prompt with its answer; what is longer is left out, None: nothing is.
    """

    train: TrainOptions
    model: ModelOptions
    gate: GateSettings = field(default_factory=GateSettings)
    share: float = SHARE
    rounds: int = 8
    max_length: int | None = None
    trackers: tuple[str, ...] = ()


def constants_of(request: LearnRequest) -> Constants:
    """The constants that a request names, and the usual ones for all others; UsageError as ``values_of`` raises it."""
    values = values_of(request.options, request.algo)
    if request.steps is not None:
        values["steps"] = request.steps

    def some(*names: str, **renamed: str) -> dict[str, Any]:
        """Of the constants that are named, these; renamed: the option's name by which a constant goes."""
        return {name: values[key] for name, key in ({name: name for name in names} | renamed).items() if key in values}

    for name, kind in (("level", Level), ("scale", Scale)):
        if name in values:
            values[name] = kind(values[name])
    # GSPO is more than a level: its range and its mean are its paper's.
    grpo = GSPO if values.get("level") is Level.SEQUENCE else GrpoOptions(**some("level"))
    train = TrainOptions(
        Algo(request.algo),
        **some("steps", "learning_rate", "weight_decay", "batch", "micro", "epochs", "clip", "warmup", "seed"),
        **some("save_every", "shuffle_rewards", "kl_every"),
        grpo=replace(grpo, **some("clip_low", "clip_high", "beta", "leave_one_out", "neighbours", "scale")),
        ppo=PpoOptions(
            **some("level", "clip_high", "gamma", "lam", "horizon", "target_kl"),
            **some(clip="clip_low", value_weight="c1", entropy_weight="c2"),
        ),
        sdpo=SdpoOptions(**some("top", alpha="sdpo_alpha", rate="teacher_rate")),
        cold_start=ColdStart(**some("valid_share", allowed="cold_start")),
        collapse=Collapse(**some(entropy="least_entropy", kl="most_kl")),
    )
    model = ModelOptions(
        value_head=request.algo == "ppo",
        seed=train.seed,
        **some("rank", "alpha", "dropout", "device", "dtype", "threads", "checkpointing", "generated", "share_prompts"),
    )
    return Constants(train, model, GateSettings.of(values), **some("share", "rounds", "max_length", "trackers"))
