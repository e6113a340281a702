"""YAML text as plain values, with the line of every key.

Stricter than PyYAML, which reads YAML 1.1: ``on``, ``yes``, ``12:30`` and dates are text (as in YAML 1.2, 10.3.2), a
key may not be given twice, tags are refused, and a few lines with aliases cannot grow into gigabytes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from autoresearchd.domain.errors import ConfigError

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_VALUES = 20_000

Place = tuple[str | int, ...]
"""Where a value stands: keys of mappings and indices of lists, from the top."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong in a file. line is 1-based; None where the file as a whole is meant."""

    what: str
    hint: str
    key: str = ""
    line: int | None = None

    def error(self, file: str) -> ConfigError:
        """This problem alone, as an error."""
        return ConfigError(self.what, file=file, line=self.line, key=self.key, hint=self.hint)


@dataclass(slots=True)
class Document:
    """A file as plain values. lines: 1-based, of each key and list item; texts: numbers as they were written."""

    root: dict[str, Any] = field(default_factory=dict)
    lines: dict[Place, int] = field(default_factory=dict)
    texts: dict[Place, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def written(self, place: Place) -> Place:
        """The place, or what is around it, as far as the file has it."""
        while place and place not in self.lines:
            place = place[:-1]
        return place

    def line(self, place: Place) -> int | None:
        """Line of a value, or of the nearest thing around it."""
        return self.lines.get(self.written(place))

    def at(self, place: Place) -> Any:
        """The value at ``place``; KeyError or IndexError where there is none."""
        return reduce(operator.getitem, place, self.root)  # type: ignore[arg-type]

    def beneath(self, place: Place, root: dict[str, Any]) -> Document:
        """The mapping ``root``, which stands at ``place``, as a document; problems stay with the whole."""
        depth = len(place)
        return Document(
            root,
            {key[depth:]: line for key, line in self.lines.items() if key[:depth] == place},
            {key[depth:]: text for key, text in self.texts.items() if key[:depth] == place},
            self.problems,
        )

    def complain(self, place: Place, what: str, hint: str, line: int | None = None) -> None:
        """Add a problem."""
        self.problems.append(Problem(what, hint, dotted(place), line or self.line(place)))


def dotted(place: Place) -> str:
    """A place as people write it: ``fleet.slots[0].host``."""
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def shown(value: object) -> str:
    """A value as it is quoted in a message: short, on one line."""
    words = {None: "nothing", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_text(path: Path) -> str:
    """Text of a file; ConfigError when there is none, or when it is too large or not UTF-8."""
    file = str(path)
    try:
        if path.exists() and not path.is_file():
            raise ConfigError("not a regular file", file=file, hint="put a text file there")
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        other = path.with_suffix(".yml")
        hint = f"rename {other.name} to {path.name}" if other.is_file() else "`autoresearchd task init` writes one"
        raise ConfigError("there is no such file", file=file, hint=hint) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=file, hint="allow yourself to read it") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES // 1024} KiB", file=file, hint="a page of text is enough")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what, line = f"not UTF-8: byte 0x{data[error.start]:02x}", data.count(b"\n", 0, error.start) + 1
        raise ConfigError(what, file=file, line=line, hint="save the file as UTF-8") from None


def parse_yaml(text: str, file: str) -> Document:
    """A YAML document whose root is a mapping, with its problems; ConfigError where the text is not YAML at all."""
    line: int | None = None
    try:
        node = yaml.compose(text, Loader=PlainLoader)
        if isinstance(node, yaml.MappingNode):
            return _Walk(file, node).made
        what, hint = "the file is empty" if node is None else "the file holds no mapping", "write lines of `key: value`"
        line = _line(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, what = mark.line + 1 if mark else None, syntax_message(error)
        row = "".join(text.splitlines()[mark.line : mark.line + 1]) if mark else ""
        hint = "check the indentation, and put text that holds `: `, `#`, brackets or quotes in quotes"
        if "\t" in row[: len(row) - len(row.lstrip())] or "\\t" in what:
            hint = "indent with spaces: YAML does not allow tabs"
        elif "but found another document" in what:
            hint = "keep one document in the file: remove the line `---`"
    except yaml.reader.ReaderError as error:
        line, hint = text.count("\n", 0, error.position) + 1, "remove it, or write it as an escape in double quotes"
        what = f"a character that YAML does not allow: {text[error.position : error.position + 1]!r}"
    except RecursionError:
        what, hint = "brackets or lists nested too deeply", "write it flat"
    raise ConfigError(what, file=file, line=line, hint=hint)


def syntax_message(error: yaml.MarkedYAMLError) -> str:
    """What PyYAML says of it, on one line."""
    return f"not YAML: {', '.join(part for part in (error.context, error.problem) if part)}"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalar types of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own protocol


_TAG = "tag:yaml.org,2002:"
_STR, _NULL, _BOOL, _INT, _FLOAT = (_TAG + name for name in ("str", "null", "bool", "int", "float"))
PlainLoader.add_implicit_resolver(_NULL, re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""])
PlainLoader.add_implicit_resolver(_BOOL, re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF"))
PlainLoader.add_implicit_resolver(_INT, re.compile(r"[-+]?[0-9][0-9_]*\Z|0x[0-9a-fA-F]+\Z"), list("-+0123456789"))
PlainLoader.add_implicit_resolver(
    _FLOAT,
    re.compile(
        r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?\Z|[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z"
    ),
    list("-+0123456789."),
)


def _scalar(tag: str, text: str) -> str | int | float | bool | None:
    """Value of a scalar; ValueError where a tag was forced on a text that does not fit."""
    plain = text.replace("_", "").lower()
    if tag == _STR:
        return text
    if tag == _NULL:
        return None
    if tag == _BOOL:
        return {"true": True, "false": False}[plain]
    if tag == _INT:
        return int(plain, 16 if plain.startswith("0x") else 10)
    if tag == _FLOAT:
        return float(re.sub(r"\.(inf|nan)", r"\1", plain))
    raise KeyError(tag)


class _Walk:
    """One pass over the nodes, which makes values and takes down lines."""

    def __init__(self, file: str, root: yaml.MappingNode) -> None:
        self.file, self.made, self.values = file, Document(), 0
        self.made.root = self.value(root, ()) or {}

    def value(self, node: yaml.Node, place: Place) -> Any:
        self.values += 1
        if len(place) > MAX_DEPTH or self.values > MAX_VALUES:
            what = f"more than {MAX_VALUES:,} values, or nested too deeply, as an alias that holds itself is"
            hint = "write the values out, plainly: a page of text is enough"
            raise Problem(what, hint, dotted(place[:2]), _line(node)).error(self.file)
        self.made.lines.setdefault(place, _line(node))
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self.mapping(node, place)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.value(item, (*place, index)) for index, item in enumerate(node.value)]
        try:
            if isinstance(node, yaml.ScalarNode):
                return self.scalar(node, place)
        except KeyError:
            pass
        tag = node.tag.replace(_TAG, "!!")
        self.complain(node, place, f"the tag {tag!r} is not allowed here", "leave it out: plain values only")
        return None

    def mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag not in (_STR, _INT, _FLOAT, _BOOL):
                self.complain(key_node, place, "a key that is not text", "write it as text, in quotes if need be")
                continue
            # Numbers and booleans as they were written: what is wrong with such a key is that nobody knows it.
            key = str(key_node.value).encode("utf-8", "backslashreplace").decode()
            inner = (*place, key)
            if key in result:
                first = self.made.lines[inner]
                self.complain(key_node, inner, f"given twice, first in line {first}", "keep one of them")
                continue
            self.made.lines.setdefault(inner, _line(key_node))
            result[key] = self.value(value_node, inner)
        return result

    def scalar(self, node: yaml.ScalarNode, place: Place) -> Any:
        if any("\ud800" <= character <= "\udfff" for character in node.value):
            self.complain(node, place, "half of a surrogate pair", "write the character itself")
            return ""
        try:
            value = _scalar(node.tag, node.value)
        except ValueError:
            what = f"{shown(node.value)} is not a usable value"
            self.complain(node, place, what, "leave out its tag, or put it in quotes")
            return None
        if isinstance(value, (int, float)):
            self.made.texts[place] = node.value
        return value

    def complain(self, node: yaml.Node, place: Place, what: str, hint: str) -> None:
        self.made.complain(place, what, hint, _line(node))


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``over`` laid upon it: mappings are merged at every depth, all else is replaced."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return result


def without_empty(values: dict[str, Any], keep: Container[Place], place: Place = ()) -> dict[str, Any]:
    """Keys without a value are as if they were not there, but in the mappings at ``keep``: there it is a mistake."""
    if place in keep:
        return dict(values)
    return {
        key: without_empty(value, keep, (*place, key)) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }
