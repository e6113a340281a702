"""YAML, JSON and TOML files of a program: whether they can be read, what they mean, and where their values stand.

The text may come from a model: aliases are not expanded, no tag makes anything, and what is too large is not looked at.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

import yaml

from autoresearchd.config.yaml_document import Place, PlainLoader, dotted, syntax_message

MOST_CHARACTERS = 64 * 1024
"""Of a file that is looked at: one with the constants of a recipe is far smaller."""

_KINDS = {".yaml": "YAML", ".yml": "YAML", ".json": "JSON", ".toml": "TOML"}
_MOST_NODES = 5_000
_MOST_DEPTH = 40
_MOST_DOTS = 200
_MOST_PROVED = 4_000_000
"""Characters of TOML that are read to prove where values stand: the file once for each of them."""
_MOST_IN_LIST = 16
_KEY = re.compile(r"[\w-]{1,80}")
_NUMBER = re.compile(r"[-+]?(?:0|[1-9][\d_]*)(?:\.\d[\d_]*)?(?:[eE][-+]?\d+)?|[-+]?\.\d+(?:[eE][-+]?\d+)?|[-+]?\d+\.")
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_KEYS = r"[\w-]+(?:\s*\.\s*[\w-]+)*"
_HEADER = re.compile(rf"\s*\[\[?\s*({_KEYS})\s*\]\]?\s*(?:#.*)?")
_PAIR = re.compile(rf"\s*{_KEYS}\s*=\s*")
_TOML_VALUE = re.compile(r"""[-+.\w]+|"[^"\\\n]*"|'[^'\n]*'""")


