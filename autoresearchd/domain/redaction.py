r"""Hiding secrets: a text, a stream or any value goes in, and comes out with a mark where a secret was.

What is a secret: values that the caller knows (of an environment, of a key file), in whatever form they turn up, and
the known formats of keys and passwords, those that their issuers document, as gathered by the rules of gitleaks and of
GitHub's secret scanning. A format is looked for only where its anchor, a short literal text, occurs; texts are hostile,
so every expression takes time linear in the length of the text: runs are possessive, and one that something must follow
is bounded or begins at its left edge only. The mark is ``«redacted:kind»``; redacting again changes nothing.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
import urllib.parse
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, cast

SHORTEST = 8
"""Values shorter than this are no secrets: they occur everywhere, and hiding them would spoil the text."""
_LONGEST = 64 * 1024
_TELLING = re.compile(
    r"TOKEN\d*$|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY|API_KEY|ACCESS_KEY|PRIVATE_KEY"
    r"|(?:^|_)(?:PASS|PWD|PAT|AUTH|DSN)(?:$|_)"
)
_HINTING = re.compile(r"TOKEN(?!IZ)|(?:^|_)KEYS?(?:$|_)")
_NAME = re.compile(r"[A-Za-z]+\d{0,3}(?:[_./-][A-Za-z]*\d{0,3})*")
"""What no generated key looks like: ``METRIC_KEY: val_loss`` and ``TOKEN_DTYPE: bfloat16`` hide nothing."""
_HARMLESS = re.compile(
    ".*_(?:URL|URI|ENDPOINT|FILE|PATH|DIR|HOST|PORT|NAME|TYPE|MODEL|REGION|PARALLELISM|LENGTH|LIMIT|TIMEOUT|SOCK)"
)
_WORKING_FOLDERS = frozenset({"PWD", "OLDPWD"})
_USER_OF_URL = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]{0,40}://([^\s/?#@]{1,1024})@")
_NUMBER_OR_WORD = re.compile(r"[+-]?[0-9][0-9_.,eE+-]*|true|false|none|null|enabled|disabled|required|optional", re.I)
_ASSIGNMENT = re.compile(
    r"""(?:^|[{,;])[ \t]{0,16}(?:export[ \t]+)?["']?(?://[^\s=:]{1,200}:)?(?P<name>[A-Za-z_][A-Za-z0-9_.-]{0,100})["']?"""
    r"""[ \t]{0,8}[:=][ \t]{0,8}(?P<value>"(?:[^"\\\n]|\\.){1,8192}"|'[^'\n]{1,8192}'|[^\s,}{]{1,8192})""",
    re.M,
)
_NETRC = re.compile(r"\bpassword[ \t\n]{1,8}(?P<value>[^\s]{8,1024})")
_KEY_OF_AWS = re.compile(r"[A-Za-z0-9+/]{40}")
_BARE = re.compile(r"\s*([^\s:={}\[\]\"']{16,1024})\s*")


def is_telling(name: str, value: str = "1") -> bool:
    """Whether a variable of this name holds a secret; where its name only hints at one, the value tells."""
    upper = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper().replace("-", "_").replace(".", "_")
    if upper in _WORKING_FOLDERS or _HARMLESS.fullmatch(upper):
        return False
    if upper == "AUTORESEARCHD_STORE":  # its URL may have a password
        return True
    return bool(_TELLING.search(upper) or (_HINTING.search(upper) and not _NAME.fullmatch(value)))


def is_secret(value: str) -> bool:
    """Whether a value is long enough, and no number, switch or path."""
    # One key of AWS in 64 begins with a slash.
    path = value.startswith(("/", "~/", "./", "../")) and not _KEY_OF_AWS.fullmatch(value)
    harmless = _NUMBER_OR_WORD.fullmatch(value) or path
    return SHORTEST <= len(value) <= _LONGEST and not harmless


def secrets_of_environment(environment: Mapping[str, str]) -> Iterator[str]:
    """The secrets of an environment: values whose names tell, and what looks random before the @ of any URL."""
    for name, value in environment.items():
        if is_telling(name, value.strip()):
            yield from secret_parts(value.strip())
        if user := _USER_OF_URL.match(value):
            parts = map(urllib.parse.unquote, user[1].split(":", 1))
            yield from (part for part in parts if is_secret(part) and random_looking(part))


def secrets_of_file(text: str) -> Iterator[str]:
    """The secrets of a key file: telling assignments (shell, INI, YAML, JSON, npm), ``.netrc``, or a bare token."""
    text = text[:_LONGEST]
    if bare := _BARE.fullmatch(text):
        yield bare[1]
        return
    for found in _ASSIGNMENT.finditer(text):
        name = found["name"].strip("_.-")
        if is_telling(name) and not name.lower().endswith(("key_id", "token_uri", "token_type")):
            value = found["value"]
            quoted = value[:1] == '"' == value[-1:]
            with suppress(ValueError):  # no JSON: only the quotes are no part of it
                value = str(json.loads(value)) if quoted else value.strip("'")
                quoted = False
            yield from secret_parts(value[1:-1] if quoted else value)
    for found in _NETRC.finditer(text):
        yield from secret_parts(found["value"])


def secret_parts(value: str) -> Iterator[str]:
    """A value, and the long lines of one with several."""
    if is_secret(value):
        yield value
    if "\n" in value:
        lines = (line.strip() for line in value.splitlines())
        yield from (line for line in lines if len(line) >= 24 and "-----" not in line and is_secret(line))


def secret_forms(values: Iterable[str]) -> tuple[str, ...]:
    """Each value as it is and as JSON, a URL, Python, hexadecimal digits or base64 write it; the longest first."""
    found: set[str] = set()
    for value in values:
        raw = value.encode("utf-8", "surrogateescape")
        found.update((value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]))
        found.update(urllib.parse.quote_from_bytes(raw, safe=safe) for safe in ("", "/", "/:@!$&'()*+,;="))
        found.add(urllib.parse.quote_plus(raw))
        found.update((raw.hex(), raw.hex().upper()))
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


