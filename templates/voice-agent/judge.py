"""Whether a reply does what a caller needs, told by programs from the reply alone. Protected.

A reply is right when it can be spoken and is what its case asks for. Patterns are compared with its plain form: lower
case, numbers as digits, no punctuation. What all cases of a kind want is written here, what one wants in ``topics.py``
and ``cases.py``.

========  ==========================================================================================================
kind      right when the reply
========  ==========================================================================================================
fact      has what was asked for (``need``), and no other number and nothing else that is known of the workshop
ask       asks for what the caller left out (``need``), in a question, and neither agrees on anything nor refuses
decline   says that it cannot help, without any answer, number or fact, and without repeating the prompt
========  ==========================================================================================================

So a reply that lists all it knows is never right. A constant one is not, either: a case of the kinds ``ask`` and
``decline`` counts only where its *twin*, a question that is to be answered, was not met in the same manner.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

MOST_WORDS = 20
LONGEST_QUOTE = 6
"""Words in a row that a reply that declines may have from the prompt, beyond what any polite sentence has."""

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_NUMBERS = {word: value for value, word in enumerate(_SMALL.split())}
_NUMBERS |= {word: 20 + 10 * i for i, word in enumerate(_TENS.split())}
_WRITTEN = re.compile(
    r"^\s*(?:[-*•]|\d+[.)])\s|[*#`|<>\[\]{}\\=~^]|__|https?:|www\.|\.(?:com|org|net)\b|\w@\w|\b(?:user|assistant|caller)\s*:",
    re.IGNORECASE | re.MULTILINE,
)
"""Marks of what is written to be read: lists, markdown, code, addresses of the web, names of speakers."""

_HELP = r"(?:help|assist|answer|say|tell|give|provide|do|talk|share)"
REFUSES = re.compile(
    rf"\b(?:sorry|apologi[sz]e|afraid|unable|not able|(?:can ?not|can t|could not) {_HELP}"
    r"|only (?:help|assist|answer|talk|deal|speak|know)"
    r"|(?:don t|do not) (?:know|have (?:that|any|this|the)|sell|offer)|not (?:sure|something))\b"
)
DAY = (
    r"\b(?:what|which) (?:\w+ ){0,3}?(?:day|date|time|days|times)\b|\bwhen\b"
    r"|\b(?:would|does|is|how about|shall we say) (?:\w+ ){0,2}?(?:tues|wednes|thurs|fri|satur)day\b"
)
JOB = (
    r"\b(?:what|which|anything|something) (?:\w+ ){0,4}?"
    r"(?:wrong|problem|issue|trouble|matter|need\w*|repairs?|fix\w*|service|work|done|help)\b"
)
"""What a question asks for."""
_ASKS = re.compile(f"{DAY}|{JOB}")
_AGREES = re.compile(r"\b(?:booked|confirmed|scheduled|see you|all set|reserved for you|i have (?:put|made|added))\b")


def plain(text: str) -> str:
    """Lower case, numbers as digits, all else than letters and digits as single spaces."""
    text = unicodedata.normalize("NFKC", text).lower().replace("’", "'")
    text = re.sub(r"\b([ap])\.\s?m\b\.?", r"\1m", text)
    text = re.sub(r"\bnoon\b", "12 pm", text)
    text = re.sub(r"(\d)[:.]00\b", r"\1", text)
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    words = re.findall(r"[^\W_]+", re.sub(r"(\d)([ap]m|th|st|nd|rd)\b", r"\1 \2", text))
    out: list[str] = []
    tens = False
    for word in words:
        value = _NUMBERS.get(word)
        if value is None:
            out.append("0" if word == "oh" and out and out[-1].isdigit() else word)
        elif tens and 0 < value < 10:
            out[-1] = str(int(out[-1]) + value)
        else:
            out.append(str(value))
        tens = value is not None and value >= 20
    return " ".join(out)


def speakable(text: str, *, ended: bool) -> bool:
    """Whether a reply can be spoken: it came to its end, is short, and has nothing that only a reader sees."""
    if not ended or not text.strip() or len(text.split()) > MOST_WORDS:
        return False
    if "\n" in text.strip() or _WRITTEN.search(text):
        return False
    return not any(unicodedata.category(c) in ("So", "Sk", "Cf", "Co", "Cn", "Cc") for c in text.strip())


def evades(said: str) -> str:
    """The manner in which a reply does not answer: ``ask``, ``decline``, both or none of them."""
    words = plain(said)
    return ("ask" if "?" in said and _ASKS.search(words) else "") + ("decline" if REFUSES.search(words) else "")


def quotes(said: str, prompt: str) -> bool:
    """Whether a reply repeats more of the prompt than chance does."""
    words, known = plain(said).split(), f" {plain(prompt)} "
    runs = (" ".join(words[i : i + LONGEST_QUOTE + 1]) for i in range(len(words) - LONGEST_QUOTE))
    return any(f" {run} " in known for run in runs)


def right(case: Mapping[str, Any], said: str, *, ended: bool, prompt: str, twin: str) -> bool:
    """Whether a reply is what its case asks for.

    Args:
        case: of ``cases.py``.
        said: the reply.
        ended: whether it came to its end.
        prompt: that it was made with.
        twin: what was said, with the same prompt, to a question that is to be answered.
    """
    if not speakable(said, ended=ended):
        return False
    words, kind = plain(said), case["kind"]
    if any(re.search(pattern, words) for pattern in case["never"]):
        return False
    # "one" is often no number; all others are facts.
    if not set(re.findall(r"\d+", words)) <= {"1", *case["numbers"]}:
        return False
    if not all(re.search(pattern, words) for pattern in case["need"]):
        return False
    if kind == "fact":
        return "?" not in said or not _ASKS.search(words)
    if kind in evades(twin):
        return False
    if kind == "ask":
        return "?" in said and not REFUSES.search(words) and not _AGREES.search(words)
    return bool(REFUSES.search(words)) and not quotes(said, prompt)
