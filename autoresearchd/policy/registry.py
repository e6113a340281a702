"""The names of policies as ``--policy`` takes them: ``search``, ``random``, ``command:./propose.sh``."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from autoresearchd.errors import MissingCapability, UsageError

KINDS: dict[str, str] = {
    "auto": "a configured model, else search",
    "search": "constants of the program, moved by a sampler; no model",
    "random": "the same constants, moved at random",
    "command:CMD": "a tool of your own that edits a copy of the workspace",
}
"""What can be asked for here, with a word on each."""

_BARE = frozenset({"auto", "search", "random"})
_WITH_MODEL = frozenset({"litellm", "local", "agent"})


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A parsed ``--policy``. argument: what follows the colon."""

    kind: str
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.argument}" if self.argument else self.kind


def parse_spec(text: str) -> PolicySpec:
    """Parse a ``--policy``.

    Raises:
        UsageError: unknown, or an argument is missing or too much.
        MissingCapability: a policy that this version does not carry.
    """
    kind, colon, argument = text.strip().partition(":")
    kind, argument = kind.strip().lower(), argument.strip()
    if kind in _WITH_MODEL:
        raise MissingCapability(
            f"--policy {kind}: policies with a model are not part of this version",
            mend="take search (the default), random, or command:CMD with a tool that asks a model",
        )
    if kind == "command":
        if not argument or "\0" in argument:
            raise UsageError(
                "--policy command: says no command to run",
                mend="write it after the colon: --policy 'command:./propose.sh'",
            )
        return PolicySpec(kind, argument)
    if kind in _BARE:
        if colon:
            raise UsageError(f"--policy {kind} takes nothing after it, but was given {text!r}", mend=f"--policy {kind}")
        return PolicySpec(kind)
    raise UsageError(f"there is no policy {text!r}", mend=_advice(kind))


def _advice(kind: str) -> str:
    near = difflib.get_close_matches(kind, [*_BARE, "command"], n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{meant}policies: {', '.join(KINDS)}"
