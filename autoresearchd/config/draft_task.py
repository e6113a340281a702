"""A task.yaml that is not there yet: what a project of another program says of itself, and the commented text of one.

Known are karpathy/autoresearch (``train.py`` that prints ``val_bpb``, ``prepare.py``, ``program.md``), pi-autoresearch
(``.auto/`` or the older ``autoresearch.*``: a script that prints METRIC lines, notes, a log) and
autoresearch-distillation (``tasks/*.yaml``, which load as they are).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import indent
from typing import Any

import yaml

from autoresearchd.config.load_task import FILE_NAME, Overrides, read_task_text
from autoresearchd.config.python_environments import RUNNERS, environment_of, how_to_run
from autoresearchd.config.task_paths import MAX_EDITABLE_BYTES, inside_path, start_of
from autoresearchd.config.task_schema import DEFAULT_BUDGET, DEFAULT_GRACE
from autoresearchd.config.yaml_document import parse_yaml, read_text
from autoresearchd.domain.cleaning import one_line, printable
from autoresearchd.domain.errors import ConfigError, UsageError
from autoresearchd.domain.quantities import counted, parse_duration
from autoresearchd.domain.task import Budget, Task

_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})

_FORM = """\
# What to optimise, how to run it, which number counts. `autoresearchd task check` says what is wrong here.
{remarks}
name: {name}

workspace:
  {target_file:<30}  # the file that may be edited; a list for several
  {protected:<30}  # files that no edit may touch
  {data:<30}  # what the job may read beside the repository; also /absolute or ~/paths

execution:
  run_command: {run_command}
  {python:<30}  # the interpreter that `python` is; that of autoresearchd unless given
  {budget:<30}  # training time: seconds, or a text like 5m; the job reads $AUTORESEARCHD_TIME_BUDGET
  {grace:<30}  # for loading and compiling, on top of the budget
  {timeout:<30}  # hard end of the whole run; 2 × budget + startup_grace unless given
  # training_time: auto           # or budget, or baseline: the program's own time and a quarter, where it reads none
  # setup_commands: [pip install -r requirements.txt]  # once, with network
{env}  # memory_mb: 8192

scoring:
  {metric:<30}  # printed as `name: value` or `METRIC name=value`; the last one counts
  {direction:<30}  # minimize or maximize
  {metrics:<30}  # further numbers to keep
{shown}  # constraints: [{{metric: peak_vram_mb, max_increase: 0.25}}]

# An evaluation of its own makes the metric more than the job's word: it runs after training, on data that no job reads.
# evaluation:
#   command: python evaluate.py
#   private: [data/val.bin]

{checks}
{system}# profiles:                     # what differs by machine: cuda where there is an NVIDIA GPU, else cpu
#   cpu: {{execution: {{budget: 60}}}}
"""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a new task.yaml says; what is empty or None is not known yet.

    budget: seconds, or a text like ``5m``. system: the task's own words to a policy. measured: how the baseline was.
    """

    name: str = ""
    target_file: tuple[str, ...] = ()
    run_command: str = ""
    python: str | None = None
    metric: str = ""
    direction: str = ""
    budget: float | str | None = None
    protected: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    display_metrics: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    system: str = ""
    baseline: float | None = None
    measured: str = ""
    remarks: tuple[str, ...] = ()


def write_new(path: Path, text: str) -> None:
    """Write a task.yaml where there is none; ConfigError: it is not valid, UsageError: it cannot be written."""
    read_task_text(text, file=str(path))
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(f"{path} is there already", hint="edit it, or move it away first") from None
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror}"
        raise UsageError(what, hint="check the folder and its permissions") from None


