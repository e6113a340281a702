"""Which values of an environment or of a key file are secrets, and the forms in which a value turns up in a text."""

from __future__ import annotations

import base64
import binascii
import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping

SHORTEST = 8
"""Values shorter than this are no secrets: they occur everywhere, and hiding them would spoil the text."""

_LONGEST = 64 * 1024
_TELLING = (
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "APIKEY",
    "API_KEY",
    "ACCESS_KEY",
    "PRIVATE_KEY",
)
_TELLING_WORDS = frozenset({"KEY", "KEYS", "PASS", "PWD", "PAT", "AUTH", "DSN"})
_HARMLESS = (
    *("_URL", "_URI", "_ENDPOINT", "_FILE", "_PATH", "_DIR", "_HOST", "_PORT", "_NAME", "_TYPE", "_MODEL", "_REGION"),
    *("_PARALLELISM", "_LENGTH", "_LIMIT", "_TIMEOUT", "_SOCK"),
)
_WORKING_FOLDERS = frozenset({"PWD", "OLDPWD"})
_NUMBER_OR_WORD = re.compile(r"[+-]?[0-9][0-9_.,eE+-]*|true|false|none|null|enabled|disabled|required|optional", re.I)
_ASSIGNMENT = re.compile(
    r"""(?:^|[{,;])[ \t]{0,16}(?:export[ \t]+)?["']?(?://[^\s=:]{1,200}:)?(?P<name>[A-Za-z_][A-Za-z0-9_.-]{0,100})["']?"""
    r"""[ \t]{0,8}[:=][ \t]{0,8}(?P<value>"(?:[^"\\\n]|\\.){1,8192}"|'[^'\n]{1,8192}'|[^\s,}{]{1,8192})""",
    re.M,
)
_NETRC = re.compile(r"\bpassword[ \t\n]{1,8}(?P<value>[^\s]{8,1024})")
_BARE = re.compile(r"\s*([^\s:={}\[\]\"']{16,1024})\s*")


def is_telling(name: str) -> bool:
    """Whether a variable of this name holds a secret."""
    upper = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper().replace("-", "_").replace(".", "_")
    if upper in _WORKING_FOLDERS or upper.endswith(_HARMLESS):
        return False
    return any(part in upper for part in _TELLING) or not _TELLING_WORDS.isdisjoint(upper.split("_"))


def is_secret(value: str) -> bool:
    """Whether a value is long enough, and no number, switch or path."""
    return (
        SHORTEST <= len(value) <= _LONGEST
        and not _NUMBER_OR_WORD.fullmatch(value)
        and not value.startswith(("/", "~/", "./", "../"))
    )


def of_environment(environment: Mapping[str, str]) -> Iterator[str]:
    """The secrets of an environment: values of variables whose names tell."""
    for name, value in environment.items():
        if is_telling(name):
            yield from parts(value.strip())


def of_file(text: str) -> Iterator[str]:
    """The secrets of a key file: telling assignments (shell, INI, YAML, JSON, npm), ``.netrc``, or a bare token."""
    text = text[:_LONGEST]
    bare = _BARE.fullmatch(text)
    if bare:
        yield bare[1]
        return
    for found in _ASSIGNMENT.finditer(text):
        name = found["name"].strip("_.-")
        if is_telling(name) and not name.lower().endswith(("key_id", "token_uri", "token_type")):
            yield from parts(_unquoted(found["value"]))
    for found in _NETRC.finditer(text):
        yield from parts(found["value"])


def parts(value: str) -> Iterator[str]:
    """A value, and the long lines of one with several."""
    if is_secret(value):
        yield value
    if "\n" in value:
        lines = (line.strip() for line in value.splitlines())
        yield from (line for line in lines if len(line) >= 24 and "-----" not in line and is_secret(line))


def _unquoted(value: str) -> str:
    if value[:1] == '"' and value[-1:] == '"':
        try:
            decoded = json.loads(value)
        except ValueError:
            return value[1:-1]
        return decoded if isinstance(decoded, str) else value[1:-1]
    return value.strip("'")


def forms(values: Iterable[str]) -> tuple[str, ...]:
    """Each value as it is and as JSON, a URL, Python, hexadecimal digits or base64 write it; the longest first."""
    found: set[str] = set()
    for value in values:
        try:
            raw = value.encode("utf-8")
        except UnicodeEncodeError:
            raw = value.encode("utf-8", "surrogateescape")
        found.update((value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]))
        found.update(urllib.parse.quote_from_bytes(raw, safe=safe) for safe in ("", "/", "/:@!$&'()*+,;="))
        found.add(urllib.parse.quote_plus(raw))
        found.update((raw.hex(), binascii.hexlify(raw).decode().upper()))
        found.update(_base64(raw))
    return tuple(sorted((form for form in found if len(form) >= SHORTEST), key=lambda form: (-len(form), form)))


def _base64(raw: bytes) -> Iterator[str]:
    """What is certain of the base64 of a longer text with ``raw`` in it, at each of the three ways to begin."""
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + raw)
        first = (0, 2, 3)[before]
        known = encoded[first : (before + len(raw)) * 8 // 6]
        yield known.decode()
        yield known.translate(bytes.maketrans(b"+/", b"-_")).decode()
