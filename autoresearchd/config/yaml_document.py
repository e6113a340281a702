"""YAML text as plain values, with the line of every key.

Stricter than PyYAML, which reads YAML 1.1: ``on``, ``yes``, ``12:30`` and dates are text (as in YAML 1.2,
https://yaml.org/spec/1.2.2/#1032-tag-resolution), a key may not be given twice, tags of a document's own are refused,
and aliases are bounded, so that a few lines cannot grow into gigabytes.
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

from autoresearchd.config.problems import Problem, shown
from autoresearchd.domain.errors import ConfigError

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_ALIASES = 32
MAX_VALUES = 20_000

Place = tuple[str | int, ...]
"""Where a value stands: keys of mappings and indices of lists, from the top."""


@dataclass(slots=True)
class Document:
    """A file as plain values.

    lines: 1-based line of each key and list item; texts: numbers as they were written; problems: what is wrong so far.
    """

    root: dict[str, Any] = field(default_factory=dict)
    lines: dict[Place, int] = field(default_factory=dict)
    texts: dict[Place, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, place: Place) -> int | None:
        """Line of a value, or of the nearest thing around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place)

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


def read_text(path: Path) -> str:
    """Text of a file; ConfigError when there is none, or when it is too large or not UTF-8."""
    file = str(path)
    try:
        if path.exists() and not path.is_file():
            raise ConfigError("not a regular file", file=file, hint="put a text file there")
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        hint = "`autoresearchd task init` writes one"
        if path.with_suffix(".yml").is_file():
            hint = f"the name has to be {path.name}: rename {path.with_suffix('.yml').name}"
        raise ConfigError("there is no such file", file=file, hint=hint) from None
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", file=file, hint="make it a file that you may read"
        ) from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"larger than {MAX_BYTES // 1024} KiB", file=file, hint="a task.yaml is a page of text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"not UTF-8: byte 0x{data[error.start]:02x}", file=file, line=line, hint="save the file as UTF-8"
        ) from None


def parse_yaml(text: str, file: str) -> Document:
    """Read a YAML document whose root is a mapping.

    Raises:
        ConfigError: the text is no YAML at all. Lesser problems are in the document's ``problems``.
    """
    try:
        node = yaml.compose(text, Loader=PlainLoader)
        if node is None:
            raise ConfigError(
                "the file is empty", file=file, hint="`autoresearchd task init` writes a file to start from"
            )
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(
                "the file holds no mapping", file=file, line=_line(node), hint="begin with `name: my-task`"
            )
        return _Walk(file).document(node)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, file) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            f"a character that YAML does not allow: {chr(error.character)!r}"
            if isinstance(error.character, int)
            else f"not readable as YAML: {error.reason}",
            file=file,
            line=line,
            hint="remove it, or write it as an escape in double quotes",
        ) from None
    except RecursionError:
        raise ConfigError("brackets or lists nested too deeply", file=file, hint="a task.yaml is flat") from None


def _syntax_error(error: yaml.MarkedYAMLError, text: str, file: str) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    rows = text.splitlines()
    row = rows[mark.line] if mark and mark.line < len(rows) else ""
    hint = "check the indentation, and put text that holds `: `, `#`, brackets or quotes in quotes"
    if "\t" in row[: len(row) - len(row.lstrip())] or "\\t" in (error.problem or ""):
        hint = "indent with spaces: YAML does not allow tabs"
    elif "but found another document" in (error.problem or ""):
        hint = "keep one document in the file: remove the line `---`"
    return ConfigError(syntax_message(error), file=file, line=line, hint=hint)


def syntax_message(error: yaml.MarkedYAMLError) -> str:
    """What PyYAML says of it, on one line."""
    return f"not YAML: {', '.join(part for part in (error.context, error.problem) if part)}"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalar types of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own protocol