def render_task_yaml(draft: Draft) -> str:
    """Text of a commented task.yaml: what is not known has the usual value, or stands there as an example."""
    targets = draft.target_file or ("train.py",)
    budget = DEFAULT_BUDGET if draft.budget is None else draft.budget
    wall = DEFAULT_BUDGET
    with suppress(ValueError):  # else the file is refused for it
        wall = Budget.usual_wall(parse_duration(budget), DEFAULT_GRACE)
    shown = f"  display_metrics: {_listed(draft.display_metrics)}\n" if draft.display_metrics else ""
    if draft.baseline is not None:
        shown += f"  {f'baseline: {draft.baseline!r}':<30}  # {one_line(draft.measured)}: a reference, no rule\n"
    return _FORM.format(
        remarks="".join(f"# {one_line(remark)}\n" for remark in draft.remarks),
        name=_quoted(draft.name),
        target_file=f"target_file: {_quoted(targets[0]) if len(targets) == 1 else _listed(targets)}",
        protected=_given("protected", draft.protected, "prepare.py"),
        data=_given("data", draft.data, "data/train.bin"),
        run_command=_quoted(draft.run_command or "python train.py"),
        python=f"python: {_quoted(draft.python)}" if draft.python else "# python: /home/me/work/.venv/bin/python",
        env=f"  env: {json.dumps(dict(draft.env))}\n" if draft.env else "",
        budget=f"budget: {_quoted(budget) if isinstance(budget, str) else _seconds(budget)}",
        grace=f"# startup_grace: {DEFAULT_GRACE:g}",
        timeout=f"# timeout: {_seconds(wall)}",
        metric=f"metric: {_quoted(draft.metric or 'val_loss')}",
        direction=f"direction: {_quoted(draft.direction or 'minimize')}",
        metrics=_given("metrics", draft.metrics, "peak_vram_mb"),
        shown=shown,
        checks=_checks(draft.checks),
        system=_system(draft.system),
    )


def _checks(commands: tuple[str, ...]) -> str:
    if not commands:
        return "# checks: [{command: pytest -q tests, timeout: 300}]    # a result is kept only when these succeed\n"
    rows = "".join(f"  - {{command: {_quoted(command)}, timeout: 300}}\n" for command in commands)
    return f"checks:                         # a result is kept only when these succeed\n{rows}"


def _system(text: str) -> str:
    """The task's own words, as a block of lines; nothing where there is none."""
    block = "\n".join(printable(row, instead=" ").rstrip() for row in text.splitlines()).strip()
    head = "prompt:\n  system: |-                    # beside what every policy is told\n"
    return f"{head}{indent(block, '    ')}\n\n" if block else ""


def _given(key: str, values: tuple[str, ...], example: str) -> str:
    return f"{key}: {_listed(values)}" if values else f"# {key}: [{example}]"


def _listed(values: Iterable[str]) -> str:
    return f"[{', '.join(_quoted(value) for value in values)}]"


def _quoted(text: str) -> str:
    """A text as YAML: plain where that is safe, else in double quotes, on one line in any case."""
    plain = text.isascii() and text.replace("_", "").replace(".", "").replace("-", "").replace(" ", "").isalnum()
    if plain and text[0].isalpha() and text == text.strip() and text.lower() not in _WORDS:
        return text
    return yaml.dump(text, Dumper=yaml.SafeDumper, default_style='"', allow_unicode=True, width=2**20).strip()


def _seconds(seconds: float) -> str:
    return repr(float(seconds)).removesuffix(".0")


# ---------------------------------------------------------------------- projects of other programs
KARPATHY, PI, DISTILLATION = "karpathy/autoresearch", "pi-autoresearch", "autoresearch-distillation"
_READ_BYTES = 256 * 1024
_SYSTEM_CHARACTERS = 6000
_SECTIONS = ("objective", "goal", "metrics", "constraints", "off limits", "what's been tried", "what has been tried",
             "learnings", "ideas")  # fmt: skip
