"""The user's own settings, ``config.yaml``: which model is asked, what it may cost, how often it is asked again."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, Strict

from autoresearchd.config.problems import Conflict, did_you_mean, in_conflict, raise_any, validated, wrong
from autoresearchd.config.task_schema import Command, Flag, Line, Number, Seconds, Section, must
from autoresearchd.config.yaml_document import (
    Document,
    Place,
    Problem,
    dotted,
    parse_yaml,
    read_text,
    shown,
    without_empty,
)
from autoresearchd.domain.errors import ConfigError
from autoresearchd.domain.redaction import find_secrets

FILE_NAME = "config.yaml"
VARIABLE = "AUTORESEARCHD_CONFIG"
MOST_BRIEF = 512
"""Tokens of an answer to the brief prompt, where the user does not say how long it may be."""

_KEYS_BELONG = (
    "keep keys out of this file: put the key into its provider's variable (e.g. ANTHROPIC_API_KEY), or into a file of "
    "its own that key_files names (`key_files: {anthropic: PATH}`); for the policy local, local.key_file, and for the "
    "address of a webhook, url_file"
)
_OF_STORE_BELONGS = "; that of the store belongs into ~/.pgpass, PGPASSWORD, or with its URL into AUTORESEARCHD_STORE"
_KEY_NAMES = re.compile(r"(?:.*[_-])?(?:key|apikey|secret|password|credentials?)|token|auth", re.IGNORECASE)
_KEY_VALUE = re.compile(r"sk-[\w-]{5,}")
_LONGEST_OPTION = 200


def _is_http(text: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and parts.username is None
    except ValueError:
        return False


Whole = Annotated[int, Strict()]
# Far above what anybody charges or has: what is beyond is a slip, and sums of it would not be money any more.
Dollars = Annotated[Number, Field(ge=0, le=1e9)]
PerMillion = Annotated[Number, Field(ge=0, le=1e6)]
_is_url = must(_is_http, "is not an http address", "write it as http://127.0.0.1:8000/v1")


class Price(Section):
    """What a model costs: US dollars for a million tokens."""

    input: PerMillion
    output: PerMillion


class Spend(Section):
    """What models may cost. per_day: US dollars of all sessions together (UTC)."""

    per_day: Dollars | None = None
    when_reached: Literal["stop", "search"] = "stop"


class Local(Section):
    """The endpoint of the policy ``local``."""

    base_url: Annotated[Line, _is_url, AfterValidator(lambda text: text.rstrip("/"))] = "http://127.0.0.1:8000/v1"
    model: Line = ""
    key_file: Line = ""


class Agent(Section):
    """Limits of the policy ``agent``, for one proposal."""

    turns: Annotated[Whole, Field(ge=1, le=1_000)] = 20
    seconds: Seconds = 900.0
    output_bytes: Annotated[Whole, Field(ge=100, le=10_000_000)] = 10_000
    usd: Dollars | None = None


def _structured(given: object) -> object:
    """Of ``auto`` and nothing nothing."""
    if given is None or given == "auto":
        return None
    if not isinstance(given, bool):
        raise wrong(f"{shown(given)} is not among true, false, auto", "write one of them")
    return given


def _plain_options(given: object) -> object:
    """Values of ``set`` as the texts that ``--set`` takes; what has no value is as if it were not there."""
    if not isinstance(given, dict):
        return given
    texts = {str(k): str(v).lower() if isinstance(v, bool) else str(v) for k, v in given.items() if v is not None}
    hint = "write one number, one word, or true or false"
    problems: list[Conflict] = [
        (name, f"{shown(given[name])} is not a single value", hint)
        for name, text in texts.items()
        if isinstance(given[name], (list, dict)) or not text.isprintable() or not 0 < len(text) <= _LONGEST_OPTION
    ]
    if problems:
        raise in_conflict(problems)
    return texts


def _schedule(cron: str) -> str:
    from apscheduler.triggers.cron import CronTrigger  # slow to import, and few files have a schedule

    hint = 'write five fields, e.g. "0 4 * * *" for 4:00 UTC; days of the week by name, e.g. "0 4 * * sun"'
    try:
        due = CronTrigger.from_crontab(cron, timezone="UTC").get_next_fire_time(None, datetime.now(UTC))
    except ValueError as error:
        raise wrong(f"{shown(cron)} is not a valid cron schedule: {error}", hint) from error
    if due is None:
        raise wrong(f"{shown(cron)} is never due: there is no such day in these months", hint)
    if any(character.isdigit() for character in cron.split()[-1]):  # 0 is Sunday to cron, Monday to the scheduler
        raise wrong(f"{shown(cron)} has a number for the day of the week, which programs read differently", hint)
    return cron


class LearnSettings(Section):
    """When and how the daemon makes its local policy better, by itself.

    every: experiments between two learner runs. cron: as crontab(5) has it, in UTC. algo, steps, set: as for ``learn``.
    pause: whether experiments wait meanwhile: ``always``, ``never``, or ``auto``, where both use the processor, or the
    only GPU. model: folder of the base model; empty: the one that the policy is asked of.
    """

    every: Annotated[Whole, Field(ge=1, le=1_000_000)] | None = None
    cron: Annotated[Line, AfterValidator(_schedule)] = ""
    algo: Literal["grpo", "ppo", "sdpo"] = "grpo"
    steps: Annotated[Whole, Field(ge=1, le=1_000_000)] | None = None
    memory_mb: Annotated[Whole, Field(ge=500, le=100_000_000)] | None = None
    pause: Literal["auto", "always", "never"] = "auto"
    model: Line = ""
    set: Annotated[dict[str, str], BeforeValidator(_plain_options)] = Field(default_factory=dict)

    @property
    def scheduled(self) -> bool:
        """Whether the daemon learns at all."""
        return self.every is not None or bool(self.cron)


class Hooks(Section):
    """Commands of the user's own around each experiment."""

    before: tuple[Command, ...] = ()
    after: tuple[Command, ...] = ()


