"""What is found in one file: the constants that may be tuned, those that are left alone and why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from autoresearchd.policy.parameter import Parameter

_NUMBERED = re.compile(r"#\d+$")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A constant that is not tuned. start: its place in the bytes of the file; why: the reason, for people.

    notable: whether the user may not expect it: no comment, key or plain name says so.
    """

    name: str
    path: str
    source: str
    start: int
    why: str
    notable: bool = False

    @property
    def label(self) -> str:
        """The name without the file, for people."""
        return self.name.partition(":")[2]


@dataclass(frozen=True, slots=True)
class Space:
    """All constants of a file, in its order."""

    parameters: tuple[Parameter, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


def means(key: str, label: str) -> bool:
    """Whether a name that a person writes is that of a constant, or of a group that has it: ``BETAS`` of ``BETAS[0]``.

    label: the constant's name without its file, e.g. ``AdamW.lr#1``.
    """
    return key == label or (label.startswith(key) and label[len(key)] in ".[#") or _NUMBERED.sub("", label) == key


def reason_for(label: str, reasons: Mapping[str, str]) -> str:
    """Why a constant is left alone, empty where it is not."""
    return next((why for key, why in reasons.items() if means(key, label)), "")