_PROCEDURE = ("setup", "output format", "logging results", "the experiment loop")
"""Sections of karpathy's program.md about what is not a policy's to do here."""
_FIRST_RUN = re.compile(r"^\*\*The first run\*\*.*\n?", re.MULTILINE)
_METRIC_LINE = re.compile(r"METRIC\s+([\w.µ]+)=")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$")
_IN_TICKS = re.compile(r"`([^`\n]{1,200})`")
_NAMED = re.compile(r"`[^`\n]{1,200}`(?:(?:,? and |, ?| & )`[^`\n]{1,200}`)*")
"""What a row is about: names that a text after them mentions, as ``evaluated by `prepare.py` ``, are no part of it."""
_RUNNER = re.compile(rf"\b(?:{'|'.join(RUNNERS)}) run\b")
_NUMBER = r"[0-9][0-9_]*(?:\.[0-9]+)?"
_TIME_BUDGET = re.compile(
    rf"^TIME_BUDGET\s*=[ \t]*({_NUMBER}(?:[ \t]*\*[ \t]*{_NUMBER})*)[ \t]*(?:#.*)?$", re.MULTILINE
)
"""A number of seconds, or a product as ``5 * 60`` is; nothing else is read, as half of it would be another time."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A project that was recognised. log: its experiments so far; text: a task.yaml under another name."""

    kind: str
    draft: Draft = field(default_factory=Draft)
    log: Path | None = None
    text: str | None = None
    notes: tuple[str, ...] = ()


def recognise(folder: Path, name: str) -> Layout | None:
    """The layout of a folder, None where it is none of those that are known; ``name``: which of its tasks is meant."""
    if not folder.is_dir():
        return None
    return _pi(folder) or _karpathy(folder) or _distillation(folder, name)


# ---------------------------------------------------------------------- karpathy/autoresearch
METRIC = "val_bpb"
SUMMARY_KEYS = (METRIC, "training_seconds", "total_seconds", "peak_vram_mb", "mfu_percent", "total_tokens_M",
                "num_steps", "num_params_M", "depth")  # fmt: skip
CACHE, KERNELS = "~/.cache/autoresearch", "~/.cache/huggingface/hub"


def detect(folder: Path, *, overrides: Overrides = Overrides()) -> Task | None:  # noqa: B008
    """The task of a clone of https://github.com/karpathy/autoresearch, self-reported; None for any other folder."""
    found = _karpathy(folder)
    if found is None:
        return None
    by_uv = environment_of(found.draft.run_command, folder) if (folder / "uv.lock").is_file() else None
    name = printable(folder.resolve().name, instead="-")[:200] or "autoresearch"
    draft = replace(found.draft, name=name, run_command=by_uv.command if by_uv else found.draft.run_command)
    if by_uv is not None and by_uv.python is not None:
        draft = replace(draft, python=str(by_uv.python))
    return read_task_text(render_task_yaml(draft), overrides=overrides)


def _karpathy(folder: Path) -> Layout | None:
    train = start_of(folder / "train.py", MAX_EDITABLE_BYTES)
    if not (METRIC in train and (folder / "prepare.py").is_file()):
        return None
    budget, notes = None, tuple[str, ...]()
    if found := _TIME_BUDGET.search(_text(folder / "prepare.py")):
        budget = math.prod(float(factor.replace("_", "")) for factor in found[1].split("*"))
        whatever = f"whatever budget {FILE_NAME} names: change both together"
        notes = (f"train.py ends by TIME_BUDGET of prepare.py, {whatever}",)
    data, env = [CACHE], dict[str, str]()
    if "get_kernel" in train:  # Flash Attention, as Hugging Face keeps it: a job, which has no network, finds it there
        data, env = [CACHE, KERNELS], {"HF_HUB_OFFLINE": "1"}
        if not Path(KERNELS).expanduser().is_dir():
            told = f"run it once by hand, and name {KERNELS} in workspace.data"
            notes = (*notes, f"train.py loads kernels that are not in {KERNELS} yet: {told}")
    program = _sections(_FIRST_RUN.sub("", _text(folder / "program.md")))
    draft = Draft(
        target_file=("train.py",),
        run_command=f"{'uv run' if (folder / 'uv.lock').is_file() else 'python'} train.py",
        metric=METRIC,
        direction="minimize",
        budget=budget,
        protected=("prepare.py", *(["program.md"] if (folder / "program.md").is_file() else [])),
        data=tuple(place for place in data if Path(place).expanduser().is_dir()),
        env=env,
        metrics=SUMMARY_KEYS,
        display_metrics=("peak_vram_mb",),
        system=_words(program, [name for name in program if name not in _PROCEDURE]),
    )
    log = folder / "results.tsv"
    return Layout(KARPATHY, draft, log if _has_lines(log, 2) else None, notes=notes)


