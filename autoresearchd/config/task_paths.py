"""Which path strings a task may name, and whether the files behind them are what the task needs."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from autoresearchd.config.problems import Problem, raise_all, raise_any
from autoresearchd.config.yaml_document import parse_yaml, read_text
from autoresearchd.domain.errors import ConfigError
from autoresearchd.domain.file_content import compressed_size
from autoresearchd.domain.task import Task

MAX_EDITABLE_BYTES = 2 * 1024 * 1024
HIDE_ROOTS = ("{purelib}", "{stdlib}")


class PathError(ValueError):
    """A path that a task may not name; ``hint`` says what it may."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what, self.hint = what, hint


def inside_path(text: str) -> str:
    """A path inside the task's folder, in its plain form (``./a//b/`` → ``a/b``); PathError for any other."""
    _check_characters(text)
    if text.startswith(("/", "~")):
        raise PathError(f"{text!r} is not inside the task's folder", "write it relative to the folder of task.yaml")
    return _plain(text)


def data_path(text: str) -> str:
    """As ``inside_path``, or an absolute path, or one that starts with ``~/``."""
    if not text.startswith(("/", "~")):
        return inside_path(text)
    _check_characters(text)
    if text.startswith("~") and not text.startswith("~/"):
        raise PathError(f"{text!r} names another user's home or all of your own", "write ~/folder, or an absolute path")
    head, rest = ("~/", text[2:]) if text.startswith("~") else ("/", text)
    plain = _plain(rest.strip("/") or ".")
    if plain == ".":
        raise PathError(f"{text!r} would show everything to the job", "name the folder that holds the data")
    return head + plain


def hidden_path(text: str) -> str:
    """A place outside of the task: as ``data_path``, or in the interpreter's ``{purelib}`` or ``{stdlib}``."""
    root, slash, rest = text.partition("/")
    if root in HIDE_ROOTS and slash and rest.strip("/"):
        return f"{root}/{inside_path(rest)}"
    if "{" in root:
        raise PathError(
            f"{text!r} begins with a place that is not known", f"known: {', '.join(HIDE_ROOTS)}, e.g. {{stdlib}}/test"
        )
    if not text.startswith(("/", "~")):
        raise PathError(
            f"{text!r} is a file of the task", "name it in evaluation.private; here: /…, ~/…, {stdlib}/… or {purelib}/…"
        )
    return data_path(text)


def folder_path(text: str) -> str:
    """As ``inside_path``, where ``.`` is allowed."""
    return "." if text in (".", "./") else inside_path(text)


def _check_characters(text: str) -> None:
    if not text.strip():
        raise PathError("an empty path", "write a path, or leave the entry out")
    if not text.isprintable() or text != text.strip():
        raise PathError(
            f"{text!r} holds characters that do not belong in a path", "rename the file to plain characters"
        )
    if "\\" in text or text[1:3] == ":/":
        raise PathError(f"{text!r} is not a POSIX path", "separate folders with /")


def _plain(text: str) -> str:
    path = PurePosixPath(text)
    if ".." in path.parts:
        raise PathError(f"{text!r} has a '..' in it", "name the place without going up")
    if any(part.lower() == ".git" for part in path.parts):
        raise PathError(f"{text!r} is inside .git", "name a file of the task itself")
    return str(path)


def start_of(path: Path, size: int) -> str:
    """The first ``size`` bytes of a file as text; empty where there is none."""
    try:
        with path.open("rb") as stream:
            return stream.read(size).decode("utf-8", "replace")
    except OSError:
        return ""


def covers(outer: str, inner: str) -> bool:
    """Whether ``inner`` is ``outer`` or lies in it."""
    return outer in (".", inner) or inner.startswith(outer.rstrip("/") + "/")


def find_overlaps(
    editable: Iterable[str], protected: Iterable[str], private: Iterable[str], data: Iterable[str]
) -> Iterator[tuple[str, str, str]]:
    """(key, what, hint) of each pair of paths that contradict each other."""
    for key, paths in (("workspace.protected", protected), ("evaluation.private", private)):
        for path in paths:
            for target in editable:
                if covers(path, target):
                    what = f"{path!r} covers the editable file {target!r}"
                    yield key, what, "a file is either edited or closed: take it from one"
            for entry in data if key == "evaluation.private" else ():
                if covers(path, entry):
                    yield key, f"{path!r} hides {entry!r}, which workspace.data shows to the job", "keep the two apart"