OPEN, CLOSE = "«", "»"
"""Around the mark that stands for a secret. No format takes them, and both count as part of a word."""

_LEFT = (
    r"(?:(?<![A-Za-z0-9»]{anchor})|(?<=\\[nrtbf]{anchor})|(?<=[0-9;\[]m{anchor})|(?<=%[0-9A-Fa-f][0-9A-Fa-f]{anchor}))"
)
"""Not in the middle of a word; the ends of an escape of JSON, of a terminal's colour and of a URL are no word."""
_END = r"(?![A-Za-z0-9«])"
_PLACEHOLDERS = frozenset({"password", "passwd", "pass", "pw", "pwd", "secret", "token", "key", "username", "api_key"})


@dataclass(frozen=True, slots=True)
class Format:
    """One format; the group ``secret`` of its pattern, else all of it, is hidden.

    anchors: literal texts, one of which must occur. before: what stands before the secret; it and the anchors are then
    looked for in the lower-cased text, and the pattern where it ends. check: refuses what only looks alike.
    """

    kind: str
    anchors: tuple[str, ...]
    pattern: str
    before: str = ""
    check: Callable[[str], bool] | None = None


def entropy(text: str) -> float:
    """Shannon entropy of the characters, in bits for each."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values()) if text else 0.0


_NO_KEY = (
    r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+"  # names: a.b2.c3
    r"|[a-z]+(?:[_-][a-z0-9]{1,8})+"  # words: some-long-name-2
    r"|[0-9.eE+-]+"  # numbers
    r"|[.~]{0,2}/[\w.-]+(?:/[\w.-]+)+"  # paths
)


def random_looking(value: str) -> bool:
    """Whether a value could be a generated key: letters and digits mixed, and no name, number or path."""
    digits, letters = sum(c.isdigit() for c in value), sum(c.isalpha() for c in value)
    return min(digits, letters) >= 2 and entropy(value) >= 3.0 and not re.fullmatch(_NO_KEY, value)


def _no_placeholder(value: str) -> bool:
    return value.lower() not in _PLACEHOLDERS and value[0] not in "$<{%([*" and len(set(value)) > 2


def _mixed_key(value: str) -> bool:
    """For keys whose prefix alone could begin a word with hyphens."""
    body = value[3:]
    words = re.fullmatch(r"[a-z0-9]{1,12}(?:-[a-z0-9]{1,12})+", body)
    return sum(c.isdigit() for c in body) >= 2 and entropy(body) >= 3.0 and not words


def _prefixed(kind: str, prefix: str, rest: str, check: Callable[[str], bool] | None = None) -> Format:
    """A literal prefix at the left edge of a word, and what follows it."""
    return Format(kind, (prefix,), re.escape(prefix) + _LEFT.replace("{anchor}", re.escape(prefix)) + rest, check=check)


def _family(kind: str, prefixes: tuple[str, ...], rest: str) -> list[Format]:
    return [_prefixed(kind, prefix, rest) for prefix in prefixes]


_WORD = r"[A-Za-z0-9_-]"
_BLOCK = "PRIVATE KEY"
# Each alternative begins with a letter: a search then leaps from one place that may begin a name to the next.
_NAMES = (
    r"(?:pass(?:word|wd|phrase)|secret(?:[_-]?(?:access[_-]?)?key)?|token|credentials?|"
    r"api[_-]?key|access[_-]?key|auth[_-]?key|account[_-]?key|private[_-]?key|signing[_-]?key|encryption[_-]?key|"
    r"master[_-]?key)"
)
_VALUE = r"[A-Za-z0-9+/_.~!@#%^&*-]{10,}+={0,2}(?![A-Za-z0-9+/_(\[])"
_GITLAB = ("pat", "dt", "rt", "cbt", "ptt", "soat", "imt", "agent", "ft")
_NAME_PARTS = ("pass", "secret", "token", "credential", "key")

FORMATS: tuple[Format, ...] = (
    _prefixed("anthropic", "sk-ant-", rf"{_WORD}{{16,}}+"),
    _prefixed("openrouter", "sk-or-v1-", r"[0-9a-f]{32,}+"),
    *_family("openai", ("sk-proj-", "sk-svcacct-", "sk-admin-", "sk-None-"), rf"{_WORD}{{20,}}+"),
    _prefixed("openai", "sk-", rf"{_WORD}{{20,}}+", _mixed_key),
    *_family("huggingface", ("hf_", "api_org_"), r"[A-Za-z0-9]{30,}+(?!_)"),
    *_family("github", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"[A-Za-z0-9]{36,}+"),
    _prefixed("github", "github_pat_", r"[A-Za-z0-9_]{22,}+"),
    *_family("gitlab", tuple(f"gl{kind}-" for kind in _GITLAB), rf"{_WORD}{{20,}}+"),
    *_family("aws", ("AKIA", "ASIA", "ABIA", "ACCA"), rf"[A-Z0-9]{{16}}{_END}"),
    _prefixed("google", "AIza", rf"{_WORD}{{35}}(?![A-Za-z0-9_«-])"),
    *_family("google", ("ya29.", "GOCSPX-"), rf"{_WORD}{{20,}}+"),
    *_family("slack", ("xoxa-", "xoxb-", "xoxe-", "xoxo-", "xoxp-", "xoxr-", "xoxs-"), r"[A-Za-z0-9-]{10,}+"),
    _prefixed("slack", "xapp-", r"[0-9]-[A-Za-z0-9-]{10,}+"),
    Format(
        "slack",
        ("hooks.slack.com/",),
        r"hooks\.slack\.com/(?P<secret>(?:services|workflows|triggers)/[A-Za-z0-9/_-]{20,}+)",
    ),
    Format("discord", ("/api/webhooks/",), r"/api/webhooks/(?P<secret>[0-9]{15,22}/[A-Za-z0-9_-]{50,}+)"),
    *_family("stripe", ("sk_live_", "sk_test_", "rk_live_", "rk_test_"), r"[A-Za-z0-9]{16,}+"),
    _prefixed("stripe", "whsec_", r"[A-Za-z0-9+/=]{20,}+"),
    _prefixed("wandb", "wandb_v1_", r"[A-Za-z0-9_]{40,}+"),
    _prefixed("npm", "npm_", rf"[A-Za-z0-9]{{36}}{_END}"),
    _prefixed("pypi", "pypi-AgE", rf"{_WORD}{{50,}}+"),
    _prefixed("groq", "gsk_", r"[A-Za-z0-9]{40,}+"),
    _prefixed("xai", "xai-", r"[A-Za-z0-9]{60,}+"),
    _prefixed("perplexity", "pplx-", r"[A-Za-z0-9]{40,}+"),
    _prefixed("replicate", "r8_", rf"[A-Za-z0-9]{{37}}{_END}"),
    _prefixed("nvidia", "nvapi-", rf"{_WORD}{{50,}}+"),
    _prefixed("databricks", "dapi", rf"[0-9a-f]{{32}}(?:-[0-9])?{_END}"),
    _prefixed("sendgrid", "SG.", rf"{_WORD}{{16,32}}+\.{_WORD}{{32,}}+"),
    *_family("langsmith", ("lsv2_pt_", "lsv2_sk_"), r"[0-9a-f]{32}_[0-9a-f]{10}"),
    _prefixed("age", "AGE-SECRET-KEY-1", r"[A-Z0-9]{40,}+"),
    _prefixed("jwt", "eyJ", rf"{_WORD}{{8,512}}+\.eyJ{_WORD}{{8,8192}}+\.{_WORD}{{8,}}+"),
    Format("azure", ("Key=",), r"(?:Account|SharedAccess)Key=(?P<secret>[A-Za-z0-9+/]{40,100}+={0,2})"),
    Format("azure", ("sig=",), r"[?&;]sig=(?P<secret>[A-Za-z0-9%+/=]{30,512}+)"),
    Format("azure", ("Q~",), r"(?<![A-Za-z0-9_~.»-])[A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}(?![A-Za-z0-9_~«-])"),
    Format(
        "url-password",
        ("://",),
        r"://[^\s/:@\"'<>\\«»]{0,128}+:(?P<secret>[^\s/@\"'<>\\«»]{1,256}+)@",
        check=_no_placeholder,
    ),
    Format(
        "url-token",
        ("://",),
        r"://(?P<secret>[A-Za-z0-9._~+-]{20,256}+)(?::[^\s/:@\"'<>\\«»]{0,256}+)?@",
        check=random_looking,
    ),
    Format(
        "authorization",
        ("earer", "EARER"),
        r"[Bb](?:earer|EARER)(?:[ \t]|%20){1,4}+(?P<secret>[A-Za-z0-9._~+/-]{12,}+={0,2})",
        check=random_looking,
    ),
    Format(
        "authorization",
        ("authorization",),
        r"[A-Za-z0-9._~+/-]{8,}+={0,2}",
        before=r"authorization[\"']{0,2}+[ \t]{0,4}+[:=][ \t]{0,4}+[\"']?(?:basic|token|apikey|key)[ \t]{1,4}+",
    ),
    Format(
        "password",
        _NAME_PARTS,
        _VALUE,
        before=rf"{_NAMES}[\"'\]]{{0,2}}+[ \t]{{0,4}}+(?:[:=]=?|=>)[ \t]{{0,4}}+(?:[rbfu]{{0,2}}[\"'])?",
        check=random_looking,
    ),
    Format(
        "password",
        ("--",),
        _VALUE,
        before=rf"--(?:[a-z0-9]{{1,16}}-){{0,3}}{_NAMES}[ \t]{{1,4}}+[\"']?",
        check=random_looking,
    ),
    Format(
        "password",
        ("password ",),
        _VALUE,
        before=r"login[ \t]{1,8}+\S{1,128}+[ \t]{1,8}+password[ \t]{1,4}+",
        check=random_looking,
    ),
)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compiled when first needed: most texts hold no anchor, and compiling all of them takes milliseconds."""
    return re.compile(pattern)