Notice = Literal["confirmed", "crash_loop", "stall", "budget", "learner", "ended"]
"""What a user can be told of: docs/agents.md says when."""


def _no_address(given: object) -> object:
    """Before all else is said of it: other messages quote the value, and the address of a webhook is a secret."""
    if isinstance(given, str) and "://" in given:
        hint = "put the address on the first line of a file of its own, and name that file here: `url_file: PATH`"
        raise wrong("an address stands where the name of a file is needed", hint)
    return given


class NotifySettings(Section):
    """One place that is told. url_file: has the address of a webhook, which is a secret; command: or what is run.

    format: of what is sent to the address.
    """

    url_file: Annotated[Line | None, BeforeValidator(_no_address)] = None
    command: Command | None = None
    format: Literal["json", "text", "slack", "discord"] = "json"
    on: tuple[Notice, ...] = get_args(Notice)

    def conflicts(self) -> Iterator[Conflict]:
        hint = "`url_file: PATH` (a file with the address of a webhook) or `command: CMD`"
        if (self.url_file is None) == (self.command is None):
            yield "url_file", "one of url_file and command is needed, and not both", hint
        elif self.command is not None and self.format != "json":
            yield "format", "a command gets JSON on its standard input", "leave format out"


class ModelSettings(Section):
    """How models are asked: all of ``config.yaml``.

    policy: what ``--policy auto`` stands for; empty: ``search``. context_tokens, max_tokens: of a prompt, and of an
    answer. retries: after a passing trouble; reasks: of a malformed answer; repairs: of a failed proposal. structured:
    None: where the model is known to have it. anonymous: the brief prompt calls constants C1, C2, …: a control for what
    their names tell. store: of the journal, a URL of PostgreSQL; empty: a file in each repository. docs/policies.md has
    them all.
    """

    policy: Line = ""
    fallbacks: tuple[Line, ...] = ()
    context_tokens: Annotated[Whole, Field(ge=1_000, le=10_000_000)] = 64_000
    max_tokens: Annotated[Whole, Field(ge=16, le=1_000_000)] = 8_192
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    timeout: Seconds = 300.0
    retries: Annotated[Whole, Field(ge=0, le=20)] = 5
    reasks: Annotated[Whole, Field(ge=0, le=10)] = 2
    repairs: Annotated[Whole, Field(ge=0, le=2)] = 2
    feedback: Flag = True
    prompt: Literal["full", "brief"] = "full"
    structured: Annotated[bool | None, BeforeValidator(_structured)] = None
    anonymous: Flag = False
    prices: dict[str, Price] = Field(default_factory=dict)
    key_files: dict[str, Line] = Field(default_factory=dict)
    spend: Spend = Spend()
    local: Local = Local()
    agent: Agent = Agent()
    learn: LearnSettings = LearnSettings()
    roles: Flag = False
    parents: Literal["incumbent", "puct"] = "incumbent"
    group: Annotated[Whole, Field(ge=1, le=64)] = 1
    store: Line = ""
    hooks: Hooks = Hooks()
    notify: tuple[NotifySettings, ...] = ()