_TAG = "tag:yaml.org,2002:"
_NULL, _BOOL, _INT, _FLOAT = (_TAG + name for name in ("null", "bool", "int", "float"))
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
    if tag == _TAG + "str":
        return text
    if tag == _NULL:
        return None
    if tag == _BOOL:
        return {"true": True, "false": False}[text.lower()]
    plain = text.replace("_", "")
    if tag == _INT:
        return int(plain, 16) if plain.lower().startswith("0x") else int(plain)
    if tag == _FLOAT:
        return float(re.sub(r"(?i)\.(inf|nan)", r"\1", plain))
    raise KeyError(tag)


@dataclass(slots=True)
class _Walk:
    """One pass over the nodes, which makes values and takes down lines."""

    file: str
    made: Document = field(default_factory=Document)
    values: int = 0
    aliases: int = 0
    seen: set[int] = field(default_factory=set)

    def document(self, root: yaml.MappingNode) -> Document:
        self.made.lines[()] = _line(root)
        value = self.value(root, ())
        self.made.root = value if isinstance(value, dict) else {}
        return self.made

    def value(self, node: yaml.Node, place: Place) -> Any:
        self._count(node, place)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.value(item, self._mark((*place, index), item)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, place)
        return self._foreign_tag(node, place)

    def _count(self, node: yaml.Node, place: Place) -> None:
        """Count a value, and give up where the document goes beyond what a task can need."""
        self.values += 1
        if not isinstance(node, yaml.ScalarNode):
            self.aliases += id(node) in self.seen
            self.seen.add(id(node))
        if len(place) > MAX_DEPTH:
            raise self._too_much("nested too deeply, or an alias holds itself", place, node)
        if self.aliases > MAX_ALIASES:
            raise self._too_much(f"more than {MAX_ALIASES} aliases (`*name`)", place, node)
        if self.values > MAX_VALUES:
            raise self._too_much(f"more than {MAX_VALUES} values", place, node)

    def _too_much(self, what: str, place: Place, node: yaml.Node) -> ConfigError:
        hint = "write the values out, plainly: a task.yaml is a page of text"
        return Problem(what, hint, dotted(place[:2]), _line(node)).error(self.file)

    def _mark(self, place: Place, node: yaml.Node) -> Place:
        self.made.lines.setdefault(place, _line(node))
        return place

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, place)
            if key is None:
                continue
            inner = (*place, key)
            if key in result:
                self._problem(
                    key_node, inner, f"given twice, first in line {self.made.lines[inner]}", "keep one of them"
                )
                continue
            self._mark(inner, key_node)
            result[key] = self.value(value_node, inner)
        return result

    def _key(self, node: yaml.Node, place: Place) -> str | None:
        if isinstance(node, yaml.ScalarNode) and node.tag in (_TAG + name for name in ("str", "int", "float", "bool")):
            # Numbers and booleans as they were written: what is wrong with such a key is that nobody knows it.
            return str(node.value).encode("utf-8", "backslashreplace").decode()
        self._problem(node, place, "a key that is no text", "write it as text, in quotes if need be")
        return None

    def _scalar(self, node: yaml.ScalarNode, place: Place) -> Any:
        if any("\ud800" <= character <= "\udfff" for character in node.value):
            self._problem(node, place, "half of a surrogate pair", "write the character itself")
            return ""
        try:
            value = _scalar(node.tag, node.value)
        except KeyError:
            return self._foreign_tag(node, place)
        except ValueError:
            self._problem(
                node, place, f"{shown(node.value)} is not a usable value", "leave out its tag, or put it in quotes"
            )
            return None
        if isinstance(value, (int, float)):
            self.made.texts[place] = node.value
        return value

    def _foreign_tag(self, node: yaml.Node, place: Place) -> None:
        tag = node.tag.replace(_TAG, "!!")
        self._problem(node, place, f"the tag {tag!r} is not allowed here", "leave it out: plain values only")

    def _problem(self, node: yaml.Node, place: Place, what: str, hint: str) -> None:
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
