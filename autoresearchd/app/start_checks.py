"""What is looked at before a session begins or goes on: refused or warned of while nothing has been changed yet."""

from __future__ import annotations

import ast
import os
import posixpath
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

from autoresearchd import keys
from autoresearchd.app.make_policy import LOCAL, endpoint
from autoresearchd.app.project import Project
from autoresearchd.app.tasks.import_log import IMPORTED
from autoresearchd.config.python_environments import how_to_make, how_to_run
from autoresearchd.config.settings import load_settings
from autoresearchd.config.yaml_document import Document, Place, parse_yaml, read_text
from autoresearchd.domain.errors import (
    AutoresearchdError,
    ConfigError,
    MissingCapability,
    PolicyError,
    RepositoryError,
    SessionLocked,
    StoreError,
    UsageError,
)
from autoresearchd.domain.experiment import Session
from autoresearchd.domain.labels import Label, Phase
from autoresearchd.domain.limits import Reached, limit_reached
from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.ports import NewSession, Store
from autoresearchd.domain.task import MetricSource, Task
from autoresearchd.evaluator.rules.program_text import about_seed
from autoresearchd.evaluator.rules.run_time import about_budget
from autoresearchd.executor.interpreter import resolve_python
from autoresearchd.loop.measuring.job_hints import set_bit
from autoresearchd.loop.measuring.run_files import RESULT_BYTES, read_sources, read_tail
from autoresearchd.loop.upkeep.session_lock import already_held, starting
from autoresearchd.loop.upkeep.system_clock import SystemClock
from autoresearchd.models.reachable import unreachable
from autoresearchd.policy.policy_names import TUNERS, PolicySpec, parse_spec
from autoresearchd.policy.search.find_constants import Space, means
from autoresearchd.sandbox.environment import search_path
from autoresearchd.workspace import layout, preflight
from autoresearchd.workspace.files import disk_errors
from autoresearchd.workspace.git import GitWorkspace


def require_folder(directory: Path) -> None:
    """Refuse a folder that is named but not there."""
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is not a folder", hint="name the folder that holds the task")
    if not directory.exists():
        raise UsageError(f"the folder {directory} does not exist", hint="make it, or correct --dir")


def refuse_secret(policy: str) -> None:
    """The policy's command is stored and shown; a key in it would be, too."""
    found = keys.redactor().found(policy)
    if found:
        raise UsageError(
            f"--policy holds a secret ({found[0][2]}), and the command is stored and shown",
            hint="put the secret into an environment variable: the command sees the whole environment",
        )


def refuse_second(project: Project, tag: str | None) -> tuple[str, ...]:
    """A plain ``start`` beside a running session is a mistake; a second session has to be named.

    What to warn of, once the start is certain: the sessions that it will share the machine with.
    """
    if not project.database.exists():
        return ()
    beside = []
    store = project.open_store()
    try:
        for session in store.sessions():
            pid = project.daemon(session.tag) or starting(project.lock(session.tag))
            if pid is not None and tag in (None, session.tag):
                raise already_held(session.tag, pid)
            if pid is not None:
                beside.append(
                    f"warning: session {session.tag} is running here, too (process {pid}): the two share this machine, "
                    "so each run gets less done in its budget and the results of both are noisier\n"
                )
    finally:
        store.close()
    return tuple(beside)


def choose_tag(project: Project, store: Store, tag: str | None) -> str:
    """The tag asked for, or today's (``nov21``, ``nov21-2``, …)."""
    known = {session.tag: session for session in store.sessions()}
    if tag is not None:
        if tag in known:
            raise _there_already(known[tag])
        preflight.check_tag(project.root, tag)
        return tag
    today = time.strftime("%b%d", time.localtime()).lower()
    number = 1
    while True:
        candidate = today if number == 1 else f"{today}-{number}"
        try:
            if candidate not in known:
                preflight.check_tag(project.root, candidate)
                return candidate
        except RepositoryError:
            pass  # a branch of that name is left from elsewhere: take the next number
        number += 1


