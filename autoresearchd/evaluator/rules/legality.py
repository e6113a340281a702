"""Whether an edit may be run at all, judged by its text alone; and the hash by which two programs are the same.

The text comes from a model and is hostile: it is parsed but never compiled or run, and what could exhaust memory on the
way is refused first. An edit that would bring a secret into the repository is refused, for code must not be changed
silently.
"""

from __future__ import annotations

import ast
import hashlib
import re
import tokenize
from collections.abc import Iterable, Mapping
from itertools import islice

from autoresearchd.config.task_paths import MAX_EDITABLE_BYTES
from autoresearchd.config.value_positions import MarkupError, kind_of, meaning
from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.file_content import compressed_size
from autoresearchd.domain.labels import Label
from autoresearchd.domain.redaction import MARK, Redactor
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.rules import program_text
from autoresearchd.evaluator.rules.program_text import SEED_NAME, SEED_VARIABLE, UNPARSABLE, mentions, parse


def check_no_secret(redactor: Redactor, old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Let an edit pass or raise ``illegal_edit``, which never holds the secret; what ``old`` holds is no leak."""
    changed = {path: text for path, text in new.items() if text != old.get(path)}
    for path in sorted(changed):
        for secret, line, kind in redactor.found(changed[path]):
            if not any(secret in text for text in old.values()):
                what = f"{path}, line {line}: the edit holds a secret ({kind})"
                raise _illegal(what, "leave keys, tokens and passwords out of the program")
    if sum(text.count(MARK) for text in old.values()) < sum(text.count(MARK) for text in {**old, **changed}.values()):
        raise _illegal(
            f"the edit holds the mark {MARK}…, which stands for a secret in what a policy is shown",
            "leave the lines with such a mark as they are",
        )


MAX_LINES = 20_000
MAX_TOKENS = 60_000
"""Of one Python file that had no more before: the parser takes up to two kilobytes for each."""

_TOKEN = re.compile(r"\w+|[^\w\s]")
_TREE, _HELD, _TEXT = "tree:", "held:", "text:"
_LINE_END = re.compile(rb"\r\n|\r|\n")
_PLAIN_CODECS = frozenset({"utf-8", "utf8", "utf-8-sig", "ascii", "us-ascii"})
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")


def check_edit(
    task: Task, old: Mapping[str, str], new: Mapping[str, str], *, required: Mapping[str, frozenset[str]] | None = None
) -> None:
    """Let an edit pass or raise ``illegal_edit`` with what is wrong, or ``no_op`` when the program stays the same.

    old, new: text of the editable files; what ``new`` leaves out is unchanged. required: see ``required_symbols``.
    """
    for path in new:
        if path not in task.editable:
            raise _illegal(f"{path!r} may not be edited", f"edit only {', '.join(task.editable)}")
    changed = [path for path in new if new[path] != old.get(path)]
    programs = {path: _checked(path, new[path], old.get(path, "")) for path in changed}
    if all(path in old and program == _program(path, old[path]) for path, program in programs.items()):
        what = "only comments or layout differ" if changed else "nothing differs"
        raise PolicyError(f"the edit changes nothing: {what}", label=Label.NO_OP, hint="change what the program does")
    _check_amount(task, old, new)
    if all(_same_but_for_seeds(path, old.get(path, ""), new[path]) for path in changed):
        raise PolicyError(
            "the edit changes nothing but a seed, which is the evaluator's to choose",
            label=Label.NO_OP,
            hint="change what the program does; luck with a seed is no improvement",
        )
    for path in changed:
        before, after = _tree_of(path, old.get(path, "")), _tree_of(path, new[path])
        if before and after:
            _check_promises(path, before, after, (required or {}).get(path, frozenset()))


def required_symbols(task: Task, protected: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """For each editable file the names that the task's protected programs take from it."""
    trees = {path: tree for path, text in protected.items() if (tree := _tree_of(path, text)) is not None}
    return {path: program_text.required_names(path, trees) for path in task.editable}


def code_hash(files: Mapping[str, str]) -> str:
    """SHA-256 over paths and programs; comments and layout matter only in a Python file that may read its own text."""
    parts: list[str] = []
    for path in sorted(files):
        tree = _tree_of(path, files[path])
        as_text = tree is not None and program_text.reads_text(program_text.ways(tree))
        parts += [path, _TEXT + files[path] if as_text else _program(path, files[path])]
    return digest_of(parts)


def digest_of(parts: Iterable[str]) -> str:
    """SHA-256 over texts, each with its length before it."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


# ---------------------------------------------------------------------- text
def _checked(path: str, text: str, before: str) -> str:
    """What a file means (as ``_program`` gives it), once it is known to be legal."""
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise _illegal(f"{path} holds a lone surrogate at character {error.start}", "write valid Unicode") from None
    if "\0" in text:
        raise _illegal(f"{path} holds a NUL character at character {text.index(chr(0))}", "write plain text")
    if size > MAX_EDITABLE_BYTES:
        raise _illegal(f"{path} would be {size:,} bytes long", f"stay below {MAX_EDITABLE_BYTES:,} bytes")
    lines = text.count("\n")
    if lines > MAX_LINES >= before.count("\n"):
        raise _illegal(f"{path} would have {lines:,} lines", f"stay below {MAX_LINES:,} lines")
    if _is_python(path):
        return _checked_python(path, text, before)
    try:
        if kind_of(path):
            meaning(path, text)
    except MarkupError as error:
        if not before or _meaning(path, before) is not None:  # else it is a template of such a file
            where = f"{path}, line {error.line}" if error.line else path
            raise _illegal(f"{where}: {error.what}", f"give a file that can be read as {kind_of(path)}") from None
    return _program(path, text)


def _meaning(path: str, text: str, without: re.Pattern[str] | None = None) -> str | None:
    """What a YAML, JSON or TOML file holds, None where that cannot be said."""
    try:
        return meaning(path, text, without) if kind_of(path) else None
    except MarkupError:
        return None


def _check_amount(task: Task, old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """A program may bring code and no data: answers, or weights that were trained beforehand without a budget."""
    if task.max_compressed is None:
        return
    before, after = compressed_size(old), compressed_size({**old, **new})
    if after > max(task.max_compressed, before):  # what is too large already may become smaller step by step
        raise _illegal(
            f"{', '.join(task.editable)} would hold {after:,} bytes when compressed, and "
            f"workspace.max_compressed_bytes allows {task.max_compressed:,}",
            "write code and no data: what a run uses it has to read or to compute within its budget",
        )


def _checked_python(path: str, text: str, before: str) -> str:
    _check_encoding(path, text, before)
    if _too_many_tokens(text) and not _too_many_tokens(before):
        raise _illegal(f"{path} holds more than {MAX_TOKENS:,} words and operators", "write a shorter program")
    try:
        return _TREE + _written_out(parse(text))
    except SyntaxError as error:
        if before and not _too_many_tokens(before) and _tree_of(path, before) is None:
            return _TEXT + text  # what runs it knows a newer Python than this process
        where = f"{path}, line {error.lineno}" if error.lineno else path
        raise _illegal(f"{where}: {error.msg}", "give a program that parses") from None
    except UNPARSABLE as error:
        raise _illegal(
            f"{path} cannot be parsed: {type(error).__name__}", "nest less deeply, write smaller literals"
        ) from None


def _check_encoding(path: str, text: str, before: str) -> None:
    """What is read here must be what Python runs (PEP 263), and what people see in a diff (CVE-2021-42574)."""
    codec = _codec(text)
    if codec not in _PLAIN_CODECS and codec != _codec(before):
        raise _illegal(f"{path} says that it is written in {codec!r}", "leave out the coding line: files are UTF-8")
    turned = _BIDI.search(text)
    if turned and not _BIDI.search(before):
        where = text.count("\n", 0, turned.start()) + 1
        raise _illegal(
            f"{path}, line {where}: a character that turns the direction of writing (U+{ord(turned[0]):04X})",
            "write it as an escape",
        )


def _codec(text: str) -> str:
    """The encoding that Python takes a file to be in: its first two lines name it, however long they are."""
    lines = iter(_LINE_END.split(text.encode("utf-8", "surrogatepass"), maxsplit=2)[:2])
    try:
        return tokenize.detect_encoding(lambda: next(lines) + b"\n")[0].lower()
    except SyntaxError as error:  # one that nobody knows, or another one than its byte order mark says
        return str(error)


def _check_promises(path: str, before: ast.Module, after: ast.Module, required: frozenset[str]) -> None:
    """What others rely on must stay: names that they take from this file, and seeds that the evaluator chooses."""
    had, has = program_text.defined_names(before), program_text.defined_names(after)
    missing = sorted(name for name in required if has is not None and name not in has and (had is None or name in had))
    if missing:
        what = ", ".join(missing)
        raise _illegal(f"{path} no longer defines {what}, which the evaluation uses", f"keep {what} at the top level")
    if mentions(before, SEED_VARIABLE) and not mentions(after, SEED_VARIABLE):
        raise _illegal(
            f"{path} no longer reads {SEED_VARIABLE}", "take the seed from it: results are compared over several"
        )
    if mentions(before, SEED_VARIABLE) and program_text.fixed_seeds(after) > program_text.fixed_seeds(before):
        raise _illegal(f"{path} sets a seed of its own", f"take it from {SEED_VARIABLE}, as the program does")


def _same_but_for_seeds(path: str, before: str, after: str) -> bool:
    """Whether two texts of a file differ in nothing but a seed."""
    old, new = _tree_of(path, before), _tree_of(path, after)
    if old and new:
        try:
            old, new = program_text.without_seeds(old), program_text.without_seeds(new)
            return _written_out(old) == _written_out(new)
        except RecursionError:  # too deep to be looked at; it is no short-cut for anybody
            return False
    held = _meaning(path, before, SEED_NAME)
    return held is not None and held == _meaning(path, after, SEED_NAME)


def _tree_of(path: str, text: str) -> ast.Module | None:
    """The syntax tree of a file that has one and is not too large to be looked at."""
    if not _is_python(path) or _too_many_tokens(text):
        return None
    try:
        return parse(text)
    except UNPARSABLE:
        return None


def _too_many_tokens(text: str) -> bool:
    return len(text) > MAX_TOKENS and next(islice(_TOKEN.finditer(text), MAX_TOKENS, None), None) is not None


def _illegal(what: str, hint: str) -> PolicyError:
    return PolicyError(what, label=Label.ILLEGAL_EDIT, hint=hint)


# ---------------------------------------------------------------------- programs
def _is_python(path: str) -> bool:
    return path.endswith((".py", ".pyi"))


def _program(path: str, text: str) -> str:
    """What a file means: for Python its syntax tree written out, else what it holds or its text, told by a prefix."""
    held = _meaning(path, text)
    if held is not None:
        return _HELD + held
    tree = _tree_of(path, text)
    return _TEXT + text if tree is None else _TREE + _written_out(tree)


def _written_out(tree: ast.AST) -> str:
    """A tree as text, without places: like ``ast.dump``, but without recursion, so that no depth exhausts the stack."""
    out: list[str] = []
    stack: list[object] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.AST):
            fields = [getattr(node, name, None) for name in node._fields]
            out.append(f"{type(node).__name__}/{len(fields)}")
            stack.extend(reversed(fields))
        elif isinstance(node, list):
            out.append(f"[{len(node)}")
            stack.extend(reversed(node))
        elif isinstance(node, int) and not isinstance(node, bool):
            out.append(hex(node))  # decimal digits of a very large number take quadratic time, and are refused
        else:
            out.append(repr(node))
    return "\0".join(out)