# ---------------------------------------------------------------------- pi-autoresearch
_PI_BUDGET = "10m"
"""Its tool ends a run after so long unless it is told otherwise."""
_PI_PARTS = ("measure.sh", "prompt.md", "log.jsonl", "checks.sh", "ideas.md", "config.json")
_PI_NOW = tuple(f".auto/{part}" for part in _PI_PARTS)
_PI_BEFORE = tuple(f"autoresearch.{part}" for part in ("sh", "md", "jsonl", *_PI_PARTS[3:]))


def _pi(folder: Path) -> Layout | None:
    """Files under ``.auto/`` hide those of older versions, as they do for pi-autoresearch itself."""
    files = _PI_NOW if any((folder / name).is_file() for name in _PI_NOW) else _PI_BEFORE
    measure, prompt, log, checks, ideas, config_file = files
    if not (folder / measure).is_file():
        return None
    karpathy = _karpathy(folder)
    inner = karpathy.draft if karpathy else Draft()
    sections = _sections(_text(folder / prompt))
    config = _last_config(folder / log)
    printed = list(dict.fromkeys(_METRIC_LINE.findall(_text(folder / measure))))
    protected = [name for name in (measure, checks) if (folder / name).is_file()]
    named = _in_scope(folder, sections.get("files in scope", ""), files)
    scope = tuple(path for path in named if path not in inner.protected) or inner.target_file
    metric = str(config.get("metricName") or (printed[0] if len(printed) == 1 else ""))
    direction = "maximize" if config.get("bestDirection") == "higher" else "minimize"
    draft = Draft(
        target_file=scope,
        run_command=f"bash {measure}",
        metric=metric,
        direction=direction if config else "",  # to pi-autoresearch it is minimize unless it is told otherwise
        budget=inner.budget or _PI_BUDGET,
        protected=(*protected, *inner.protected),
        data=inner.data,
        env=inner.env,
        metrics=tuple(name for name in printed if name != metric),
        checks=(f"bash {checks}",) if checks in protected else (),
        system=f"{_words(sections, _SECTIONS, _text(folder / ideas))}\n\n{inner.system}"[:_SYSTEM_CHARACTERS].strip(),
    )
    notes = (*_pi_notes(folder, measure, prompt, config_file), *(karpathy.notes if karpathy else ()))
    if inner.budget is None:
        told = f"the time that pi-autoresearch allows a run, {_PI_BUDGET}, is the budget where --budget names none"
        notes = (*notes, f"{told}: correct it in {FILE_NAME}")
    return Layout(PI, draft, folder / log if _has_lines(folder / log, 1) else None, notes=notes)


def _pi_notes(folder: Path, measure: str, prompt: str, config_file: str) -> Iterator[str]:
    if called := _RUNNER.search(_text(folder / measure)):
        yield f"{measure} calls `{called[0]}`, which jobs cannot: {how_to_run(called[0] + ' python', folder)}"
    most = _json(_text(folder / config_file)).get("maxIterations")
    if isinstance(most, (int, float)) and most >= 1:
        ends = counted(int(most), "experiment")
        yield f"{config_file} ends after {ends}: `start --max-experiments {int(most)}` does the same"
    if (folder / Path(prompt).parent / "hooks").is_dir() or (folder / "autoresearch.hooks").is_dir():
        yield "its hooks are not run"


