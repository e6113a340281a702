"""Foreign text and numbers made safe to show: what comes from models and jobs may hold anything."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from autoresearchd.domain.cleaning import printable
from autoresearchd.domain.confirmation import ABLATION, Improvement, ablates, improvement
from autoresearchd.domain.quantities import counted, is_whole

# ECMA-48: CSI sequences, then OSC/DCS/SOS/PM/APC strings with their terminator (or to the end), then two-byte escapes.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
# What JSON leaves as it is and a terminal or an editor obeys: C1 controls, direction marks, line separators, halves.
_UNSAFE = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str)
_SPACES = re.compile(r"\s+")


def strip_controls(line: str) -> str:
    """One line without terminal escapes, control characters and direction marks; tabs stay."""
    if line.isascii() and line.isprintable():
        return line
    return printable(_ESCAPES.sub("", line), keep="\t", instead="")


def clean(text: object, limit: int | None = None) -> str:
    """Foreign text as one plain line, cut to ``limit`` characters with an ellipsis."""
    line = strip_controls(_SPACES.sub(" ", _ESCAPES.sub("", str(text))).strip())
    return line if limit is None else cut(line, limit)


def diff_lines(diff: str, *, exact: bool = False) -> Iterator[tuple[str, str]]:
    """The lines of a unified diff, safe to print, with their kinds: ``add``, ``del``, ``hunk``, ``file``, nothing.

    exact: as they are, for `git apply`, which fails or makes another program of any others. Not for a terminal.
    """
    for line in diff.rstrip("\n").split("\n") if diff.strip() else ():
        kind = {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "")
        yield line if exact else strip_controls(line), "file" if line.startswith(("+++ ", "--- ")) else kind


def program_words(test: Mapping[str, Any]) -> str:
    """What a test runs beside the confirmed program: an experiment's, or the confirmed one without something."""
    tip, kind = f"#{test['experiment']}", ablates(str(test.get("why")))
    return f"#{test['against']} without {tip if kind == ABLATION else 'what was dropped'}" if kind else tip


def names_of_runs(record: Mapping[str, Any], programs: Mapping[int, tuple[int, int | None, int]]) -> dict[int, str]:
    """Whose each run of an experiment is: of a confirmation, either program's may lie with it. programs: as stored."""
    kinds, found = {one["number"]: ablates(one["why"]) for one in record["confirmations"]}, {}
    for index, (seed, program, attempt) in programs.items():
        whose = f"#{record['experiment'] if program is None else program}"
        if attempt < 0:
            kind = kinds.get(-1 - attempt, "")
            if kind and program is None:
                whose = f"the program without {'it' if kind == ABLATION else 'what was dropped'}"
            whose = f"{'ablation' if kind else 'confirmation'} {-1 - attempt}, {whose}"
        elif attempt or program is not None:
            whose += f", repair {attempt}" if attempt else " beside it"
        else:
            whose = ""
        found[index] = f"{whose}, seed {seed}".removeprefix(", ")
    return found


def outcome_words(test: Mapping[str, Any]) -> str:
    """How a test ended, as ``show --json`` has it: what only compared programs has confirmed nothing."""
    outcome = str(test.get("outcome") or "under way")
    if ablates(str(test.get("why"))):
        return {"confirmed": "not missed", "fell": "missed"}.get(outcome, outcome)
    if outcome in ("confirmed", "fell") and not test.get("moved"):
        return f"{'better' if outcome == 'confirmed' else 'not better'}, compared only"
    return "fell back" if outcome == "fell" else outcome


