"""A proposal, what a policy saw when it made it, and what is stored of both for the learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

REBASED = "rebased"
"""Key of the side information under which an edit that is tried on another parent names the experiment that it was."""
REFUSED = "refused"
"""Key of the side information under which a failed proposal keeps its label."""
KNOWN_VALUE = "known_value"
"""Key of the side information under which a duplicate has what its program gave: it was not measured again."""


@dataclass(frozen=True, slots=True)
class ASI:
    """Actionable side information: what survives an experiment's revert. ``extra``: any further keys (JSON values)."""

    hypothesis: str = ""
    arch_change: str = ""
    result: str = ""
    next_action_hint: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """As a flat JSON object, empty fields left out."""
        named = {name: getattr(self, name) for name in ("hypothesis", "arch_change", "result", "next_action_hint")}
        return {**{k: v for k, v in named.items() if v}, **self.extra}


@dataclass(frozen=True, slots=True)
class Cost:
    """What a proposal cost. ``usd`` is None when the price is unknown, which is not the same as free."""

    usd: float | None = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Generation:
    """What the learner needs of one model answer; token_ids and logprobs: one for each token of the completion."""

    messages: tuple[Mapping[str, Any], ...] = ()
    completion: str = ""
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    model_hash: str | None = None
    tokenizer_hash: str | None = None
    template_hash: str | None = None
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a model, usable or not, as it is stored and charged the moment that it has come.

    error: why it could not be used, as the model was told; empty: it was used. form: how the edit was written
    (``search_replace``, ``lines``, ``diff``, ``whole``), or an agent's turn (``command``, ``submit``: stored before it
    is run). finish: why the model ended (``stop``, ``length``, …). attempt: 0: the first, 1…: repairs.
    """

    model: str
    cost: Cost
    generation: Generation
    error: str = ""
    form: str = ""
    finish: str = ""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Repair:
    """A proposal whose run failed for a simple reason, to be fixed. attempt: that is asked for; log: its job's end."""

    attempt: int
    files: Mapping[str, str]
    label: str
    reason: str
    log: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class Proposal:
    """An edit with its reason.

    files: new full text of each changed editable file, by its path in the task's folder. changes: constant → new value,
    where the policy works on such. expected_delta: of the metric (positive: better). charged: its cost was counted.
    """

    files: Mapping[str, str]
    hypothesis: str
    policy: str
    description: str = ""
    expected_delta: float | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    role: str = ""
    adapter: str = ""
    asi: ASI = field(default_factory=ASI)
    cost: Cost = field(default_factory=Cost)
    generation: Generation = field(default_factory=Generation)
    state_id: str = ""
    round_id: str = ""
    attempt: int = 0
    parent: str | None = None
    """Commit that ``files`` were written against; None: the incumbent that the state was made from."""
    charged: bool = False


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A proposal from outside of the session's policy, which waits for an experiment.

    files: new text of each changed editable file, written against the commit ``parent``. said: further words about it,
    as in the JSON object of an answer. proposer: who makes it, in a word.
    """

    files: Mapping[str, str]
    parent: str
    said: Mapping[str, Any]
    proposer: str
    id: int = 0
