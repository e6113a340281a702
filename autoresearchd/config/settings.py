"""The user's own settings, ``config.yaml``: which model is asked, what it may cost, how often it is asked again."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Strict, ValidationError

from autoresearchd.config.problems import Problem, did_you_mean, raise_all, raise_any, shown
from autoresearchd.config.task_schema import Conflict, Flag, Line, Number, Seconds, Section, in_conflict, wrong
from autoresearchd.config.validation_errors import explain
from autoresearchd.config.yaml_document import Document, Place, dotted, parse_yaml, read_text, without_empty
from autoresearchd.domain.errors import ConfigError
from autoresearchd.domain.model_settings import LearnSettings, ModelSettings, Price
from autoresearchd.domain.redaction import find_secrets

FILE_NAME = "config.yaml"
VARIABLE = "AUTORESEARCHD_CONFIG"

_KEYS_BELONG = (
    "keep keys out of this file: put the key into its provider's variable (e.g. ANTHROPIC_API_KEY), or into a file of "
    "its own that key_files names (`key_files: {anthropic: PATH}`); for the policy local, local.key_file"
)
_KEY_NAMES = re.compile(r"(?:.*[_-])?(?:key|apikey|secret|password|credentials?)|token|auth", re.IGNORECASE)
_KEY_VALUE = re.compile(r"sk-[\w-]{5,}")
_LONGEST_OPTION = 200


def _between(low: float, high: float) -> AfterValidator:
    def check(value: float) -> float:
        if not low <= value <= high:
            raise wrong(f"{shown(value)} is not between {low:,} and {high:,}", "write a number in between")
        return value

    return AfterValidator(check)


def _money(most: float, too_much: str, hint: str) -> AfterValidator:
    def check(value: float) -> float:
        if value < 0:
            raise wrong(f"{shown(value)} is not an amount of money", "write US dollars, e.g. 20 or 0.50; zero or more")
        if value > most:
            raise wrong(f"{shown(value)} is {too_much}", hint)
        return value

    return AfterValidator(check)


def _where_known(value: object) -> bool | None:
    if value == "auto":
        return None
    if not isinstance(value, bool):
        raise wrong(f"{shown(value)} is neither auto nor true nor false", "write `structured: auto`, or true or false")
    return value


def _url(text: str) -> str:
    try:
        parts = urllib.parse.urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and parts.username is None
    except ValueError:
        good = False
    if not good:
        raise wrong(f"{shown(text)} is not an http address", "write it as http://127.0.0.1:8000/v1")
    return text.rstrip("/")


Whole = Annotated[int, Strict()]
# Far above what anybody charges or has: what is beyond is a slip, and sums of it would be no money any more.
Dollars = Annotated[
    Number, _money(1e9, "more than 1,000,000,000 US dollars", "write less, or leave the key out for no cap")
]
PerMillion = Annotated[
    Number,
    _money(
        1e6,
        "no price: it is more than a dollar for each token",
        "write US dollars for a million tokens, e.g. 3.0; at most 1,000,000",
    ),
]
Url = Annotated[Line, AfterValidator(_url)]


class PriceFile(Section):
    """What a model costs: US dollars for a million tokens."""

    input: PerMillion
    output: PerMillion


class SpendFile(Section):
    """What models may cost."""

    per_day: Dollars | None = None
    when_reached: Literal["stop", "search"] = "stop"


class LocalFile(Section):
    """The endpoint of the policy ``local``."""

    base_url: Url = "http://127.0.0.1:8000/v1"
    model: Line | None = None
    key_file: Line | None = None


class AgentFile(Section):
    """Limits of the policy ``agent``."""

    turns: Annotated[Whole, _between(1, 1_000)] = 20
    seconds: Seconds = 900.0
    output_bytes: Annotated[Whole, _between(100, 10_000_000)] = 10_000
    usd: Dollars | None = None


def _plain_options(given: object) -> object:
    """Values of ``set`` as the texts that ``--set`` takes; what has no value is as if it were not there."""
    if not isinstance(given, dict):
        return given
    found: dict[str, str] = {}
    problems: list[Conflict] = []
    for name, value in given.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if isinstance(value, (list, dict)) or not text.isprintable() or not 0 < len(text) <= _LONGEST_OPTION:
            problems.append(
                (str(name), f"{shown(value)} is not a single value", "write one number, one word, or true or false")
            )
        elif value is not None:
            found[str(name)] = text
    if problems:
        raise in_conflict(problems)
    return found


def _schedule(cron: str) -> str:
    """The text itself where the scheduler can keep it; raises PydanticCustomError where it cannot."""
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


class LearnFile(Section):
    """When and how the daemon makes its local policy better."""

    every: Annotated[Whole, _between(1, 1_000_000)] | None = None
    cron: Annotated[Line, AfterValidator(_schedule)] | None = None
    algo: Literal["grpo", "ppo", "sdpo"] = "grpo"
    steps: Annotated[Whole, _between(1, 1_000_000)] | None = None
    memory_mb: Annotated[Whole, _between(500, 100_000_000)] | None = None
    pause: Literal["auto", "always", "never"] = "auto"
    model: Line | None = None
    set: Annotated[dict[str, str], BeforeValidator(_plain_options)] = Field(default_factory=dict)


class SettingsFile(Section):
    """All of config.yaml."""

    policy: Line | None = None
    fallbacks: tuple[Line, ...] = ()
    context_tokens: Annotated[Whole, _between(1_000, 10_000_000)] = 64_000
    max_tokens: Annotated[Whole, _between(16, 1_000_000)] = 8_192
    temperature: Annotated[Number, _between(0, 2)] | None = None
    timeout: Seconds = 300.0
    retries: Annotated[Whole, _between(0, 20)] = 5
    reasks: Annotated[Whole, _between(0, 10)] = 2
    repairs: Annotated[Whole, _between(0, 2)] = 2
    feedback: Flag = True
    prompt: Literal["full", "brief"] = "full"
    structured: Annotated[bool | None, BeforeValidator(_where_known)] = None
    prices: dict[str, PriceFile] = Field(default_factory=dict)
    key_files: dict[str, Line] = Field(default_factory=dict)
    spend: SpendFile = SpendFile()
    local: LocalFile = LocalFile()
    agent: AgentFile = AgentFile()
    learn: LearnFile = LearnFile()
    roles: Flag = False
    parents: Literal["incumbent", "puct"] = "incumbent"
    group: Annotated[Whole, _between(1, 64)] = 1


_SECTIONS: Mapping[str, type[Section]] = {
    "spend": SpendFile,
    "local": LocalFile,
    "agent": AgentFile,
    "learn": LearnFile,
}
_MOVED = {key: name for name, section in _SECTIONS.items() for key in section.model_fields} | {
    "when_spent": "spend",
    "local_model": "local",
    **{f"agent_{key}": "agent" for key in AgentFile.model_fields},
}
_RENAMED = {"when_spent": "when_reached", "local_model": "model"} | {f"agent_{k}": k for k in AgentFile.model_fields}
"""Keys of the sections, and of the settings as the program calls them, that somebody may write at the top."""


def settings_path(environment: Mapping[str, str]) -> Path | None:
    """Where the settings are: ``$AUTORESEARCHD_CONFIG``, else below ``$XDG_CONFIG_HOME``, else below ``~/.config``.

    None where there is no such place. A relative ``XDG_CONFIG_HOME`` does not count
    (https://specifications.freedesktop.org/basedir-spec/latest/).
    """
    if environment.get(VARIABLE):
        return _path(environment[VARIABLE], Path(), environment)
    folder = environment.get("XDG_CONFIG_HOME", "")
    if folder.startswith("/"):
        return Path(folder, "autoresearchd", FILE_NAME)
    return Path(environment["HOME"], ".config", "autoresearchd", FILE_NAME) if environment.get("HOME") else None


def load_settings(environment: Mapping[str, str]) -> ModelSettings:
    """The user's settings; the defaults where there is no file.

    Raises:
        ConfigError: the file cannot be used, or ``$AUTORESEARCHD_CONFIG`` names none: a cap that is relied upon must
            not be left out in silence. ``/dev/null`` stands for no settings.
    """
    path = settings_path(environment)
    if path is None or str(path) == os.devnull:
        return ModelSettings()
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if not environment.get(VARIABLE):
            return ModelSettings()
        raise ConfigError("there is no such file", file=str(path), hint=f"write it, or unset {VARIABLE}") from None
    except OSError:
        pass  # reading it says why
    with _own_words():
        text = read_text(path)
    return read_settings_text(text, file=str(path), environment=environment)


def read_settings_text(
    text: str, *, file: str = FILE_NAME, environment: Mapping[str, str] | None = None
) -> ModelSettings:
    """As ``load_settings``, from the text of a config.yaml; ``file``: its path, and how messages call it."""
    # Before anything else is said of the file: other messages quote it.
    spans = find_secrets(text)
    raise_any(file, (Problem(*_key(kind), line=text.count("\n", 0, begin) + 1) for begin, _, kind in spans))
    if all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines()):
        return ModelSettings()
    with _own_words():
        document = parse_yaml(text, file)
    raise_any(file, _pasted_keys(document, document.root, ()))
    try:
        checked = SettingsFile.model_validate(without_empty(document.root, keep={("prices",), ("learn", "set")}))
    except ValidationError as error:
        found = explain(error, document, top=SettingsFile, advise=_advise)
        raise_all(file, [*document.problems, *found])
    raise_any(file, document.problems)
    return _settings(checked, Path(file).parent, environment or {})


@contextmanager
def _own_words() -> Iterator[None]:
    """Remedies that speak of a task.yaml are of no use here."""
    try:
        yield
    except ConfigError as error:
        if "task" in error.hint:
            error.hint = "write lines of `key: value`, e.g. `max_tokens: 8192`"
        raise


def _path(text: str, folder: Path, environment: Mapping[str, str]) -> Path:
    """A path as users write it: with ``~/``, or relative to ``folder``."""
    if text.startswith("~/") and environment.get("HOME"):
        return Path(environment["HOME"], text[2:])
    return folder / text


# ---------------------------------------------------------------------- keys that do not belong here
def _key(kind: str) -> tuple[str, str]:
    """(what, hint); the key itself is not shown."""
    return f"this looks like a key or a password ({kind})", _KEYS_BELONG


def _pasted_keys(document: Document, value: object, place: Place) -> Iterator[Problem]:
    """Values that begin as keys do, though they may be too short or too plain for one."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _pasted_keys(document, inner, (*place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _pasted_keys(document, inner, (*place, index))
    elif isinstance(value, str) and _KEY_VALUE.match(value.strip()):
        yield Problem(*_key("sk-…"), dotted(place), document.line(place))


# ---------------------------------------------------------------------- keys that are not known
def _advise(place: Place, known: list[str]) -> str:
    """What would be right in place of a key that is not known."""
    key = str(place[-1])
    if _KEY_NAMES.fullmatch(key):
        return _KEYS_BELONG
    if place == ("model",):
        return "write `policy: litellm:MODEL`, or for an endpoint of your own `local: {model: MODEL}`"
    if len(place) == 1 and key in _MOVED:
        return f"it belongs to {_MOVED[key]}: `{_MOVED[key]}: {{{_RENAMED.get(key, key)}: …}}`"
    return did_you_mean(key, known)


# ---------------------------------------------------------------------- the settings after validation
def _settings(file: SettingsFile, folder: Path, environment: Mapping[str, str]) -> ModelSettings:
    values = {key: value for key, value in dict(file).items() if key not in _SECTIONS}
    local, learn = file.local, file.learn
    return ModelSettings(
        **values
        | {"policy": file.policy or "", "prices": {m: Price(p.input, p.output) for m, p in file.prices.items()}}
        | {"key_files": {name: str(_path(place, folder, environment)) for name, place in file.key_files.items()}}
        | {f"agent_{key}": value for key, value in file.agent},
        per_day=file.spend.per_day,
        when_spent=file.spend.when_reached,
        base_url=local.base_url,
        local_model=local.model or "",
        key_file=str(_path(local.key_file, folder, environment)) if local.key_file else "",
        learn=LearnSettings(
            **{key: value for key, value in learn if key not in ("set", "cron", "model")},
            cron=learn.cron or "",
            model=learn.model or "",
            options=dict(learn.set),
        ),
    )
