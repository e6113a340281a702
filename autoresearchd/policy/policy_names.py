"""The names of policies as ``--policy`` takes them: ``search``, ``random``, ``command:./propose.sh``."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from autoresearchd.domain.errors import UsageError

KINDS: dict[str, str] = {
    "auto": "the model that config.yaml names, else search",
    "litellm:MODEL": "any provider's model, e.g. litellm:anthropic/claude-sonnet-4-5",
    "local[:MODEL]": "a model of your own behind an OpenAI-compatible endpoint (autoresearchd serve), or a folder",
    "agent:MODEL": "a model with a shell in a sandboxed copy of the workspace; agent:local for the local one",
    "search": "constants of the program, moved by what earlier moves brought; no model",
    "random": "the same constants, moved at random",
    "command:CMD": "a tool of your own that edits a copy of the workspace",
    "outside": "a coding agent, by `autoresearchd mcp`; each experiment waits for a proposal",
    "hybrid:POLICY": "search, which one of the others overrides in a share of the turns",
}
"""What can be asked for here, with a word on each."""

TUNERS = frozenset({"search", "random"})
"""Those that change constants and nothing else: they need one, read no notes, and run nothing of the user's."""

OUTSIDE = "outside"
"""Who has proposed what came from outside, beside whatever policy; as a policy: nobody else proposes."""

_BARE = TUNERS | {"auto", OUTSIDE}
_NAMED = frozenset({"litellm", "agent"})
_MOST = 200


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A parsed ``--policy``. argument: what follows the colon. tuned: it overrides a search (``hybrid:``)."""

    kind: str
    argument: str = ""
    tuned: bool = False

    @property
    def asks_model(self) -> bool:
        return self.kind in ("litellm", "local", "agent")

    def __str__(self) -> str:
        return "hybrid:" * self.tuned + (f"{self.kind}:{self.argument}" if self.argument else self.kind)


def parse_spec(text: str) -> PolicySpec:
    """Parse a ``--policy``. Raises UsageError: unknown, or an argument is missing or too much."""
    kind, colon, argument = text.strip().partition(":")
    kind, argument = kind.strip().lower(), argument.strip()
    if kind == "hybrid":
        other = parse_spec(argument or "auto")
        if other.tuned or other.kind in _BARE:
            raise UsageError(
                f"--policy hybrid: {argument or 'nothing'} cannot be tuned by search",
                hint="name a model or a tool after the colon: --policy hybrid:litellm:anthropic/claude-sonnet-4-5",
            )
        return replace(other, tuned=True)
    if kind in _BARE and colon:
        raise UsageError(f"--policy {kind} takes nothing after it, but was given {text!r}", hint=f"--policy {kind}")
    if kind not in _BARE | _NAMED | {"local", "command"}:
        near = difflib.get_close_matches(kind, [*_BARE, *_NAMED, "local", "command", "hybrid"], n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"there is no policy {text!r}", hint=f"{meant}policies: {', '.join(KINDS)}")
    if kind in _NAMED and not argument:
        raise UsageError(
            f"--policy {kind}: names no model",
            hint=f"write it after the colon: --policy {kind}:anthropic/claude-sonnet-4-5",
        )
    if kind == "command" and (not argument or "\0" in argument):
        raise UsageError(
            "--policy command: says no command to run",
            hint="write it after the colon: --policy 'command:./propose.sh'",
        )
    bad = len(argument) > _MOST or not argument.isprintable() or argument.startswith("-")
    if kind in _NAMED | {"local"} and bad:
        raise UsageError(f"--policy {kind}: {argument[:40]!r} is not the name of a model", hint="give a model's name")
    return PolicySpec(kind, argument)