def cut(line: str, limit: int) -> str:
    """At most ``limit`` characters, the last one an ellipsis where something was left out."""
    return line if len(line) <= limit else line[: max(0, limit - 1)].rstrip() + "…"


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON that is readable and safe to print: what would steer a terminal is escaped."""
    # One encoder for all the lines of a long list: making it takes longer than a line.
    encoder = _COMPACT if indent is None else json.JSONEncoder(ensure_ascii=False, indent=indent, default=str)
    text = encoder.encode(value)
    if text.isascii() and "\x7f" not in text:
        return text
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def real(value: Any) -> float | None:
    """The value as a finite number, None where it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def number(value: Any, digits: int = 6, *, whole: bool = True, sign: str = "-") -> str:
    """A metric as people compare it: fixed decimals in the usual range, an em dash where there is none.

    whole: show an integer as one; off in a column where it stands among others. sign: ``+`` for a difference.
    """
    value = real(value)
    if value is None:
        return "—"
    if whole and is_whole(value):
        return f"{value + 0.0:{sign}.0f}"  # no -0
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:{sign}.{max(0, digits + 1 - len(str(int(abs(value)))))}f}"
    return f"{value:{sign}.{min(digits, 4) if abs(value) >= 1e9 else digits}g}"


def money(usd: Any) -> str:
    """US dollars, with as many digits as a fraction of a cent needs; an em dash where the price is not known."""
    found = real(usd)
    if found is None:
        return "—"
    if found == 0:
        return "$0"
    return f"${found:,.2f}" if found >= 0.1 else f"${found:.4f}" if found >= 0.0001 else f"${found:.2g}"


def price(usd: Any, unpriced: bool) -> str:
    """What is known of a sum of US dollars. unpriced: whether it leaves out something whose price is not known."""
    if not unpriced:
        return money(usd)
    return f"at least {money(usd)}" if real(usd) else "not known"


def gained(metric: Mapping[str, Any]) -> Improvement | None:
    """What the confirmed program has gained; None: there is none. metric: as ``status --json`` has it."""
    baseline, best = real(metric.get("baseline")), real(metric.get("best"))
    if baseline is None or best is None:
        return None
    gain = real((metric.get("confirmed") or {}).get("gain"))
    return improvement(baseline, best, gain, minimize=metric.get("direction") == "minimize")


def asked_words(asked: Mapping[str, Any] | None) -> list[str]:
    """What became of the turns of a hybrid's model, as ``status --json`` has it, and why it could not be asked last."""
    if not asked or not asked["of"]:
        return []
    names = ("used", "passed", "not_usable", "not_asked")
    became = [f"{asked[key]:,} {key.replace('_', ' ')}" for key in names if asked[key]]
    told = f"{counted(asked['turns'], 'turn')} of {asked['of']:,}" + (f": {', '.join(became)}" if became else "")
    told += f" · {asked['kept']:,} kept" if asked["used"] else ""
    if seconds := real(asked["seconds"]):
        told += f" · {seconds:,.{int(seconds < 10)}f} s an answer"
    away = asked["away"]
    why = [f"could not be asked in #{away['experiment']}: {clean(away['reason'], 300)}"] if away else []
    return [f"{clean(asked['name'], 60)}: {told}", *why]


def short_count(value: Any) -> str:
    """A number of things, short where it is large."""
    found = real(value) or 0.0
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if found >= size:
            return f"{found / (1e3 if unit == 'k' else size):.1f}{unit}"
    return f"{found:,.0f}"


def measured(value: Any, sigma: Any = None, *, sign: str = "-") -> str:
    """A figure with as many digits as say something: to the second digit of σ, else five significant ones."""
    value, spread = real(value), real(sigma)
    if value is None:
        return "—"
    if is_whole(value):
        return f"{value + 0.0:{sign}.0f}"
    scale = spread if spread is not None and spread > 0 else abs(value) / 1000
    if value == 0 or scale == 0 or not 1e-9 < scale < 1e12:
        return f"{value:{sign}.5g}"
    decimals = 1 - math.floor(math.log10(scale))
    if value and round(value, decimals) == 0:
        return f"{value:{sign}.1g}"
    return f"{value:{sign}.{max(0, decimals)}f}"
