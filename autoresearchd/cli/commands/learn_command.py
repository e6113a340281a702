"""The command learn: a better local policy from what its proposals earned, or a look at what there is to learn from."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from autoresearchd.cli.command_options import JsonOption
from autoresearchd.cli.repository_here import here
from autoresearchd.cli.terminal_text import json_text, say, strip_controls
from autoresearchd.domain.errors import MissingCapability, UsageError, unwritable
from autoresearchd.domain.quantities import counted, some_of

if TYPE_CHECKING:
    from autoresearchd.domain.policy_versions import BaseModel
    from autoresearchd.learner.data.read_sessions import Material, Reading

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
        str, typer.Option("--model", metavar="DIR|HUB_ID", help="The base model (default: local.model of config.yaml).")
    ] = "",
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", min=1, help="Steps of the optimiser.")] = None,
    places: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="DIR", help="Learn from this repository, too; may be given several times."),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A constant of the algorithm; may be given several times."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be learned from; learn nothing.")] = False,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE.parquet", help="Write it, a row for each answer, and learn nothing."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make the local policy better by what its proposals earned.

    The answers of models in all sessions of this repository are read, those that cannot be learned from are left out,
    and a part is held out. An adapter is trained on the rest, and used only if it does better on what was held out.
    """
    others, given = tuple(places or ()), _parse_options(options or ())
    if dry_run or export is not None:
        look = _look(algo, mode, model, others, given, export)
        if as_json:
            print(json_text(_document(look), indent=2))
        else:
            print("\n".join(strip_controls(line) for line in _lines(look)))
        if export is not None:
            sys.stdout.flush()
            say(f"wrote {export}: {counted(len(look.found.data.trajectories), 'answer')}")
        return
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:  # before anything that imports them
        raise MissingCapability(
            f"learning needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint="pip install 'autoresearchd[learn]'",
        )
    from autoresearchd.app.learning import learn as run
    from autoresearchd.learner.learn import LearnRequest

    outcome = run(LearnRequest(algo, mode, model, steps, others, given), here(), say)
    if as_json:
        print(json_text(dict(outcome), indent=2))


def _parse_options(given: Sequence[str]) -> dict[str, str]:
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
@dataclass(frozen=True, slots=True)
class _Look:
    """What there is to learn from, for an algorithm in a mode. base: None where it is not known; values: constants."""

    algo: str
    mode: str
    base: BaseModel | None
    reading: Reading
    found: Material
    values: Mapping[str, Any]


def _look(
    algo: str, mode: str, model: str, others: Sequence[Path], given: Mapping[str, str], export: Path | None
) -> _Look:
    """Read what there is, warn of what it lacks, and export it where that is asked for."""
    from autoresearchd.learner.data.data_summary import write_parquet
    from autoresearchd.learner.data.read_sessions import home_of, locate, material, read_sessions
    from autoresearchd.learner.training.constant_values import SHARE, asks_at_home, values_of

    values = values_of(given, algo)
    if export is not None and export.suffix != ".parquet":
        raise UsageError(f"--export {export}: only Parquet is written", hint="name a file that ends with .parquet")
    base = _base(model)
    roots, warnings = locate(here(), others)
    reading = read_sessions(roots, home_of(here()))
    at_home = asks_at_home(values.get("judge", "auto"), run_foreign=values.get("run_foreign", False))
    found = material(reading, mode, base, values.get("share", SHARE), at_home=at_home)
    if values.get("neighbours", SHARE) is None:  # single answers are left out
        found = replace(found, signal=replace(found.signal, comparable=0))
    if export is not None:
        try:
            write_parquet(found.data.trajectories, export)
        except OSError as error:
            raise unwritable(export, error) from error
    for warning in (*warnings, *reading.warnings):
        say(warning)
    if base is None and len(reading.models) > 1:
        named = ", ".join(list(reading.models)[:_MOST_NAMED])
        say(f"answers of several models are read together ({named}): --model DIR leaves out those of others")
    elif base is None and model:
        say(f"--model {model} is no folder here: whether the answers are its own is not looked at")
    return _Look(algo, mode, base, reading, found, values)


def _base(model: str) -> BaseModel | None:
    """The base model to compare with: the one that was named, else that of config.yaml, where it is on this disk."""
    from autoresearchd.config.settings import load_settings
    from autoresearchd.models.model_files import base_model, cached, model_place

    if model:
        place = model_place(model, here()) or cached(model, os.environ)
    else:
        name = load_settings(os.environ).local.model
        place = here() / Path(name).expanduser() if name else None
        if place is not None and not place.exists():
            place = cached(name, os.environ)
    return None if place is None else base_model(place)