def _there_already(session: Session) -> UsageError:
    own = session.policy != IMPORTED
    hint = f"`autoresearchd resume {session.tag}` goes on with it; or take another tag" if own else "take another tag"
    return UsageError(f"session {session.tag!r} is there already", hint=hint)


def create_session(store: Store, new: NewSession, *, named: bool) -> Session:
    """The session; refused where another ``start`` took the tag a moment ago: SessionLocked, or UsageError.

    named: whether the user asked for the tag.
    """
    try:
        return store.create_session(new, SystemClock().now())
    except StoreError as error:
        there = next((session for session in store.sessions() if session.tag == new.tag), None)
        if there is None:
            raise
        if named:
            raise _there_already(there) from error
        raise SessionLocked(
            f"another `start` began session {new.tag} at this moment",
            hint=f"`autoresearchd status --session {new.tag}` shows it; `start --tag OTHER` begins another",
        ) from error


def make_public_folder(project: Project) -> None:
    """The folder of logs and results, which nothing works without. Raises RepositoryError where it cannot be one."""
    folder = layout.public_dir(project.root)
    if os.path.lexists(folder) and not folder.is_dir():
        raise RepositoryError(f"{folder} is no folder, and logs and results go there", hint="move it away")
    with disk_errors(f"writing to {folder}"):
        folder.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # before a session is made that could not even say why it ends


def require_tunable(spec: PolicySpec, task: Task, code: Mapping[str, str], file: Path = Path("task.yaml")) -> None:
    """Refuse a policy that turns constants where it finds none: no proposal of it could ever be made.

    Names in the task's ``search`` that no constant has are refused, and so are bounds that make no sense. A program
    that is no valid Python is left to the baseline, whose error says more. file: to say the line of what is wrong.
    """
    if spec.kind not in TUNERS:
        return
    from autoresearchd.policy.search.program_constants import Program, spaces  # its parser is only needed here

    try:
        check_search_bounds(task, spaces(task, code), file)
        Program().tunable(task, code)
    except PolicyError as error:
        if error.label is Label.NO_OP or all(_is_python(path, text) for path, text in code.items()):
            raise UsageError(f"the policy {spec} cannot be used: {error.what}", hint=error.hint) from error


