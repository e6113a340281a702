"""The constants of a learner run: which there are, and what their texts in ``--set`` may say; read without torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from autoresearchd.domain.errors import UsageError
from autoresearchd.learner.training.trackers import names_of

SHARE = 0.25
"""Of the answers, about how many are held out where nothing else is said."""

Read = Callable[[str, str], Any]
"""Reads a constant's value: name, text."""


def values_of(given: Mapping[str, str], algo: str = "") -> dict[str, Any]:
    """The values of constants by name, from their texts. algo: one that it does not have is refused; empty: any.

    Raises UsageError: there is none of that name, or its value is none; MissingCapability: a tracker is not installed.
    """
    for name in given:
        if name not in KNOWN:
            hint = f"take one of {', '.join(sorted(KNOWN))}"
            raise UsageError(f"--set {name}: there is no such constant", hint=hint)
        owners = OWNERS.get(name, ())
        if algo and owners and algo not in owners:
            hint = f"leave it out; it is one of {' and '.join(owners)}"
            raise UsageError(f"--set {name}: {algo} has no such constant", hint=hint)
    return {name: KNOWN[name](name, text) for name, text in given.items()}


def asks_at_home(judge: str, *, run_foreign: bool) -> bool:
    """Whether only the repository's own sessions are held out: experiments may be run there, and not elsewhere."""
    return judge != "checks" and not run_foreign


def _refused(name: str, text: str, what: str) -> UsageError:
    return UsageError(f"--set {name}={text[:60]}: it must be {what}", hint=f"write it as --set {name}=VALUE")


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


def _one_of(*values: str) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        if text not in values:
            raise _refused(name, text, f"one of {', '.join(values)}")
        return text

    return read


def _flag(name: str, text: str) -> bool:
    return _one_of("true", "false")(name, text) == "true"


def _device(name: str, text: str) -> str:
    if re.fullmatch(r"[a-z]{1,20}(:[0-9]{1,3})?", text) is None:
        raise _refused(name, text, "a device: auto, cpu, cuda or cuda:0")
    return text


def _judge(name: str, text: str) -> str:
    return "checks" if text == "predicted" else _one_of("auto", "checks", "real")(name, text)  # the name before


def _or_none(inner: Read) -> Read:
    return lambda name, text: None if text == "none" else inner(name, text)


_FLAGS = ("shuffle_rewards", "leave_one_out", "cold_start", "checkpointing", "share_prompts", "run_foreign")

KNOWN: Mapping[str, Read] = {
    **dict.fromkeys(_FLAGS, _flag),
    **dict.fromkeys(("batch", "micro"), _whole(1, 4096)),
    **dict.fromkeys(("save_every", "kl_every", "rounds"), _whole(1, 10_000)),
    **dict.fromkeys(("rank", "threads"), _whole(1, 256)),
    **dict.fromkeys(("gamma", "lam", "teacher_rate", "sdpo_alpha", "valid_share"), _number(0, 1)),
    **dict.fromkeys(("clip_high", "beta"), _number(0, 10)),
    **dict.fromkeys(("c1", "c2"), _number(0, 100)),
    **dict.fromkeys(("least_entropy", "most_kl"), _or_none(_number(0, 100))),
    "learning_rate": _number(0, 0.1),
    "weight_decay": _number(0, 0.99),
    "epochs": _whole(1, 100),
    "clip": _number(1e-6, 1e6),
    "warmup": _whole(0, 10_000),
    "seed": _whole(0, 2**31 - 1),
    "neighbours": _or_none(_whole(1, 1000)),
    "level": _one_of("token", "sequence", "completion"),
    "clip_low": _number(0, 0.99),
    "scale": _one_of("std", "none"),
    "horizon": _whole(1, 100_000),
    "target_kl": _or_none(_number(1e-6, 100)),
    "top": _whole(1, 1000),
    "alpha": _number(0.01, 1024),
    "dropout": _number(0, 0.9),
    "device": _device,
    "dtype": _one_of("auto", "float32", "bfloat16"),
    "generated": _whole(1, 1024),
    "max_length": _whole(16, 10_000_000),
    "judge": _judge,
    "states": _whole(2, 10_000),
    "count": _whole(1, 64),
    "max_tokens": _whole(1, 100_000),
    "temperature": _number(0.01, 2),
    "share": _number(0.01, 0.5),
    "trackers": lambda _name, text: names_of(text),
}
"""The constants by name, each with what reads its text."""

OWNERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("level", "clip_low", "clip_high", "cold_start", "valid_share"), ("grpo", "ppo")),
    **dict.fromkeys(("beta", "scale", "leave_one_out", "neighbours"), ("grpo",)),
    **dict.fromkeys(("c1", "c2", "gamma", "lam", "horizon", "target_kl"), ("ppo",)),
    **dict.fromkeys(("top", "teacher_rate", "sdpo_alpha"), ("sdpo",)),
}
"""The algorithms that have a constant, by its name; all have those that are not here."""
