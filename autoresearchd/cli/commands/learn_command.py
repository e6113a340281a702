"""The command learn: a better local policy from what its proposals earned, or a look at what there is to learn from."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from autoresearchd.cli.command_options import JsonOption
from autoresearchd.cli.repository_here import here
from autoresearchd.cli.terminal_text import json_text, say, strip_controls
from autoresearchd.domain.errors import MissingCapability, UsageError
from autoresearchd.domain.quantities import counted

if TYPE_CHECKING:
    from autoresearchd.domain.policy_versions import BaseModel
    from autoresearchd.learner.data.data_summary import Summary
    from autoresearchd.learner.data.read_sessions import Material, Reading, ReadSession
    from autoresearchd.learner.data.reward_signal import Signal

_OPTION = re.compile(r"([a-z][a-z0-9_.]{0,63})=(.{1,200})")
_MOST_NAMED = 5
_MOST_SESSIONS = 20
_PACKAGES = ("torch", "transformers", "peft", "safetensors")
"""Without which nothing is learned."""


def learn(
    algo: Annotated[
        Literal["grpo", "ppo", "sdpo"],
        typer.Option(
            "--algo",
            help="grpo: compare answers to the same state; ppo (experimental): a value head over the sequence "
            "of experiments; sdpo (experimental): learn from the words of the outcome.",
        ),
    ],
    mode: Annotated[
        Literal["replay", "live"],
        typer.Option("--mode", help="replay: learn from stored answers; live: run experiments for new ones."),
    ] = "replay",
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="DIR|HUB_ID",
            help="The base model (default: local.model of config.yaml). Answers of another one are left out.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", min=1, help="Steps of the optimiser.", show_default=False),
    ] = None,
    places: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="DIR",
            help="Learn from the sessions of this repository too; may be given several times.",
            show_default=False,
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A constant of the algorithm; may be given several times.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show what would be learned from and what not, with what --set says, and learn nothing.",
        ),
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export",
            metavar="FILE.parquet",
            help="Write what would be learned from, one row for each answer, and learn nothing.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make the local policy better by what its proposals earned.

    The answers of models in all sessions of this repository are read, those that cannot be learned from are left out,
    and a part is held out. An adapter is trained on the rest, and used only if it does better on what was held out.
    """
    others, given = tuple(places or ()), parse_options(options or ())
    if dry_run or export is not None:
        _look(algo, mode, model or "", others, given, export, as_json=as_json)
        return
    _check_packages()
    from autoresearchd.app.learning import learn as run
    from autoresearchd.learner.learn_options import LearnRequest

    outcome = run(LearnRequest(algo, mode, model or "", steps, others, given), here(), say)
    if as_json:
        print(json_text(dict(outcome), indent=2))


def _check_packages() -> None:
    """Before anything that imports them.

    Raises:
        MissingCapability: one is not installed.
    """
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingCapability(
            f"learning needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint="pip install 'autoresearchd[learn]'",
        )


def parse_options(given: Sequence[str]) -> dict[str, str]:
    """Names and values of ``--set``.

    Raises:
        UsageError: one is not NAME=VALUE, or a name is given twice.
    """
    found: dict[str, str] = {}
    for text in given:
        match = _OPTION.fullmatch(text)
        if match is None or not match[2].isprintable():
            raise UsageError(f"--set {text[:80]!r} is not NAME=VALUE", hint="write it as --set learning_rate=1e-4")
        if match[1] in found:
            raise UsageError(f"--set {match[1]} is given twice", hint="give it once")
        found[match[1]] = match[2]
    return found