def _is_python(path: str, text: str) -> bool:
    """Whether Python would run a file; one that is no program at all is in nobody's way."""
    if not path.endswith(".py"):
        return True
    with warnings.catch_warnings(action="ignore"):
        try:
            compile(text.encode(), path, "exec", flags=ast.PyCF_ONLY_AST, dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True


def say_who_measures(task: Task, code: Mapping[str, str]) -> None:
    """Say so when the score is what the edited program says of itself, and what is left alone for it.

    code: text of the editable files.
    """
    if task.scoring.source is not MetricSource.EVALUATOR:
        from autoresearchd.policy.search.program_constants import warnings_of  # only needed here

        sys.stderr.writelines(f"note: {note}\n" for note in warnings_of(task, code))


def program_notes(task: Task, source: Path) -> tuple[str, ...]:
    """What the user should know of a program in a folder, its budget and its seed, before anything is run."""
    editable = {path: read_tail(source / path, RESULT_BYTES) for path in task.editable}
    texts = {**editable, **read_sources(task, source)}
    return (*about_budget(task, texts), *about_seed(task, texts))


def warn_of_absent_server(spec: PolicySpec, settings: ModelSettings, folder: Path) -> None:
    """Say so when no server answers where the policy's model should be: that shows only after the baseline."""
    url = endpoint(spec, settings, folder)
    why = unreachable(url) if url else ""
    if why:
        then = "the models under fallbacks are asked in its place" if settings.fallbacks else "the daemon waits for it"
        sys.stderr.write(
            f"warning: no model server answers at {url} ({why}): the baseline is measured all the same, then {then}\n"
            "  → `autoresearchd serve MODEL` starts one here; local.base_url in config.yaml says where it is\n"
        )


def warn_of_unlearnable_answers(spec: PolicySpec, settings: ModelSettings, folder: Path) -> None:
    """Say so when the answers will be stored with log-probabilities that the learner cannot use."""
    if spec.kind != LOCAL:
        return
    heat, served = settings.temperature, bool(endpoint(spec, settings, folder))
    if heat == 1 or (heat != 0 and not served):  # a model in this process tells them of any distribution
        return
    told = "the server's own temperature, which nobody tells" if heat is None else f"temperature {heat:g}"
    sys.stderr.write(
        f"warning: answers are drawn at {told}: `learn` cannot replay them, because the log-probabilities stored with "
        "them are those of temperature 1; set `temperature: 1` in config.yaml to learn from this session\n"
    )


def ends_when_spent(session: Session) -> bool:
    """Whether a session ends at its spend cap; else its policy goes on without a model."""
    return not parse_spec(session.policy).asks_model or load_settings(os.environ).when_spent == "stop"


def reached_limit(store: Store, session: Session) -> Reached | None:
    """The limit at which a session has ended; None when it can go on, or has something left to finish first."""
    latest = store.latest(session.id)
    segment = store.segment(session.id)
    if latest is None or segment is None:
        return None
    totals, limits = store.totals(session.id), session.limits
    waits_for_money = latest.phase is Phase.PROPOSING and limits.max_usd is not None and totals.usd >= limits.max_usd
    settled = latest.phase is Phase.DECIDED and latest.overhead_ms is not None
    if not settled and not waits_for_money:
        return None
    return limit_reached(
        max_experiments=limits.max_experiments,
        max_seconds=limits.max_seconds,
        max_usd=limits.max_usd if ends_when_spent(session) else None,
        experiments=max(0, totals.experiments - segment.number - 1),  # one baseline for each segment
        seconds=session.active_seconds,
        usd=totals.usd,
    )


_NEAR = 3
_LISTED = 12


def check_search_bounds(task: Task, found: Mapping[str, Space], file: Path) -> None:
    """Refuse names in ``search`` of task.yaml that no constant has, and comments that make no sense.

    Raises ConfigError with all that is wrong. file: the task.yaml, to say the line; it need not be there.
    """
    errors = [*_unknown(task, found, file), *_doubtful(task.profile, found, file)]
    if errors:
        first, *others = errors
        first.hint = "\n".join([first.hint, *map(str, others)])
        raise first


def _unknown(task: Task, found: Mapping[str, Space], file: Path) -> Iterator[ConfigError]:
    names = [p.name for space in found.values() for p in space.parameters]
    names += [left.name for space in found.values() for left in space.left_out]
    asked: list[tuple[str, Place]] = [(name, ("fixed", i)) for i, name in enumerate(task.search.fixed)]
    asked += [(name, ("ranges", name)) for name in task.search.ranges]
    asked += [(name, ("choices", name)) for name in task.search.choices]
    for key, place in asked:
        if not any(means(key, name) for name in names):
            written = f"search.fixed[{place[1]}]" if place[0] == "fixed" else f"search.{place[0]}.{key}"
            yield ConfigError(
                f"no constant of {', '.join(task.editable)} is called {key!r}",
                file=str(file),
                line=_line(file, task.profile, place),
                key=written,
                hint=_near(key, names),
            )


def _near(key: str, names: list[str]) -> str:
    labels = {name.partition(":")[2].lower(): name.partition(":")[2] for name in names}
    wanted = key.rpartition(":")[2].lower()
    parts = [label for label in labels if wanted in label.replace("#", ".").split(".")]
    near = list(dict.fromkeys((*parts, *get_close_matches(wanted, list(labels), n=_NEAR, cutoff=0.5))))[:_NEAR]
    if near:
        return f"did you mean {' or '.join(repr(labels[label]) for label in near)}?"
    if not names:
        return "there is no constant in it at all"
    known = list(labels.values())
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return f"known here: {', '.join(known[:_LISTED])}{more}"


def _doubtful(profile: str, found: Mapping[str, Space], file: Path) -> Iterator[ConfigError]:
    for path, space in found.items():
        for doubt in space.doubts:
            if doubt.key:
                what, where = f"{doubt.what} ({path}, line {doubt.line})", str(file)
                _, kind, name = doubt.key.split(".", 2)
                yield ConfigError(
                    what, file=where, line=_line(file, profile, (kind, name)), key=doubt.key, hint=doubt.hint
                )
            else:
                yield ConfigError(doubt.what, file=path, line=doubt.line, hint=doubt.hint)


def _line(file: Path, profile: str, place: Place) -> int | None:
    """The line of a key of ``search``, in the file itself or in a profile of it."""
    try:
        document: Document = parse_yaml(read_text(file), str(file))
    except AutoresearchdError:
        return None
    top: Place = ("task",) if "task" in document.root else ()
    places = ((*top, "search", *place), (*top, "profiles", profile, "search", *place))
    return next((document.lines[p] for p in places if p in document.lines), None)


_INTERPRETERS = ("sh", "bash", "dash", "zsh", "python", "python3", "perl", "ruby", "node", "uv")
_OWN_PYTHON = ("python", "python3")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_SYNTAX = "();<>|&"
_EXPANDED = frozenset("$`*?[]{}#\\")
_PATIENCE_S = 10.0


def require_tool(command: str, workspace: GitWorkspace, commit: str, source: Path) -> None:
    """Refuse a ``command:`` whose program is nowhere, or lies in the task's folder but not in the commit.

    commit: the one that the session starts from; source: the task's folder in the user's checkout.
    """
    words = _first_words(command)
    if not words or _EXPANDED & set(words[0]):
        return
    first, *others = words
    if "/" in first:
        _require_file(first, workspace, commit, source)
        _require_bit("--policy command", first, workspace, commit)
    elif not _known_to_shell(first):
        here = f"; a script of the task's folder is written ./{first}" if (source / first).is_file() else ""
        raise UsageError(
            f"--policy command: there is no program {first!r} on PATH", hint=f"install it, or correct its name{here}"
        )
    script = others[0] if others and Path(first).name in _INTERPRETERS else ""
    if not script or script.startswith("-") or _EXPANDED & set(script):
        return
    named_as_file = "/" in script or "." in script
    if (source / script).is_file() or (named_as_file and Path(first).name != "uv" and not shutil.which(script)):
        _require_file(script, workspace, commit, source)


def require_bits(task: Task, workspace: GitWorkspace, commit: str) -> None:
    """Refuse a task one of whose commands begins with a committed file that may not be executed."""
    # A later one may be a file whose bit an earlier one has set: set-up runs in a copy that it may write to.
    first = [("execution.setup_commands", command) for command in task.execution.setup_commands[:1]]
    for key, command in [*_job_commands(task), *first]:
        words = _first_words(command)
        if words and "/" in words[0] and not _EXPANDED & set(words[0]):
            _require_bit(f"task.yaml: {key}", words[0], workspace, commit)


def require_programs(task: Task, source: Path) -> tuple[str, ...]:
    """Refuse a task one of whose commands begins with a program that no job will find.

    What a setup command may still make is not refused; the sentences to show about it. Raises MissingCapability where
    there is no such program, or ``execution.python`` names none.
    """
    path = task.execution.env.get("PATH", "")
    notes = []
    for key, command in _job_commands(task):
        words = _first_words(command)
        if not words or _EXPANDED & set(words[0]) or words[0].startswith("~"):
            continue
        path = path or search_path(_python(task, source).parent)
        runner = how_to_run(command, source)
        own = words[0] in _OWN_PYTHON and "PATH" not in task.execution.env  # links to it are made for each run
        if own or _is_there(words[0], source, path):
            if runner and not task.execution.setup_commands:
                notes.append(f"{key} begins with {words[0]!r}: {runner}")
            continue
        where = "at that place" if "/" in words[0] else f"on its PATH ({path})"
        what = f"{key} begins with {words[0]!r}, and a job finds no such program {where}"
        if not task.execution.setup_commands:
            raise MissingCapability(
                what,
                hint=runner
                or "correct the command in task.yaml, or install the program there; `python` is the interpreter that "
                "execution.python names",
            )
        notes.append(f"{what}: a setup command has to make it")
    return tuple(notes)


def _job_commands(task: Task) -> Iterator[tuple[str, str]]:
    """The commands that jobs run, each with its key."""
    yield "execution.run_command", task.execution.run_command
    yield from (("checks", check.command) for check in task.checks)
    if task.evaluation is not None:
        yield "evaluation.command", task.evaluation.command
        yield "evaluation.model_command", task.evaluation.model_command or ""


def _python(task: Task, source: Path) -> Path:
    """The interpreter of the jobs, as far as it can be known before set-up."""
    if task.execution.python is None:
        return Path(sys.executable)
    try:
        return resolve_python(task, source)
    except MissingCapability as error:
        if task.execution.setup_commands:
            return Path(sys.executable)
        make = how_to_make(source)
        raise MissingCapability(
            error.what, hint=f"make the environment of the project: {make}; or {error.hint}" if make else error.hint
        ) from error


def _is_there(word: str, source: Path, path: str) -> bool:
    if "/" not in word:
        return _known_to_shell(word, path)
    place = source / word
    return place.is_file() and (not word.startswith("/") or os.access(place, os.X_OK))


def _require_bit(key: str, word: str, workspace: GitWorkspace, commit: str) -> None:
    """Refuse a word that a shell would execute, where it is a committed file without its executable bit."""
    path = posixpath.normpath(word)
    if path.startswith(("/", "~", "..")) or not workspace.lacks_bit(commit, path):
        return
    raise UsageError(
        f"{key}: {word} may not be executed: its executable bit is not set in commit {commit[:10]}",
        hint=f"{set_bit(path)}; or name its interpreter, e.g. sh {word}",
    )


def _first_words(command: str) -> list[str]:
    """The words of a command line up to the first sign of its syntax, without the variables that it sets before."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=_SYNTAX)
    lexer.whitespace_split, lexer.commenters = True, ""
    found: list[str] = []
    try:
        for word in lexer:
            if word and set(word) <= set(_SYNTAX):
                if word.startswith("("):  # a function is defined, or a subshell begins
                    return []
                break
            if found or not _ASSIGNMENT.match(word):
                found.append(word)
    except ValueError:
        return []  # the shell will say what is wrong with it
    return found


def _known_to_shell(word: str, path: str | None = None) -> bool:
    """Whether ``sh`` knows a program, a built-in command or a word of its syntax by this name.

    path: PATH; None: that of this process.
    """
    look = ["/bin/sh", "-c", 'command -v -- "$1"', "sh", word]
    env = None if path is None else {"PATH": path}
    try:
        return subprocess.run(look, env=env, capture_output=True, check=False, timeout=_PATIENCE_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return True  # not known: the session itself will show


def _require_file(word: str, workspace: GitWorkspace, commit: str, source: Path) -> None:
    if word.startswith("~") and not word.startswith("~/"):
        return  # somebody else's home: the shell knows where
    if word.startswith(("/", "~/")):
        if not Path(word).expanduser().exists():
            raise UsageError(f"--policy command: there is no {word}", hint="correct the path, or put the tool there")
        return
    path, there = posixpath.normpath(word), (source / word).is_file()
    try:
        if path.startswith(".."):
            raise RepositoryError(f"{word} is outside of the task's folder")
        workspace.check_tracked(commit, [path])
    except RepositoryError as error:
        if not there:
            raise UsageError(
                f"--policy command: there is no {word}, neither in the task's folder nor in its commit {commit[:10]}",
                hint="correct the path, or put the script there and commit it; a tool that lies elsewhere is named by "
                "its absolute path",
            ) from error
        raise UsageError(
            f"--policy command: runs in a copy of the task's folder as committed ({commit[:10]}), "
            f"and {word} is not in that",
            hint=f"commit it (git add -- {shlex.quote(path)} && git commit), or name it by {(source / word).resolve()}",
        ) from error
