"""The constants of a learner run, from the texts of ``--set``: which there are, what they may be, what they are not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autoresearchd.app.learning import LearnRequest
from autoresearchd.errors import UsageError
from autoresearchd.learner.advantages import Scale
from autoresearchd.learner.grpo import GSPO, GrpoOptions
from autoresearchd.learner.loading import LoraOptions, ModelOptions
from autoresearchd.learner.options import (
    Algo,
    ColdStart,
    Collapse,
    GroupOptions,
    MdpOptions,
    TeacherOptions,
    TrainOptions,
)
from autoresearchd.learner.ppo import PpoOptions
from autoresearchd.learner.ratios import Level
from autoresearchd.learner.tracking import names_of


@dataclass(frozen=True, slots=True)
class GateSettings:
    """How two policies are asked and judged.

    judge: ``real`` (experiments are run), ``predicted`` (from what was tried; runs are hard to foretell, so that mostly
    validity, duplicates and novelty are compared), or ``auto``: real where a run trains for ten seconds at most.
    states: at most; count: proposals for each; max_tokens: of a proposal, 0: as long as those that were stored.
    """

    judge: str = "auto"
    states: int = 40
    count: int = 4
    max_tokens: int = 0
    temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class Constants:
    """All of a run. share: of the answers that are held out. rounds: of new experiments, in live mode."""

    train: TrainOptions
    model: ModelOptions
    gate: GateSettings = field(default_factory=GateSettings)
    share: float = 0.25
    rounds: int = 8
    trackers: tuple[str, ...] = ()


def constants_of(request: LearnRequest) -> Constants:
    """The constants that a request names, and the usual ones for all others.

    Raises:
        UsageError: there is none of that name, or its value is none.
        MissingCapability: a tracker is not installed.
    """
    given = dict(request.options)
    unknown = next((name for name in given if name not in KNOWN), None)
    if unknown is not None:
        raise UsageError(f"--set {unknown}: there is no such constant", mend=f"take one of {', '.join(sorted(KNOWN))}")
    values = {name: KNOWN[name](name, text) for name, text in given.items()}
    usual = TrainOptions(Algo(request.algo))
    if request.steps is not None:
        usual = replace(usual, steps=request.steps)

    def some(*names: str, **renamed: str) -> dict[str, Any]:
        return {
            **{name: values[name] for name in names if name in values},
            **{name: values[key] for name, key in renamed.items() if key in values},
        }

    grpo = GSPO if values.get("level") is Level.SEQUENCE else GrpoOptions()
    train = replace(
        usual,
        **some("learning_rate", "weight_decay", "batch", "micro", "epochs", "clip", "warmup", "seed", "save_every"),
        **some("shuffle_rewards", "kl_every"),
        grpo=replace(grpo, **some("clip_low", "clip_high", "beta")),
        groups=replace(GroupOptions(), **some("leave_one_out", "neighbours", "scale")),
        # By default each token's ratio: the product of a long answer's leaves the range after one step.
        ppo=replace(
            PpoOptions(level=Level.TOKEN), **some("level", clip="clip_low", value_weight="c1", entropy_weight="c2")
        ),
        mdp=replace(MdpOptions(), **some("gamma", "lam", "horizon", "target_kl")),
        teacher=replace(TeacherOptions(), **some("top", rate="teacher_rate")),
        cold_start=replace(ColdStart(), **some(allowed="cold_start", valid_share="valid_share")),
        collapse=replace(Collapse(), **some(entropy="least_entropy", kl="most_kl")),
    )
    model = ModelOptions(
        lora=replace(LoraOptions(), **some("rank", "alpha", "dropout")),
        value_head=request.algo == "ppo",
        seed=train.seed,
        **some("device", "dtype", "threads", "checkpointing"),
    )
    gate = replace(GateSettings(), **some("max_tokens", "temperature", judge="judge", states="states", count="count"))
    return Constants(train, model, gate, **some("share", "rounds", "trackers"))


# ---------------------------------------------------------------------- values
Read = Callable[[str, str], Any]


def _refused(name: str, text: str, what: str) -> UsageError:
    return UsageError(f"--set {name}={text[:60]}: it is {what}", mend=f"write it as --set {name}=VALUE")


def _whole(low: int, high: int) -> Read:
    def read(name: str, text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 19 and low <= int(text) <= high):
            raise _refused(name, text, f"a whole number from {low} to {high}")
        return int(text)

    return read


def _number(low: float, high: float) -> Read:
    def read(name: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise _refused(name, text, f"a number from {low:g} to {high:g}")
        return value

    return read


def _one_of(values: Mapping[str, Any]) -> Read:
    def read(name: str, text: str) -> Any:
        if text not in values:
            raise _refused(name, text, f"one of {', '.join(values)}")
        return values[text]

    return read


def _or_none(inner: Read) -> Read:
    return lambda name, text: None if text == "none" else inner(name, text)


_FLAG = _one_of({"true": True, "false": False})

KNOWN: Mapping[str, Read] = {
    "learning_rate": _number(0, 0.1),
    "weight_decay": _number(0, 0.99),
    "batch": _whole(1, 4096),
    "micro": _whole(1, 4096),
    "epochs": _whole(1, 100),
    "clip": _number(1e-6, 1e6),
    "warmup": _whole(0, 10_000),
    "seed": _whole(0, 2**31 - 1),
    "save_every": _whole(1, 10_000),
    "kl_every": _whole(1, 10_000),
    "shuffle_rewards": _FLAG,
    "level": _one_of({level.value: level for level in Level}),
    "clip_low": _number(0, 0.99),
    "clip_high": _number(0, 10),
    "beta": _number(0, 10),
    "scale": _one_of({scale.value: scale for scale in Scale}),
    "leave_one_out": _FLAG,
    "neighbours": _or_none(_whole(1, 1000)),
    "c1": _number(0, 100),
    "c2": _number(0, 100),
    "gamma": _number(0, 1),
    "lam": _number(0, 1),
    "horizon": _whole(1, 100_000),
    "target_kl": _or_none(_number(1e-6, 100)),
    "top": _whole(1, 1000),
    "teacher_rate": _number(0, 1),
    "cold_start": _FLAG,
    "valid_share": _number(0, 1),
    "least_entropy": _or_none(_number(0, 100)),
    "most_kl": _or_none(_number(0, 100)),
    "rank": _whole(1, 256),
    "alpha": _number(0.01, 1024),
    "dropout": _number(0, 0.9),
    "device": lambda name, text: text,
    "dtype": lambda name, text: text,
    "threads": _whole(1, 256),
    "checkpointing": _FLAG,
    "judge": _one_of({name: name for name in ("auto", "predicted", "real")}),
    "states": _whole(2, 10_000),
    "count": _whole(1, 64),
    "max_tokens": _whole(1, 100_000),
    "temperature": _number(0.01, 2),
    "share": _number(0.01, 0.5),
    "rounds": _whole(1, 10_000),
    "trackers": lambda _name, text: names_of(text),
}
"""The constants by name, each with what reads its text."""