def check_files(task: Task, root: Path, file: Path | None = None) -> None:
    """Check that the task's files are there and are what they have to be; all problems are told together.

    root: the task's source folder; file: the task.yaml that names them, to say lines; it need not be there.

    Raises:
        ConfigError: an editable file is missing, no regular UTF-8 text file, or reached through a symbolic link; a
            protected one is missing or leaves the folder; one is both; or data is missing that no set-up could make.
    """
    if not root.is_dir():
        raise_all("task.yaml", [Problem(f"the folder {str(root)!r} is not there", "create it", "workspace.source_dir")])
    private: Sequence[str] = task.evaluation.private if task.evaluation else ()
    problems = [
        Problem(what, hint, key) for key, what, hint in find_overlaps(task.editable, task.protected, private, task.data)
    ]
    try:
        editable = [problem for name in task.editable for problem in _editable_problems(name, root)]
        problems += editable or list(_amount_problems(task, root))
        problems += [problem for name in task.protected for problem in _protected_problems(name, root)]
        if not task.execution.setup_commands:
            problems += [problem for name in task.data for problem in _data_problems(name, root, "workspace.data")]
            problems += [problem for name in private for problem in _data_problems(name, root, "evaluation.private")]
    except OSError as error:
        what = f"{error.filename!r} cannot be looked at: {error.strerror}"
        problems.append(Problem(what, "check the permissions of the folders on the way to it", "workspace"))
    raise_any("task.yaml", (replace(problem, line=_line(file, problem.key)) for problem in problems))


def _line(file: Path | None, key: str) -> int | None:
    """The line of a key in a task.yaml, with or without a top key ``task:``; None where it cannot be told."""
    if file is None or not file.is_file():
        return None
    try:
        document = parse_yaml(read_text(file), str(file))
    except ConfigError:
        return None
    return document.line((*(("task",) if "task" in document.root else ()), *key.split(".")))


def _amount_problems(task: Task, root: Path) -> Iterator[Problem]:
    """Of a limit that the program as it is does not keep to; its files are in order."""
    if task.max_compressed is None:
        return
    size = compressed_size({name: read_text(root / name) for name in task.editable})
    if size > task.max_compressed:
        yield Problem(
            f"{', '.join(task.editable)} has {size:,} bytes once compressed already, and {task.max_compressed:,} are "
            "allowed",
            f"write {size + size // 2:,} or more, or leave the limit out",
            "workspace.max_compressed_bytes",
        )


def _editable_problems(name: str, root: Path) -> Iterator[Problem]:
    key, path = "workspace.target_file", root / name
    within = [*reversed(PurePosixPath(name).parents[:-1]), PurePosixPath(name)]
    link = next((str(part) for part in within if (root / part).is_symlink()), None)
    if link is not None:
        hint = "put the file itself there: an edit through a link is lost"
        yield Problem(f"{name!r}: {link!r} is a symbolic link", hint, key)
    elif not path.exists():
        yield Problem(f"{name!r} is not there (looked in {root})", _missing_hint(name), key)
    elif not stat.S_ISREG(path.stat().st_mode):
        yield Problem(f"{name!r} is not a regular file", "name a text file", key)
    elif problem := _text_problem(path):
        yield Problem(f"{name!r} {problem}", "policies edit text: name a UTF-8 text file", key)


def _protected_problems(name: str, root: Path) -> Iterator[Problem]:
    key, path = "workspace.protected", root / name
    if not path.exists():
        yield Problem(f"{name!r} is not there (looked in {root})", _missing_hint(name), key)
    elif not path.resolve().is_relative_to(root.resolve()):
        yield Problem(f"{name!r} leads out of the task's folder through a symbolic link", "put a copy there", key)


def _data_problems(name: str, root: Path, key: str) -> Iterator[Problem]:
    place = root / Path(name).expanduser()
    if not place.exists():
        hint = _missing_hint(name) if place.is_relative_to(root) else "correct the path, or put the data there"
        yield Problem(
            f"{name!r} is not there (looked for {place})", f"{hint}; or let execution.setup_commands make it", key
        )


def _missing_hint(name: str) -> str:
    if any(mark in name for mark in "*?["):
        return "patterns are not expanded: name each file, or the folder"
    return "correct the path (it is relative to the folder of task.yaml), or create the file"


def _text_problem(path: Path) -> str | None:
    if path.stat().st_size > MAX_EDITABLE_BYTES:
        return f"is larger than {MAX_EDITABLE_BYTES // 1024 // 1024} MiB"
    try:
        data = path.read_bytes()
        data.decode()
    except UnicodeDecodeError as error:
        return f"is not UTF-8 text (byte {error.start})"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "is binary: it holds a NUL byte" if b"\0" in data else None
