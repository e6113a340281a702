"""What else a string constant could be: alternatives that a comment lists, window patterns, activation functions."""

from __future__ import annotations

import re

from autoresearchd.policy.ranges import bag, words_of

_LISTED = re.compile(r"(?:one of|choices|choose from|options|alternatives)\s*:?\s*(.+)", re.IGNORECASE)
_QUOTED = re.compile(r"""["']([^"']+)["']""")
_SAFE = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9_.+-]{0,39}")
_ACTIVATIONS = bag("relu gelu silu swish relu2 relu_squared squared_relu tanh swiglu geglu mish")
_MOST = 12


def alternatives(name: str, value: str, comment: str, text: str) -> tuple[str, ...]:
    """All values that a string constant may take, its own among them; empty where no other is known."""
    if not _SAFE.fullmatch(value):
        return ()
    words = set(words_of(name))
    found = _listed(comment)
    if not found and words & {"pattern", "window"}:
        found = _patterns(value)
    if not found and words & {"activation", "act", "nonlinearity", "mlp"} and value in _ACTIVATIONS:
        found = tuple(a for a in sorted(_ACTIVATIONS) if re.search(rf"""["']{a}["']""", text))
    options = tuple(dict.fromkeys((value, *found)))[:_MOST]
    return tuple(sorted(options)) if len(options) > 1 else ()


def writable(text: str) -> bool:
    """Whether a string can stand between the quotes of the literal that it replaces."""
    return text.isprintable() and not set(text) & set("\"'\\")


def _listed(comment: str) -> tuple[str, ...]:
    """What ``one of: "a", "b"`` or ``choices: a, b, c.`` lists."""
    match = _LISTED.search(comment)
    if match is None:
        return ()
    quoted = _QUOTED.findall(match[1])
    if quoted:
        return tuple(q for q in quoted if _SAFE.fullmatch(q))
    plain = re.split(r"[.;)](?:\s|$)", match[1])[0]
    parts = [p.strip() for p in re.split(r"[,|/]|\bor\b", plain)]
    return tuple(p for p in parts if _SAFE.fullmatch(p))


def _patterns(value: str) -> tuple[str, ...]:
    """Periodic patterns over the two letters of a window pattern such as ``SSSL``."""
    letters = set(value)
    if letters <= {"S", "L"}:
        first, last = "S", "L"
    elif len(letters) == 2 and value.isupper() and len(value) <= 8:
        first, last = value[0], next(c for c in value if c != value[0])
    else:
        return ()
    return tuple(first * n + last for n in range(5))