def _lower(text: str) -> str:
    """In lower case, as long as before: only ASCII letters change (the capital İ would become two characters)."""
    as_it_is = "surrogatepass"
    return text.lower() if text.isascii() else text.encode(errors=as_it_is).lower().decode(errors=as_it_is)


def find_secrets(text: str, *, context: bool = True) -> Iterator[tuple[int, int, str]]:
    """(begin, end, kind) of what looks like a secret, in no order. context: also what only words before it tell."""
    lower = _lower(text) if context else ""
    for form in FORMATS:
        if not any(anchor in (lower if form.before else text) for anchor in form.anchors):
            continue
        pattern = _compiled(form.pattern)
        group = "secret" if "secret" in pattern.groupindex else 0
        places = (pattern.match(text, b.end()) for b in _compiled(form.before).finditer(lower)) if form.before else None
        for found in pattern.finditer(text) if places is None else places:
            if found is not None and (form.check is None or form.check(found[group])):
                yield (*found.span(group), form.kind)
    yield from _private_keys(text)


# ---------------------------------------------------------------------- PEM and OpenPGP blocks
_BEGIN = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_BLOCK_END = r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_BODY = r"[A-Za-z0-9+/=\s\\:,.()#>|-]*+"
_CUT_OFF = r"(?:[ \t\r\n>|]|\\[nr])*+(?:[A-Za-z0-9+/=]{16,}+(?:[ \t\r\n>|]|\\[nr])*+)*+"
_LINE, _LAST_LINE = (rf"[A-Za-z0-9+/=]{{{least},100}}[ \t\r]{{0,4}}\n" for least in (32, 1))
_LONGEST_BLOCK = 64 * 1024