def settings_path(environment: Mapping[str, str]) -> Path | None:
    """Where the settings are; a relative ``XDG_CONFIG_HOME`` does not count (freedesktop.org, basedir-spec)."""
    if environment.get(VARIABLE):
        return _path(environment[VARIABLE], Path(), environment)
    folder = environment.get("XDG_CONFIG_HOME", "")
    if folder.startswith("/"):
        return Path(folder, "autoresearchd", FILE_NAME)
    return Path(environment["HOME"], ".config", "autoresearchd", FILE_NAME) if environment.get("HOME") else None


def for_elsewhere(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a program that is started in another folder: it is to find the same settings."""
    named = environment.get(VARIABLE)
    return {**environment, VARIABLE: str(_path(named, Path.cwd(), environment))} if named else dict(environment)


def load_settings(environment: Mapping[str, str]) -> ModelSettings:
    """The user's settings; the defaults where there is no file (``/dev/null`` stands for none).

    ConfigError: the file cannot be used, or is named and not there, as a cap must not be left out in silence.
    """
    path = settings_path(environment)
    if path is None or str(path) == os.devnull:
        return ModelSettings()
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if environment.get(VARIABLE):
            raise ConfigError("there is no such file", file=str(path), hint=f"write it, or unset {VARIABLE}") from None
        return ModelSettings()
    except OSError:
        pass  # reading it says why
    return read_settings_text(read_text(path), file=str(path), environment=environment)


def read_settings_text(text: str, *, file: str = FILE_NAME, environment: Mapping[str, str] = {}) -> ModelSettings:
    """As ``load_settings``, from the text of a config.yaml; ``file``: its path, and how messages call it."""
    # Before anything else is said of the file: other messages quote it.
    spans = find_secrets(text)
    raise_any(file, (Problem(*_key(kind), line=text.count("\n", 0, begin) + 1) for begin, _, kind in spans))
    if all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines()):
        return ModelSettings()
    document = parse_yaml(text, file)
    raise_any(file, _pasted_keys(document, document.root, ()))
    values = without_empty(document.root, keep={("prices",), ("learn", "set")})
    found = validated(ModelSettings, values, document, file, advise=_advise)
    return _settled(found, Path(file).parent, environment)


def _path(text: str, folder: Path, environment: Mapping[str, str]) -> Path:
    """A path as users write it: with ``~/``, or relative to ``folder``."""
    at_home = text.startswith("~/") and environment.get("HOME")
    return Path(environment["HOME"], text[2:]) if at_home else folder / text


# ---------------------------------------------------------------------- keys that do not belong here
def _key(kind: str) -> tuple[str, str]:
    """(what, hint); the key itself is not shown."""
    hint = _OF_STORE_BELONGS if kind == "url-password" else ""
    return f"this looks like a key or a password ({kind})", _KEYS_BELONG + hint


def _pasted_keys(document: Document, value: object, place: Place) -> Iterator[Problem]:
    """Values that begin as keys do, though they may be too short or too plain for one."""
    if isinstance(value, (Mapping, list)):
        for step, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _pasted_keys(document, inner, (*place, step))
    elif isinstance(value, str) and _KEY_VALUE.match(value.strip()):
        yield Problem(*_key("sk-…"), dotted(place), document.line(place))


def _advise(place: Place, known: list[str]) -> str:
    """What would be right in place of a key that is not known."""
    key = str(place[-1])
    if _KEY_NAMES.fullmatch(key):
        return _KEYS_BELONG
    fields = ModelSettings.model_fields.items()
    section = next((name for name, field in fields if key in getattr(field.annotation, "model_fields", ())), "")
    if len(place) == 1 and section:
        return f"it belongs to {section}: `{section}: {{{key}: …}}`"
    return did_you_mean(key, known)


# ---------------------------------------------------------------------- the settings after validation
def _settled(found: ModelSettings, folder: Path, environment: Mapping[str, str]) -> ModelSettings:
    """With paths as programs take them, and an answer as short as the prompt asks for."""

    def place(text: str | None) -> str | None:
        return str(_path(text, folder, environment)) if text else text

    changed: dict[str, object] = {
        "key_files": {name: place(text) for name, text in found.key_files.items()},
        "local": found.local.model_copy(update={"key_file": place(found.local.key_file)}),
        "notify": tuple(one.model_copy(update={"url_file": place(one.url_file)}) for one in found.notify),
    }
    if found.prompt == "brief" and "max_tokens" not in found.model_fields_set:
        changed["max_tokens"] = MOST_BRIEF
    return found.model_copy(update=changed)