# ---------------------------------------------------------------------- the look
def _look(
    algo: str,
    mode: str,
    model: str,
    others: Sequence[Path],
    given: Mapping[str, str],
    export: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print what there is to learn from, and write it to a file where one is named."""
    from autoresearchd.learner.data.data_summary import summarise, write_parquet
    from autoresearchd.learner.data.read_sessions import filters_for, home_of, locate, material, read_sessions
    from autoresearchd.learner.training.constant_values import SHARE, asks_at_home, values_of

    values = values_of(given, algo)
    _check_target(export)
    base = _base(model)
    roots, warnings = locate(here(), others)
    reading = read_sessions(roots, home_of(here()))
    at_home = asks_at_home(values.get("judge", "auto"), run_foreign=values.get("run_foreign", False))
    found = material(reading, filters_for(mode, base), values.get("share", SHARE), at_home=at_home)
    if values.get("neighbours", SHARE) is None:  # single answers are left out
        found = replace(found, signal=replace(found.signal, comparable=0))
    if export is not None:
        try:
            write_parquet(found.data.trajectories, export)
        except OSError as error:
            raise UsageError(
                f"cannot write {export}: {error.strerror or error}", hint="name a file in a folder that exists"
            ) from error
    for warning in (*warnings, *reading.warnings, *_doubts(model, base, reading)):
        say(warning)
    summary = summarise(found.data, found.parts)
    if as_json:
        print(json_text(document(algo, mode, base, reading, found, summary, values), indent=2))
    else:
        for line in lines(algo, mode, base, reading, found, summary, values):
            print(strip_controls(line))
    sys.stdout.flush()
    if export is not None:
        say(f"wrote {export}: {counted(len(found.data.trajectories), 'answer')}")


def _check_target(export: Path | None) -> None:
    """Before anything is read, which may take a while."""
    if export is None:
        return
    if export.suffix != ".parquet":
        raise UsageError(f"--export {export}: only Parquet is written", hint="name a file that ends with .parquet")
    try:
        export.with_name(f"{export.name}.part").is_dir()  # it is written under that name first
        fits = not export.is_dir() and export.parent.is_dir()
    except OSError:  # the name is too long, or the folder may not be looked into
        fits = False
    if not fits:
        raise UsageError(f"--export {export}: no file can be there", hint="name a file in a folder that exists")


def _base(model: str) -> BaseModel | None:
    """The base model to compare with: the one that was named, else that of config.yaml, where it is on this disk."""
    from autoresearchd.config.settings import load_settings
    from autoresearchd.learner.versions.base_models import base_model, cached, model_place

    if model:
        place = model_place(model, here()) or cached(model, os.environ)
    else:
        name = load_settings(os.environ).local_model
        place = here() / Path(name).expanduser() if name else None
        if place is not None and not place.exists():
            place = cached(name, os.environ)
    return None if place is None else base_model(place)


def _doubts(model: str, base: BaseModel | None, reading: Reading) -> list[str]:
    """What cannot be compared, where that could matter."""
    if base is None and len(reading.models) > 1:
        named = ", ".join(list(reading.models)[:_MOST_NAMED])
        return [f"answers of several models are read together ({named}): --model DIR leaves out those of others"]
    if model and base is None:
        return [f"--model {model} is no folder here: whether the answers are its own is not looked at"]
    return []


def lines(
    algo: str,
    mode: str,
    base: BaseModel | None,
    reading: Reading,
    found: Material,
    summary: Summary,
    values: Mapping[str, Any],
) -> list[str]:
    """The look as text."""
    from autoresearchd.learner.data.data_summary import describe
    from autoresearchd.learner.data.read_sessions import UNKNOWN_HINT
    from autoresearchd.learner.gate.promotion_needs import lines as promotion_lines
    from autoresearchd.learner.gate.promotion_needs import promotion

    answered = [session for session in reading.sessions if session.answers]
    silent = [session.name for session in reading.sessions if not session.answers]
    out = [_session_line(session) for session in answered[-_MOST_SESSIONS:]]
    if len(answered) > _MOST_SESSIONS:
        out.insert(0, f"… and {counted(len(answered) - _MOST_SESSIONS, 'older session')}")
    if silent:
        more = "" if len(silent) <= _MOST_NAMED else f" and {len(silent) - _MOST_NAMED:,} more"
        out.append(f"no model answered in: {', '.join(silent[:_MOST_NAMED])}{more}")
    if base is not None:
        out.append(f"base model: {base.name}")
    out += ["", *describe(summary).split("\n"), ""]
    if mode == "replay" and reading.unknown:
        which = "" if base is not None else " once it is said which model is to learn"
        out += [f"{reading.unknown:,} answers tell no hash of their model, and replay leaves them out{which}"]
        out += [f"  → {UNKNOWN_HINT}"]
    if mode == "live":
        out.append("live: these answers lend their states; proposals are made and run anew")
    elif found.data.trajectories:
        out += _outlook(found.signal, algo, values)
    if any(session.foreign for session in answered):
        run = "are run, too: --set run_foreign=true" if values.get("run_foreign") else "are not run"
        out.append(f"foreign sessions are learned from; their experiments {run}")
    if values:
        out.append(f"constants: {', '.join(f'{name}={_text(value)}' for name, value in values.items())}")
    if "max_length" in values:
        out.append("max_length is looked at once the model is there, whose tokens it counts")
    out += ["", *promotion_lines(promotion(found, reading.sessions, values), "" if base is None else base.name, values)]
    if found.problem:
        out += [f"not enough: {found.problem}", f"  → {found.hint}"]
    return out


def _outlook(found: Signal, algo: str, values: Mapping[str, Any]) -> list[str]:
    """What an algorithm would do with it under some constants, in sentences."""
    from autoresearchd.learner.data.reward_signal import lacking, outlook

    told = outlook(found, algo)
    if not values.keys() & {"cold_start", "valid_share"} or algo == "sdpo":
        return told
    cold, missing = _cold(found, algo, values), lacking(found, algo)
    if cold and found.good:
        how = "for all of its steps" if missing else "for its first steps"
        last = f"cold start: {how} it imitates the {counted(found.good, 'kept answer')}, because {cold}"
    else:
        last = f"nothing can be learned: {missing}" if missing else "no cold start"
    return [*told[:1], last]


def _cold(found: Signal, algo: str, values: Mapping[str, Any]) -> str:
    """Why it would begin by imitating the kept answers; empty where it would not."""
    from autoresearchd.learner.data.reward_signal import LEAST_USABLE, cold_start

    return cold_start(found, algo, values.get("valid_share", LEAST_USABLE)) if values.get("cold_start", True) else ""


def _text(value: object) -> str:
    """A value as ``--set`` has it."""
    if isinstance(value, tuple):
        return ",".join(value)
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _session_line(session: ReadSession) -> str:
    task = f"task {session.task.name}" if session.task is not None else "a task that cannot be read"
    counts = f"{counted(session.answers, 'answer')}, {counted(session.decided, 'experiment')}"
    where = ", foreign (of another repository)" if session.foreign else ""
    return f"{session.name}: {counts}, policy {session.policy}, {task}{where}"


def document(
    algo: str,
    mode: str,
    base: BaseModel | None,
    reading: Reading,
    found: Material,
    summary: Summary,
    values: Mapping[str, Any],
) -> dict[str, Any]:
    """The look as JSON."""
    from autoresearchd.learner.data.reward_signal import lacking
    from autoresearchd.learner.gate.promotion_needs import LEAST, promotion

    replay = mode == "replay"
    return {
        "algo": algo,
        "mode": mode,
        "model": None if base is None else asdict(base),
        "constants": dict(values),
        "sessions": [
            {
                "name": session.name,
                "repository": str(session.root),
                "tag": session.tag,
                "task": None if session.task is None else session.task.name,
                "policy": session.policy,
                "experiments": session.decided,
                "answers": session.answers,
                "foreign": session.foreign,
            }
            for session in reading.sessions
        ],
        "models": dict(reading.models),
        "answers": {
            "read": summary.read,
            "kept": summary.kept,
            "left_out": {reason.name.lower(): count for reason, count in summary.dropped.items()},
            "first": None if summary.first is None else summary.first.isoformat(),
            "last": None if summary.last is None else summary.last.isoformat(),
            "tokens": summary.tokens,
            "with_feedback": summary.with_feedback,
            "without_model_hash": reading.unknown,
        },
        "groups": {"all": summary.groups, "singles": summary.singles, "zero_variance": summary.zero_variance},
        "rewards": {
            "mean": summary.mean,
            "deviation": summary.deviation,
            "least": summary.least,
            "most": summary.most,
            "censored": summary.censored,
        },
        "labels": dict(summary.labels),
        "versions": dict(summary.versions),
        "split": None
        if found.parts is None
        else {
            "by": summary.split_by,
            "train": summary.train,
            "held_out": summary.held_out,
            "leaked": summary.leaked,
        },
        "signal": asdict(found.signal) if replay else None,
        "lacking": lacking(found.signal, algo) if replay else "",
        "cold_start": _cold(found.signal, algo, values) if replay else "",
        "promotion": {"states_needed": LEAST, **asdict(promotion(found, reading.sessions, values))},
        "problem": found.problem,
        "hint": found.hint,
    }