class MarkupError(Exception):
    """A file cannot be read. line: 1-based, None where it is not known."""

    def __init__(self, what: str, line: int | None = None) -> None:
        super().__init__(what)
        self.what, self.line = what, line


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number, boolean or text in a file.

    name: ``optimizer.betas[0]``; start, end: its place in the UTF-8 bytes; heads: those of the keys around it.
    """

    name: str
    value: int | float | str | bool
    start: int
    end: int
    heads: tuple[tuple[int, int], ...] = ()


def kind_of(path: str) -> str:
    """``YAML``, ``JSON`` or ``TOML``; empty for other files."""
    return _KINDS.get(PurePosixPath(path).suffix.lower(), "")


@lru_cache(maxsize=8)  # one edit is looked at several times
def meaning(path: str, text: str, without: re.Pattern[str] | None = None) -> str:
    """What a file holds, whatever its comments and layout, but for the keys ``without``: equal for equal files.

    MarkupError: it cannot be read.
    """
    try:
        if kind_of(path) == "YAML":
            return repr([_of_node(node, without, [], 0) for node in _composed(text)])
        return repr(_of_value(_json(text) if kind_of(path) == "JSON" else _toml(text), without))
    except RecursionError:
        raise MarkupError("it is nested too deeply") from None


def scalars(path: str, text: str) -> tuple[Scalar, ...]:
    """All values whose place is known, in the order of the file. Raises MarkupError where it cannot be read."""
    try:
        if kind_of(path) == "JSON":
            _json(text)
            text = text.replace("\t", " ")  # to YAML a tab is no space; in strings JSON has none
        if kind_of(path) == "TOML":
            found = [*_toml_scalars(text)]
        else:
            found = [s for node in _composed(text)[:1] for s in _yaml_scalars(text, node)]
    except RecursionError:
        raise MarkupError("it is nested too deeply") from None
    if text.isascii():
        return tuple(found)

    def span(start: int, end: int) -> tuple[int, int]:
        return len(text[:start].encode()), len(text[:end].encode())

    return tuple(Scalar(s.name, s.value, *span(s.start, s.end), tuple(span(*h) for h in s.heads)) for s in found)


# ---------------------------------------------------------------------- reading
def _composed(text: str) -> list[yaml.Node]:
    _bounded(text)
    try:
        return [node for node in yaml.compose_all(text, Loader=PlainLoader) if node is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise MarkupError(syntax_message(error), mark.line + 1 if mark else None) from None
    except yaml.YAMLError as error:
        raise MarkupError(f"not YAML: {str(error).splitlines()[0]}") from None


def _json(text: str) -> Any:
    _bounded(text)
    try:
        return json.loads(text)
    except ValueError as error:  # also a whole number of thousands of digits
        raise MarkupError(f"not JSON: {getattr(error, 'msg', error)}", getattr(error, "lineno", None)) from None


def _toml(text: str) -> dict[str, Any]:
    _bounded(text)
    for number, row in enumerate(text.splitlines(), 1):
        keys = row.partition("=")[0]
        if keys.count(".") > _MOST_DOTS and not keys.lstrip().startswith("#"):  # they would take seconds
            raise MarkupError("a key has too many parts", number)
    try:
        return tomllib.loads(text)
    except ValueError as error:
        line = re.search(r"at line (\d+)", str(error))
        raise MarkupError(f"not TOML: {error}", int(line[1]) if line else None) from None


def _bounded(text: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise MarkupError(f"it is larger than {MOST_CHARACTERS // 1024} KiB")


def _of_node(node: yaml.Node, without: re.Pattern[str] | None, seen: list[int], depth: int) -> object:
    if depth > _MOST_DEPTH:
        raise MarkupError("it is nested too deeply", node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode):
        return node.tag, node.value
    if id(node) in seen:
        return "alias", seen.index(id(node))
    seen.append(id(node))
    if len(seen) > _MOST_NODES:
        raise MarkupError(f"it has more than {_MOST_NODES:,} lists and mappings")
    if isinstance(node, yaml.MappingNode):
        pairs = [
            (_of_node(key, None, seen, depth + 1), _of_node(value, without, seen, depth + 1))
            for key, value in node.value
            if not (without and isinstance(key, yaml.ScalarNode) and without.fullmatch(key.value))
        ]
        return node.tag, pairs
    return node.tag, [_of_node(item, without, seen, depth + 1) for item in node.value]


def _of_value(value: Any, without: re.Pattern[str] | None) -> object:
    if isinstance(value, dict):
        return {k: _of_value(v, without) for k, v in value.items() if not (without and without.fullmatch(k))}
    return [_of_value(item, without) for item in value] if isinstance(value, list) else value


# ---------------------------------------------------------------------- places
def _yaml_scalars(text: str, root: yaml.Node) -> Iterator[Scalar]:
    """The scalars of a YAML document; JSON is one, too."""
    seen: set[int] = set()

    def of(node: yaml.Node, place: Place, heads: tuple[tuple[int, int], ...], depth: int) -> Iterator[Scalar]:
        if id(node) in seen or depth > _MOST_DEPTH or len(seen) > _MOST_NODES:
            return  # an alias: the value is the anchor's
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and _KEY.fullmatch(key.value):
                    span = (key.start_mark.index, key.end_mark.index)
                    inner = heads if isinstance(value, yaml.ScalarNode) else (*heads, span)
                    yield from of(value, (*place, key.value), inner, depth + 1)
        elif isinstance(node, yaml.SequenceNode):
            numbers = all(isinstance(i, yaml.ScalarNode) and _NUMBER.fullmatch(i.value) for i in node.value)
            for index, item in enumerate(node.value[:_MOST_IN_LIST]):
                if not isinstance(item, yaml.ScalarNode) or (numbers and len(node.value) <= _MOST_IN_LIST):
                    yield from of(item, (*place, index), heads, depth + 1)
        elif isinstance(node, yaml.ScalarNode) and place and node.style not in ("|", ">"):
            start, end = node.start_mark.index, node.end_mark.index
            value = value_of(text[start:end])
            if value is not None and not (isinstance(value, str) and value != node.value):
                yield Scalar(dotted(place), value, start, end, heads)

    return of(root, (), (), 0)


def value_of(source: str) -> int | float | str | bool | None:
    """The value of a number, boolean or one-line text as it is written; None for what is more than that."""
    if source in _BOOLEANS:
        return _BOOLEANS[source]
    if _NUMBER.fullmatch(source):
        try:
            return int(source) if re.fullmatch(r"[-+]?[\d_]+", source) else float(source)
        except ValueError:
            return None
    if "\n" in source or "\\" in source or not source or not source.isprintable():
        return None
    if source[0] in "\"'":
        return source[1:-1] if len(source) > 1 and source[-1] == source[0] and source[0] not in source[1:-1] else None
    return source if re.fullmatch(r"[A-Za-z][\w.+-]*", source) and source.lower() != "null" else None


def _toml_scalars(text: str) -> Iterator[Scalar]:
    """Values of lines ``key = value`` below their ``[table]``, each proved by reading the file with another value."""
    data = _toml(text)
    heads: tuple[tuple[int, int], ...] = ()
    start, tried, most = 0, 0, _MOST_PROVED // max(len(text), 1)
    for line in text.splitlines(keepends=True):
        if header := _HEADER.fullmatch(line.rstrip("\r\n")):
            heads = ((start + header.start(1), start + header.end(1)),)
        elif (pair := _PAIR.match(line)) and tried < most:
            tried += 1
            for begin, end in _values_in(line, pair.end()):
                value = value_of(line[begin:end])
                if value is not None and (place := _proved(text, data, value, start + begin, start + end)):
                    yield Scalar(dotted(place), value, start + begin, start + end, heads)
        start += len(line)


def _values_in(line: str, begin: int) -> Iterator[tuple[int, int]]:
    """(start, end) of the value that begins there, or of the numbers of a list on that line."""
    if found := _TOML_VALUE.match(line, begin):
        yield found.span()
    elif line.startswith("[", begin) and (close := line.find("]", begin)) > 0:
        items = list(re.compile(r"[^\s,\[\]]+").finditer(line, begin, close))
        if len(items) <= _MOST_IN_LIST and all(_NUMBER.fullmatch(item[0]) for item in items):
            yield from (item.span() for item in items)


def _proved(text: str, data: dict[str, Any], value: object, start: int, end: int) -> Place:
    """The place of a value: another one there changes what stands at it and nothing else. Empty: it is none."""
    other = "false" if value is True else "true" if value is False else '"~"' if isinstance(value, str) else "-97531"
    try:
        changes = list(_changes(data, tomllib.loads(text[:start] + other + text[end:]), ()))
    except ValueError:
        return ()
    place, was = changes[0] if len(changes) == 1 else ((), None)
    return place if was == value and type(was) is type(value) else ()


def _changes(was: Any, now: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    """Where two trees differ, with the first one's value there."""
    if isinstance(was, dict) and isinstance(now, dict) and was.keys() == now.keys():
        for key, value in was.items():
            yield from _changes(value, now[key], (*place, key))
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for index, pair in enumerate(zip(was, now, strict=True)):
            yield from _changes(*pair, (*place, index))
    elif was != now or type(was) is not type(now):
        yield place, was