def _lines(look: _Look) -> Iterator[str]:
    from autoresearchd.learner.data.data_summary import LEAST_USABLE, describe, outlook
    from autoresearchd.learner.data.read_sessions import UNKNOWN_HINT
    from autoresearchd.learner.gate.promotion_needs import lines as promotion_lines
    from autoresearchd.learner.gate.promotion_needs import promotion

    base, reading, found, values = look.base, look.reading, look.found, look.values
    answered = [session for session in reading.sessions if session.answers]
    silent = [session.name for session in reading.sessions if not session.answers]
    if len(answered) > _MOST_SESSIONS:
        yield f"… and {counted(len(answered) - _MOST_SESSIONS, 'older session')}"
    for session in answered[-_MOST_SESSIONS:]:
        task = f"task {session.task.name}" if session.task is not None else "a task that cannot be read"
        counts = f"{counted(session.answers, 'answer')}, {counted(session.decided, 'experiment')}"
        where = ", foreign (of another repository)" if session.foreign else ""
        yield f"{session.name}: {counts}, policy {session.policy}, {task}{where}"
    if silent:
        yield f"no model answered in: {some_of(silent, _MOST_NAMED)}"
    if base is not None:
        yield f"base model: {base.name}"
    yield from ("", *describe(found.data, found.parts).split("\n"), "")
    if look.mode == "replay" and reading.unknown:
        which = "" if base is not None else " once it is said which model is to learn"
        yield f"{reading.unknown:,} answers tell no hash of their model, and replay leaves them out{which}"
        yield f"  → {UNKNOWN_HINT}"
    if look.mode == "live":
        yield "live: these answers lend their states; proposals are made and run anew"
    elif found.data.trajectories:
        least, allowed = values.get("valid_share", LEAST_USABLE), values.get("cold_start", True)
        yield from outlook(found.signal, look.algo, least=least, allowed=allowed)
    if any(session.foreign for session in answered):
        run = "are run, too" if values.get("run_foreign") else "are not run"
        yield f"foreign sessions are learned from; their experiments {run}"
    if values:
        yield f"constants: {', '.join(f'{name}={_text(value)}' for name, value in values.items())}"
    if "max_length" in values:
        yield "max_length is looked at once the model is there, whose tokens it counts"
    needs = promotion(found, reading.sessions, values)
    yield from ("", *promotion_lines(needs, "" if base is None else base.name, values))
    if found.problem:
        yield from (f"not enough: {found.problem}", f"  → {found.hint}")


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _document(look: _Look) -> dict[str, Any]:
    from autoresearchd.learner.data.data_summary import LEAST_USABLE, cold_start, figures, lacking
    from autoresearchd.learner.gate.promotion_needs import LEAST, promotion

    reading, found, values, replay = look.reading, look.found, look.values, look.mode == "replay"
    of = figures(found.data)
    facts = {key: value.isoformat() if hasattr(value, "isoformat") else value for key, value in of.items()}
    least, cold = values.get("valid_share", LEAST_USABLE), replay and values.get("cold_start", True)

    def part(*names: str) -> dict[str, Any]:
        return {name: facts[name] for name in names}

    sessions: list[dict[str, Any]] = []
    for each in reading.sessions:
        told: dict[str, Any] = {"name": each.name, "repository": str(each.root), "tag": each.tag}
        told |= {"task": each.task.name if each.task else None, "policy": each.policy, "foreign": each.foreign}
        sessions.append({**told, "experiments": each.decided, "answers": each.answers})
    parts, split = found.parts, {}
    if parts is not None:
        split = {"by": parts.by, "train": len(parts.train), "held_out": len(parts.held_out), "leaked": parts.leaked}
    left_out = {reason.name.lower(): count for reason, count in found.data.dropped.items()}
    answers = part("read", "kept", "first", "last", "tokens", "with_feedback")
    return {
        "algo": look.algo,
        "mode": look.mode,
        "model": None if look.base is None else asdict(look.base),
        "constants": dict(look.values),
        "sessions": sessions,
        "models": dict(reading.models),
        "answers": {**answers, "left_out": left_out, "without_model_hash": reading.unknown},
        "groups": {"all": facts["groups"], **part("singles", "zero_variance")},
        "rewards": part("mean", "deviation", "least", "most", "censored"),
        **part("labels", "versions"),
        "split": None if parts is None else split,
        "signal": asdict(found.signal) if replay else None,
        "lacking": lacking(found.signal, look.algo) if replay else "",
        "cold_start": cold_start(found.signal, look.algo, least) if cold else "",
        "promotion": {"states_needed": LEAST, **asdict(promotion(found, reading.sessions, values))},
        "problem": found.problem,
        "hint": found.hint,
    }