def _private_keys(text: str) -> Iterator[tuple[int, int, str]]:
    """Blocks of private keys; of one that is cut off, the lines that are there. Linear time: regions do not overlap."""
    if _BLOCK not in text:
        return
    begins = list(_compiled(_BEGIN).finditer(text))
    yield from _ends_of_blocks(text, begins[0].start() if begins else len(text))
    ends = _compiled(_BLOCK_END).finditer(text)
    end = next(ends, None)
    for i, begin in enumerate(begins):
        following = begins[i + 1].start() if i + 1 < len(begins) else len(text)
        while end is not None and end.start() < begin.end():
            end = next(ends, None)
        near = end is not None and end.start() <= min(following, begin.end() + _LONGEST_BLOCK)
        if near and end is not None and _compiled(_BODY).fullmatch(text, begin.end(), end.start()):
            yield begin.start(), end.end(), "private-key"
            continue
        cut = _compiled(_CUT_OFF).match(text, begin.end())
        if cut is not None and cut.end() - begin.end() >= 16:
            yield begin.start(), cut.end(), "private-key"


def _ends_of_blocks(text: str, before: int) -> Iterator[tuple[int, int, str]]:
    """Of a block whose beginning was cut off, the lines that are there."""
    end = _compiled(_BLOCK_END).search(text, 0, before)
    if end is None:
        return
    begin, line = end.start(), _LAST_LINE
    while begin > 0:
        start = text.rfind("\n", 0, begin - 1) + 1
        if not _compiled(line).fullmatch(text, start, begin):
            break
        begin, line = start, _LINE
    if begin < end.start():
        yield begin, end.end(), "private-key"