def _last_config(log: Path) -> dict[str, Any]:
    """The config line that holds at the end of a log; empty where there is none."""
    found: dict[str, Any] = {}
    with suppress(OSError), log.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            if '"config"' in line[:_READ_BYTES] and (entry := _json(line)).get("type") == "config":
                found = entry
    return found


def _sections(text: str) -> dict[str, str]:
    """The text under each heading, in lower case; that before the first one under an empty one."""
    current: list[str] = []
    found, fenced = {"": current}, False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")  # there a comment looks like a heading
        heading = None if fenced else _HEADING.match(line)
        if heading:
            current = found.setdefault(heading[1].strip("*: ").lower().replace("\u2019", "'"), [])
        else:
            current.append(line)
    return {name: "\n".join(lines).strip() for name, lines in found.items()}


def _in_scope(folder: Path, text: str, others: tuple[str, ...]) -> tuple[str, ...]:
    """Files that a list names, each row those that it begins with, and that are there."""
    named: list[str] = []
    for line in text.splitlines():
        row = line.strip().lstrip("-*+ ")
        words = row.split(maxsplit=1)[:1]
        if (ticked := _NAMED.search(row)) and not _file(folder, words[0].rstrip(":,;")):
            words = _IN_TICKS.findall(ticked[0])
        named += [word.rstrip(":,;") for word in words]
    return tuple(dict.fromkeys(path for word in named if (path := _file(folder, word)) and path not in others))


def _file(folder: Path, word: str) -> str:
    with suppress(ValueError):
        path = inside_path(word)
        return path if (folder / path).is_file() and not (folder / path).is_symlink() else ""
    return ""


def _words(told: Mapping[str, str], names: Iterable[str], ideas: str = "") -> str:
    parts = [f"{name.capitalize()}:\n{told[name]}" if name else told[name] for name in names if told.get(name)]
    if ideas.strip():
        parts.append(f"Ideas:\n{ideas.strip()}")
    return "\n\n".join(parts)[:_SYSTEM_CHARACTERS].strip()


# ---------------------------------------------------------------------- autoresearch-distillation
def _distillation(folder: Path, name: str) -> Layout | None:
    found: dict[str, tuple[Path, str]] = {}
    for path in sorted([*folder.glob("tasks/*.yaml"), *folder.glob("tasks/*.yml")]):
        try:
            text = read_text(path)
            root = parse_yaml(text, str(path)).root
        except ConfigError:
            if path.stem == name:
                raise
            continue  # a folder of that name is that of other programs, too
        inner = root.get("task")
        task = inner if isinstance(inner, dict) else root
        if isinstance(task.get("workspace"), dict) and isinstance(task.get("scoring"), dict):
            found[str(task.get("name") or path.stem)] = (path, text)
    if not found:
        return None
    meant = [key for key, (path, _) in found.items() if name in (key, path.stem)] or list(found)
    if name not in found and len(meant) > 1:
        what = f"{folder / 'tasks'} has several tasks, and none is named {name!r}"
        raise UsageError(what, hint=f"name one of them: {', '.join(found)}")
    path, text = found[name if name in found else meant[0]]
    read_task_text(text, file=str(path))
    has_fleet = re.search("^fleet:", text, re.MULTILINE)
    notes = ("its fleet is used with --executor ssh; without it, runs run here",) if has_fleet else ()
    return Layout(DISTILLATION, text=text, notes=notes)


# ---------------------------------------------------------------------- reading
def _text(path: Path) -> str:
    return start_of(path, _READ_BYTES)


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _has_lines(path: Path, number: int) -> bool:
    return sum(1 for line in _text(path).splitlines() if line.strip()) >= number
