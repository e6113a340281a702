"""Line operations: replace, insert and delete by the line numbers of the file as it was shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoresearchd.domain.quantities import counted
from autoresearchd.policy.edits import paths
from autoresearchd.policy.edits.model import MAX_CHANGES, EditError, shown
from autoresearchd.policy.edits.source import Source, Splice, lines_of, spliced

_OPERATIONS = ("replace", "insert", "delete")
_LONGEST_NUMBER = 7
_EXAMPLE = '{"file": "train.py", "op": "replace", "line": 12, "end": 14, "expect": "text of line 12", "text": "…"}'
_MOST_NAMED = 5


def apply_operations(items: Sequence[Any], code: Mapping[str, str]) -> dict[str, str]:
    """New text of each file that the operations name."""
    if len(items) > MAX_CHANGES:
        raise EditError(f"{len(items)} line operations are more than {MAX_CHANGES}")
    sources: dict[str, Source] = {}
    splices: dict[str, list[Splice]] = {}
    for number, item in enumerate(items, 1):
        what = f"edit {number}"
        if not isinstance(item, Mapping):
            raise EditError(f"{what} is no JSON object", mend=f"write it like {_EXAMPLE}")
        file = _file(item, code, what)
        if file not in sources:
            sources[file] = Source.of(code[file])
        splices.setdefault(file, []).append(_splice(item, sources[file], file, what))
    return {file: spliced(sources[file], found, file) for file, found in splices.items()}


def _file(item: Mapping[str, Any], code: Mapping[str, str], what: str) -> str:
    name = item.get("file") or paths.only(code)
    if name is None:
        raise EditError(f'{what} has no "file"', mend=f"name one of: {paths.allowed(code)}")
    return paths.known(name, code, what)


def _splice(item: Mapping[str, Any], source: Source, file: str, what: str) -> Splice:
    operation = item.get("op")
    if operation not in _OPERATIONS:
        raise EditError(f'{what}: "op" is {shown(operation)}', mend=f"it is one of {', '.join(_OPERATIONS)}")
    first = _number(item.get("line"), "line", what)
    last = first if item.get("end") is None else _number(item["end"], "end", what)
    text = item.get("text")
    if operation != "delete" and not isinstance(text, str):
        raise EditError(f'{what}: "{operation}" needs "text"', mend=f"write it like {_EXAMPLE}")
    lines = lines_of(text) if isinstance(text, str) else ()
    count, lowest = len(source.lines), 0 if operation == "insert" else 1
    if not lowest <= first <= last <= count:
        raise EditError(
            f"{what}: there are no lines {first} to {last}: {file} has {counted(count, 'line')}",
            mend=f'"line" is from {lowest} to {count}, and "end", the last line of the range, is not before it',
        )
    _check(item.get("expect"), source, first, file, what)
    if operation == "insert":
        if last != first:
            raise EditError(f'{what}: "insert" takes no "end"', mend='it puts its text after "line" (0: at the top)')
        return Splice(first, first, lines or ("",), what)
    return Splice(first - 1, last, () if operation == "delete" else lines, what)


def _number(value: object, key: str, what: str) -> int:
    """A line number; models write it as a text now and then."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _LONGEST_NUMBER:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 10**_LONGEST_NUMBER:
        raise EditError(f'{what}: "{key}" is {shown(value)}, no line number', mend=f"write it like {_EXAMPLE}")
    return value


def _check(expect: object, source: Source, first: int, file: str, what: str) -> None:
    """Raise where the lines from ``first`` on are not the expected ones, white space around them aside."""
    if expect is None or expect == "":
        return
    if not isinstance(expect, str):
        raise EditError(f'{what}: "expect" is {shown(expect)}, no text')
    wanted = [line.strip() for line in lines_of(expect)]
    there = [line.strip() for line in source.lines[max(first - 1, 0) : max(first - 1, 0) + len(wanted)]]
    if first > 0 and wanted == there:
        return
    own = f"line {first} of {file} is `{shown(source.lines[first - 1].strip())}`" if first else "there is no line 0"
    elsewhere = [str(n) for n, line in enumerate(source.lines, 1) if line.strip() == wanted[0]][:_MOST_NAMED]
    found = f"; that is at line {', '.join(elsewhere)}" if elsewhere and wanted[0] else ""
    raise EditError(
        f"{what}: {own}, not `{shown(wanted[0])}` as expected{found}",
        mend="count in the file as it was shown; earlier edits of the same answer do not shift its numbers",
    )