# ---------------------------------------------------------------------- hiding
T = TypeVar("T")
MARK = OPEN + "redacted:"
"""How every mark begins."""
KNOWN = "environment"
_ROUNDS, _MAX_DEPTH = 4, 64
_HOLD_BACK = 4096
"""Characters of a line without end that a stream holds back: longer than any secret that is not a block."""
_LONGEST_LINE = 16 * _HOLD_BACK
_RETURN = re.compile(r"\r(?!\n)")
_BEGIN_BLOCK, _END_BLOCK = "-----BEGIN ", "-----END "
Span = tuple[int, int, str]


class Redactor:
    """Knows what is secret: known formats, and ``values``. Immutable, and safe to use from several threads."""

    __slots__ = ("_forms",)

    def __init__(self, values: Iterable[str] = ()) -> None:
        # A value that is part of a mark ("redacted") would be found in every mark again.
        marks = {mark(kind).lower() for kind in (KNOWN, *(form.kind for form in FORMATS), "private-key")}
        forms = dict.fromkeys(map(_lower, secret_forms(value for value in values if is_secret(value))))
        self._forms = tuple(form for form in forms if not any(form in mark or mark in form for mark in marks))

    def with_values(self, values: Iterable[str]) -> Redactor:
        """A redactor that knows these values too."""
        return self.joined(Redactor(values))

    def joined(self, other: Redactor) -> Redactor:
        """A redactor that knows what both know."""
        both = Redactor()
        both._forms = tuple(sorted({*self._forms, *other._forms}, key=lambda form: (-len(form), form)))
        return both

    def text(self, text: str) -> str:
        """The text with marks for secrets; the same object when there is none."""
        for _ in range(_ROUNDS):
            found = self._spans(text)
            if not found:
                break
            text = _replaced(text, found)
        return text

    def value(self, value: T) -> T:
        """Any value with the texts in it redacted; what holds no secret is the same object as before."""
        return cast("T", self._value(value, 0))

    def found(self, text: str) -> tuple[tuple[str, int, str], ...]:
        """(secret, line, kind) of each secret in a text, in order; lines count from 1."""
        spans = self._spans(text)
        return tuple((text[begin:end], text.count("\n", 0, begin) + 1, kind) for begin, end, kind in spans)

    def _value(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if value is None or isinstance(value, (bool, int, float, bytes)):
            return value
        if depth > _MAX_DEPTH:
            return "…"
        if isinstance(value, Mapping):
            mapped = {self._value(k, depth + 1): self._value(v, depth + 1) for k, v in value.items()}
            same = len(mapped) == len(value) and all(k in mapped and mapped[k] is v for k, v in value.items())
            return value if same else mapped
        if isinstance(value, (list, tuple, set, frozenset)):
            items = [self._value(item, depth + 1) for item in value]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            return items if isinstance(value, list) or hasattr(value, "_fields") else type(value)(items)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            old = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
            new = {name: self._value(item, depth + 1) for name, item in old.items()}
            changed = {name: item for name, item in new.items() if item is not old[name]}
            return dataclasses.replace(value, **changed) if changed else value
        return value

    def _spans(self, text: str) -> list[Span]:
        """Where the secrets are, merged and in order."""
        found = [*self._known(text), *find_secrets(text)]
        if "\r" in text:
            found += self._across_returns(text)
        return _merged([(_with_escape(text, begin), end, kind) for begin, end, kind in found])

    def _known(self, text: str) -> list[Span]:
        """Case is ignored (of ASCII letters): programs print keys and passwords in capitals, too."""
        found: list[Span] = []
        lower = _lower(text) if self._forms else ""
        for form in self._forms:
            begin = lower.find(form)
            while begin >= 0:
                found.append((begin, begin + len(form), KNOWN))
                begin = lower.find(form, begin + len(form))
        return found

    def _across_returns(self, text: str) -> list[Span]:
        r"""Secrets with a carriage return in them (a progress bar rewrote the line; ``\r\n`` ends one)."""
        places = [found.start() for found in _RETURN.finditer(text)]
        if not places:
            return []
        joined = _RETURN.sub("", text)
        moved = [place - i for i, place in enumerate(places)]  # where in ``joined`` each of them was
        found = []
        for begin, end, kind in (*self._known(joined), *find_secrets(joined, context=False)):
            first, last = begin + bisect_right(moved, begin), end + bisect_left(moved, end)
            if last - first > end - begin:
                found.append((first, last, kind))
        return found


class StreamRedactor:
    """Redacts a text that comes in pieces, wherever they are cut; what could belong to a secret is held back."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._pending = ""
        self.hidden = False
        """Whether anything has been hidden so far."""

    def feed(self, piece: str) -> str:
        """Take a piece; what is certain of the text so far, redacted."""
        self._pending += piece
        safe = self._pending.rfind("\n") + 1
        begin = self._pending.rfind(_BEGIN_BLOCK, 0, safe)
        if begin >= 0 and _BLOCK in self._pending[begin : begin + 80]:
            open_block = self._pending.find(_END_BLOCK, begin, safe) < 0
            safe = begin if open_block and len(self._pending) - begin < _LONGEST_LINE else safe
        if not safe and len(self._pending) > _LONGEST_LINE:
            return self._cut()
        return self._give(safe)

    def close(self) -> str:
        """What was held back, redacted."""
        return self._give(len(self._pending))

    def _give(self, end: int) -> str:
        done, self._pending = self._pending[:end], self._pending[end:]
        return self._redacted(done)

    def _redacted(self, text: str) -> str:
        clean = self._redactor.text(text)
        self.hidden = self.hidden or clean is not text
        return clean

    def _cut(self) -> str:
        """Of a line that is too long to wait for, all but its end; a secret at the cut is hidden as a whole."""
        text = self._redacted(self._pending)
        end = max(0, len(text) - _HOLD_BACK)
        opened = text.rfind(OPEN, 0, end)
        if opened >= 0 and end <= text.find(CLOSE, opened):
            end = opened
        self._pending = text[end:]
        return text[:end]


def mark(kind: str) -> str:
    """What stands for a secret."""
    return f"{MARK}{kind}{CLOSE}"


def _with_escape(text: str, begin: int) -> int:
    r"""Where to begin so that no half of an escape (``\n`` of JSON) is left before the mark."""
    start = max(0, begin - 16)
    backslashes = begin - start - len(text[start:begin].rstrip("\\"))
    return begin - backslashes % 2


def _merged(found: list[Span]) -> list[Span]:
    """Overlapping spans become one; its kind is that of the first, and of the longest of those that begin there."""
    merged: list[Span] = []
    for begin, end, kind in sorted(found, key=lambda span: (span[0], -span[1])):
        if merged and begin < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]), merged[-1][2])
        else:
            merged.append((begin, end, kind))
    return merged


def _replaced(text: str, spans: list[Span]) -> str:
    parts, at = [], 0
    for begin, end, kind in spans:
        parts += [text[at:begin], mark(kind)]
        at = end
    return "".join((*parts, text[at:]))
