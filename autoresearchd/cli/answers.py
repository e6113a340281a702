"""What models answered for an experiment: a table of what each answer gave, cost and took, and the words themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from autoresearchd.cli import render
from autoresearchd.cli.render import Paint, clean, json_text, real, strip_controls

UNKNOWN_PRICE = "price unknown"

Answer = Mapping[str, Any]

_CUT = 100


def answer_lines(answers: Sequence[Answer], paint: Paint) -> list[str]:
    """A table of the answers, the reason last where one could not be used; nothing where there is none."""
    if not answers:
        return []
    rows = [
        [
            str(i),
            clean(answer.get("model") or "", 40),
            _count(answer.get("tokens_in")),
            _count(answer.get("tokens_out")),
            price(answer.get("cost_usd")),
            _seconds(answer.get("seconds")),
            clean(answer.get("finish") or "", 20),
            _outcome(answer, _CUT) or "—",
        ]
        for i, answer in enumerate(answers, 1)
    ]
    colours = [{7: "red" if answer.get("error") else "green"} for answer in answers]
    headers = ("#", "model", "in", "out", "cost", "time", "finish", "gave")
    table = render.table(headers, rows, paint=paint, right=(0, 2, 3, 4, 5), colours=colours)
    return ["", *("  " + line for line in table)]


def attempt_rows(attempts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Of each repair, which of the attempts it is and what it was to mend."""
    for i, (before, _) in enumerate(pairwise(attempts), 2):
        label, reason = clean(before.get("label") or ""), clean(before.get("reason") or "", _CUT)
        why = ": ".join(part for part in (label or "a failure", reason) if part)
        yield f"attempt {i} of {len(attempts)}: mended after {why}"


def cost_words(record: Mapping[str, Any]) -> str:
    """What an experiment cost; what is not known is said, and is not taken for nothing."""
    answers, usd = record.get("answers") or [], real(record.get("cost_usd"))
    if usd is not None:
        return price(usd) if usd else ""
    unknown = sum(1 for answer in answers if real(answer.get("cost_usd")) is None)
    known = sum(real(answer.get("cost_usd")) or 0.0 for answer in answers)
    if known:
        return f"at least {price(known)}, {UNKNOWN_PRICE} for {unknown} of {len(answers)} answers"
    return UNKNOWN_PRICE if answers or record.get("policy") else ""


def print_answers(answers: Sequence[Answer], paint: Paint) -> None:
    """Each answer in full, after the messages that it answers; messages that were shown before are not repeated."""
    before: Sequence[Any] = ()
    for i, answer in enumerate(answers, 1):
        messages = answer.get("messages") or []
        print(paint(f"==> answer {i} of {len(answers)}: {_facts(answer)} <==", "bold"))
        shared = next((k for k, (old, new) in enumerate(zip(before, messages, strict=False)) if old != new), None)
        shared = min(len(before), len(messages)) if shared is None else shared
        if shared:
            print(paint(f"--- {shared} message{'s' if shared > 1 else ''} as above ---", "dim"))
        for message in messages[shared:]:
            _print_part(_role(message), message.get("content") if isinstance(message, Mapping) else message, paint)
        _print_part("answer", answer.get("completion") or "", paint)
        if answer.get("error"):
            _print_part("not usable", answer["error"], paint)
        before = messages


def price(usd: Any) -> str:
    """US dollars, with as many digits as a fraction of a cent needs; words where the price is not known."""
    found = real(usd)
    if found is None:
        return UNKNOWN_PRICE
    if found == 0:
        return "$0"
    return f"${found:,.4f}" if found >= 0.0001 else f"${found:.2g}"


def _facts(answer: Answer) -> str:
    words = (
        clean(answer.get("model") or "", 60),
        _outcome(answer, _CUT),
        f"{_count(answer.get('tokens_in'))} tokens in, {_count(answer.get('tokens_out'))} out",
        price(answer.get("cost_usd")),
        _seconds(answer.get("seconds")),
        clean(answer.get("finish") or "", 20),
    )
    return ", ".join(word for word in words if word)


def _outcome(answer: Answer, limit: int) -> str:
    """How the edit was written, or why the answer could not be used; nothing for a step on the way to one."""
    form, error = clean(answer.get("form") or "", 20), clean(answer.get("error") or "", limit)
    attempt = answer.get("attempt") or 0
    return (error or form or ("—" if attempt else "")) + (f" (attempt {attempt + 1})" if attempt else "")


def _role(message: Any) -> str:
    return clean(message.get("role") or "message", 20) if isinstance(message, Mapping) else "message"


def _print_part(name: str, content: Any, paint: Paint) -> None:
    print(paint(f"--- {name} ---", "dim"))
    text = content if isinstance(content, str) else "" if content is None else json_text(content, indent=2)
    for line in text.rstrip("\n").split("\n"):
        print(strip_controls(line))


def _count(value: Any) -> str:
    found = real(value)
    return "—" if found is None else f"{found:,.0f}"


def _seconds(value: Any) -> str:
    found = real(value)
    return "—" if found is None else f"{found:.1f}s"
