"""What a user has set up for models: which is asked, what it may cost, how often it is asked again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens."""

    input: float
    output: float


@dataclass(frozen=True, slots=True)
class LearnSettings:
    """When and how the daemon makes its local policy better, by itself.

    every: experiments between two learner runs. cron: as crontab(5) has it, in UTC. algo, steps, options: as for
    ``learn``. pause: whether experiments wait meanwhile: ``always``, ``never``, or ``auto``, where both use the
    processor, or the only GPU. model: folder of the base model; empty: the one that the policy is asked of.
    """

    every: int | None = None
    cron: str = ""
    algo: str = "grpo"
    steps: int | None = None
    memory_mb: int | None = None
    pause: str = "auto"
    model: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def scheduled(self) -> bool:
        """Whether the daemon learns at all."""
        return self.every is not None or bool(self.cron)


Notice = Literal["confirmed", "crash_loop", "stall", "budget", "learner", "ended"]
"""What a user can be told of: docs/agents.md says when."""
NOTICES: tuple[Notice, ...] = get_args(Notice)


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """One place that is told. url_file: has the address of a webhook, which is a secret; command: or what is run.

    form: of what is sent to the address: ``json``, ``text``, ``slack``, ``discord``. on: of ``NOTICES``.
    """

    url_file: str = ""
    command: str = ""
    form: str = "json"
    on: tuple[Notice, ...] = NOTICES


MOST_BRIEF = 512
"""Tokens of an answer to the brief prompt, where the user does not say how long it may be."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How models are asked, from ``config.yaml``.

    policy: what ``--policy auto`` stands for; empty: ``search``. context_tokens, max_tokens: of a prompt, and of an
    answer. retries: after a passing trouble; reasks: of a malformed answer; repairs: of a failed proposal. structured:
    None: where the model is known to have it. anonymous: the brief prompt calls constants C1, C2, …: a control for what
    their names tell. per_day: US dollars of all sessions together (UTC). base_url,
    local_model, key_file: of the policy ``local``. store: of the journal, a URL of PostgreSQL; empty: a file in each
    repository. hooks_before, hooks_after: commands of the user's own around each experiment. docs/policies.md has them
    all.
    """

    policy: str = ""
    fallbacks: tuple[str, ...] = ()
    context_tokens: int = 64_000
    max_tokens: int = 8_192
    temperature: float | None = None
    timeout: float = 300.0
    retries: int = 5
    reasks: int = 2
    repairs: int = 2
    feedback: bool = True
    prompt: str = "full"
    structured: bool | None = None
    anonymous: bool = False
    prices: Mapping[str, Price] = field(default_factory=dict)
    per_day: float | None = None
    when_spent: str = "stop"
    base_url: str = "http://127.0.0.1:8000/v1"
    local_model: str = ""
    key_file: str = ""
    key_files: Mapping[str, str] = field(default_factory=dict)
    roles: bool = False
    parents: str = "incumbent"
    group: int = 1
    store: str = ""
    agent_turns: int = 20
    agent_seconds: float = 900.0
    agent_output_bytes: int = 10_000
    agent_usd: float | None = None
    learn: LearnSettings = field(default_factory=LearnSettings)
    hooks_before: tuple[str, ...] = ()
    hooks_after: tuple[str, ...] = ()
    notify: tuple[NotifySettings, ...] = ()
