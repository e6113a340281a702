"""Which path strings a task may name, and whether the files behind them are what the task needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from autoresearchd.config.problems import Conflict, raise_any, wrong
from autoresearchd.config.yaml_document import Document, Place, Problem, parse_yaml, read_text
from autoresearchd.domain.errors import ConfigError
from autoresearchd.domain.file_content import compressed_size
from autoresearchd.domain.task import Task
from autoresearchd.resources import bundled

MAX_EDITABLE_BYTES = 1_000_000
HIDE_ROOTS = ("{purelib}", "{stdlib}")


def inside_path(text: str) -> str:
    """A path inside the task's folder, in its plain form (``./a//b/`` → ``a/b``); an error of validation for others."""
    _check_characters(text)
    if text.startswith(("/", "~")):
        raise wrong(f"{text!r} is not inside the task's folder", "write it relative to the folder of task.yaml")
    return _plain(text)


def data_path(text: str) -> str:
    """As ``inside_path``, or an absolute path, or one that starts with ``~/``."""
    if not text.startswith(("/", "~")):
        return inside_path(text)
    _check_characters(text)
    if text.startswith("~") and not text.startswith("~/"):
        raise wrong(f"{text!r} names another user's home or all of your own", "write ~/folder, or an absolute path")
    head, rest = ("~/", text[2:]) if text.startswith("~") else ("/", text)
    plain = _plain(rest.strip("/") or ".")
    if plain == ".":
        raise wrong(f"{text!r} would show everything to the job", "name the folder that holds the data")
    return head + plain


def hidden_path(text: str) -> str:
    """A place outside of the task: as ``data_path``, or in the interpreter's ``{purelib}`` or ``{stdlib}``."""
    root, _, rest = text.partition("/")
    if root in HIDE_ROOTS and rest.strip("/"):
        return f"{root}/{inside_path(rest)}"
    if "{" in root:
        known = f"known: {', '.join(HIDE_ROOTS)}, e.g. {{stdlib}}/test"
        raise wrong(f"{text!r} begins with a place that is not known", known)
    if not text.startswith(("/", "~")):
        hint = "name it in evaluation.private; here: /…, ~/…, {stdlib}/… or {purelib}/…"
        raise wrong(f"{text!r} is a file of the task", hint)
    return data_path(text)


def _check_characters(text: str) -> None:
    if not text.strip():
        raise wrong("an empty path", "write a path, or leave the entry out")
    if not text.isprintable() or str(PurePosixPath(text)) != str(PurePosixPath(text)).strip():
        raise wrong(f"{text!r} holds characters that do not belong in a path", "rename the file to plain characters")
    if "\\" in text or text[1:3] == ":/":
        raise wrong(f"{text!r} is not a POSIX path", "separate folders with /")


def _plain(text: str) -> str:
    path = PurePosixPath(text)
    if ".." in path.parts:
        raise wrong(f"{text!r} has a '..' in it", "name the place without going up")
    if any(part.lower() == ".git" for part in path.parts):
        raise wrong(f"{text!r} is inside .git", "name a file of the task itself")
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
) -> Iterator[Conflict]:
    """Each pair of paths that contradict each other."""
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
    """Check that the files of a task are what they have to be; ConfigError tells all, with the lines of ``file``."""
    if not root.is_dir():
        line = line_in(file, ("workspace", "source_dir"))
        what, hint = f"the folder {str(root)!r} is not there", "create it"
        if root.exists():
            what, hint = f"{str(root)!r} is a file, not a folder", "name the folder that the file lies in"
        raise ConfigError(what, line=line, key="workspace.source_dir", hint=hint)
    private = task.evaluation.private if task.evaluation else ()
    problems = list(find_overlaps(task.editable, task.protected, private, task.data))
    looks = [("workspace.target_file", _editable_problem, task.editable)]
    looks += [("workspace.protected", _protected_problem, task.protected)]
    if not task.execution.setup_commands:
        looks += [("workspace.data", _data_problem, task.data), ("evaluation.private", _data_problem, private)]
    try:
        for key, look, names in looks:
            problems.extend((key, *found) for name in names if (found := look(name, root)))
        if (most := task.max_compressed) is not None and not any(_editable_problem(n, root) for n in task.editable):
            size = compressed_size({name: read_text(root / name) for name in task.editable})
            what = f"{', '.join(task.editable)} has {size:,} bytes once compressed already, and {most:,} are allowed"
            hint = f"write {size + size // 2:,} or more, or leave the limit out"
            problems += [("workspace.max_compressed_bytes", what, hint)] if size > most else []
    except OSError as error:
        what = f"{error.filename!r} cannot be looked at: {error.strerror}"
        problems.append(("workspace", what, "check the permissions of the folders on the way to it"))
    lines = {key: line_in(file, tuple(key.split(".")), (key.partition(".")[0],)) for key, *_ in problems}
    raise_any("task.yaml", (Problem(what, hint, key, lines[key]) for key, what, hint in problems))


def line_in(file: Path | None, *places: Place) -> int | None:
    """The line of the first of these keys that a task.yaml has, with or without a top key ``task:``; None: of none."""
    try:
        document = parse_yaml(read_text(file), str(file)) if file is not None else Document()
    except ConfigError:
        return None
    top: Place = ("task",) if "task" in document.root else ()
    return next((document.lines[(*top, *place)] for place in places if (*top, *place) in document.lines), None)


def _editable_problem(name: str, root: Path) -> tuple[str, str] | None:
    path = root / name
    within = [*reversed(PurePosixPath(name).parents[:-1]), PurePosixPath(name)]
    if link := next((str(part) for part in within if (root / part).is_symlink()), ""):
        return f"{name!r}: {link!r} is a symbolic link", "put the file itself there: an edit through a link is lost"
    if not path.exists():
        return _missing(name, root)
    if not path.is_file():
        return f"{name!r} is not a regular file", "name a text file"
    hint = "policies edit text: name a UTF-8 text file"
    if path.stat().st_size > MAX_EDITABLE_BYTES:
        return f"{name!r} is larger than {MAX_EDITABLE_BYTES:,} bytes", hint
    data = path.read_bytes()
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"{name!r} is not UTF-8 text (byte {error.start})", hint
    return (f"{name!r} is binary: it holds a NUL byte", hint) if b"\0" in data else None


SHARED = "shared"
"""In the folder of the bundled tasks: files that several of them link to; whoever copies a task gets copies."""


def _protected_problem(name: str, root: Path) -> tuple[str, str] | None:
    if not (root / name).exists():
        return _missing(name, root)
    target = (root / name).resolve()
    if not target.is_relative_to(root.resolve()) and target.parent != (bundled("templates") / SHARED).resolve():
        return f"{name!r} leads out of the task's folder through a symbolic link", "put a copy there"
    return None


def _data_problem(name: str, root: Path) -> tuple[str, str] | None:
    place = root / Path(name).expanduser()
    if place.exists():
        return None
    hint = _missing(name, root)[1] if place.is_relative_to(root) else "correct the path, or put the data there"
    return f"{name!r} is not there (looked for {place})", f"{hint}; or let execution.setup_commands make it"


def _missing(name: str, root: Path) -> tuple[str, str]:
    hint = "correct the path (it is relative to the folder of task.yaml), or create the file"
    if any(mark in name for mark in "*?["):
        hint = "patterns are not expanded: name each file, or the folder"
    return f"{name!r} is not there (looked in {root})", hint
