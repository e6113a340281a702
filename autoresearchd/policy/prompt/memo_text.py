"""The living ``autoresearch.md`` of a session: goal, constraints, learnings and ideas, kept up between marks.

The daemon owns what stands between its marks and nothing else; whatever the user writes elsewhere stays as it is, to
the byte. A mark pair counts where an end follows its beginning with no other mark between: marks that the user has
broken are the user's text, and the section is written anew at the end of the file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.task import Constraint, Direction, Task
from autoresearchd.policy.prompt.digest import digest_of
from autoresearchd.policy.prompt.quote import Quote

LEARNINGS = "learnings"
MOST_IN_PROMPT = 8000
MOST_LEARNINGS = 6000

_NAME = r"[a-z][a-z0-9-]{0,30}"
_MARK = re.compile(rf"<!--[ \t]{{0,8}}autoresearchd:(begin|end)[ \t]{{1,8}}({_NAME})[ \t]{{0,8}}-->")
_HEADING = re.compile(r"[ ]{0,3}#{1,6}[ \t]+([^\r\n]*)")
_SHOWN = 160


@dataclass(frozen=True, slots=True)
class _Span:
    """A section of the daemon's: begin, end: of its text between the marks; outer_end: behind the second mark."""

    name: str
    outer_begin: int
    begin: int
    end: int
    outer_end: int


def render_memo(task: Task) -> str:
    """The memo of a new session."""
    metric, better = task.metric.name, "lower" if task.metric.direction is Direction.MINIMIZE else "higher"
    constraints = [
        f"Only {', '.join(task.editable)} may be edited"
        + (f"; {', '.join(task.protected)} may not." if task.protected else "."),
        f"Each run has {task.execution.budget.training:g} s of training.",
        "No new packages.",
        *(f"{c.metric}: {bounds(c)}." for c in task.scoring.constraints),
    ]
    text = "\n".join(
        (
            f"# Research on {task.name}",
            "",
            "This file is shown to the policy before each experiment. Write into it what you like, where you like:",
            "only the text between the marks is rewritten.",
            "",
            "## Goal",
            "",
            f"Improve {metric} ({better} is better).",
            "",
            "## Constraints",
            "",
            *(f"- {line}" for line in constraints),
            "",
            "## Ideas",
            "",
            "",
        )
    )
    return update(text, {LEARNINGS: "Nothing yet."})


def bounds(constraint: Constraint) -> str:
    """What a constraint asks of its metric, in words."""
    words = []
    if constraint.max is not None:
        words.append(f"at most {constraint.max:g}")
    if constraint.min is not None:
        words.append(f"at least {constraint.min:g}")
    if constraint.max_increase is not None:
        words.append(f"at most {constraint.max_increase:.0%} above the incumbent's")
    return " and ".join(words)


def update(text: str, sections: Mapping[str, str]) -> str:
    """The memo with the daemon's sections written anew; all else stays, to the byte.

    A section that is not there is appended with a heading, once. Line ends are those of the rest of the file. The same
    sections again change nothing.

    text: the memo as it is, empty for a new one. sections: texts by name (small letters, digits, hyphens).
    """
    for name in sections:
        if not re.fullmatch(_NAME, name):
            raise ValueError(f"not a name of a section: {name!r}")
    spans = _spans(text)
    newline = _newline(text, spans)
    parts, at = [], 0
    for span in sorted(spans.values(), key=lambda s: s.begin):
        if span.name in sections:
            content = _content(sections[span.name], newline)
            parts += [text[at : span.begin], newline, content, newline if content else ""]
            at = span.end
    after = "".join((*parts, text[at:]))
    for name, content in sections.items():
        if name not in spans:
            after = _appended(after, name, _content(content, newline), newline)
    return after


def sections_of(text: str) -> dict[str, str]:
    """What the daemon wrote, by the name of the section."""
    return {name: text[s.begin : s.end].replace("\r\n", "\n").strip("\n") for name, s in _spans(text).items()}


def own_text(text: str) -> str:
    """What the user wrote, headings included: all outside of the daemon's sections, without any marks."""
    return _MARK.sub("", _own(text, _spans(text)))


def show_in_prompt(text: str, *, quote: Quote | None = None, without: Collection[str] = ()) -> str:
    """The memo as a policy is shown it: clean, the user's words first, then the daemon's, cut to a length.

    without: sections that are not shown.
    """
    quote = quote or Quote()
    sections = sections_of(text)
    mine = quote.start(_tidy(own_text(text), sections), MOST_IN_PROMPT)
    parts, room = [mine] if mine else [], MOST_IN_PROMPT - len(mine)
    for name, content in sections.items():
        heading = f"## {_title(name)}\n\n"
        if content and name not in without and room > len(heading) + _SHOWN:
            shown = heading + quote.start(content, room - len(heading) - 2)
            parts.append(shown)
            room -= len(shown) + 2
    return "\n\n".join(parts)


def learnings(
    recent: Sequence[Experiment],
    top: Sequence[Experiment],
    failures: Mapping[str, int] | None = None,
    *,
    sigma: float | None = None,
) -> str:
    """The daemon's own part: the best so far, what helped, what hurt, near misses, failures; bounded.

    Arguments are those of ``digest_of``, ``top`` the best first.
    """
    quote = Quote()
    learned = digest_of(recent, top, failures, sigma=sigma, quote=quote)
    parts = {
        "Helped": learned.kept,
        "Hurt": _hurt(recent, quote),
        "Near misses": learned.near_misses,
        "Failed": learned.failures,
        "Tried": learned.tried,
        "Untried hints": learned.hints,
    }
    blocks = [_best(top, quote)]
    blocks += ["\n".join((f"{name}:", *(f"- {line}" for line in lines))) for name, lines in parts.items() if lines]
    text = ""
    for block in blocks:
        if block and len(text) + len(block) <= MOST_LEARNINGS:
            text += ("\n\n" if text else "") + block
    return text or "Nothing yet."


def _best(top: Sequence[Experiment], quote: Quote) -> str:
    kept = next((e for e in top if e.decision is not None and e.decision.status.value == "keep"), None)
    if kept is None or kept.decision is None or kept.decision.value is None:
        return ""
    what = kept.proposal.description or kept.proposal.hypothesis if kept.proposal else "the program as it was"
    return f"Best so far: {kept.decision.value:.6g} (#{kept.number} {quote.line(what, _SHOWN)})"


def _hurt(recent: Sequence[Experiment], quote: Quote) -> tuple[str, ...]:
    """What made the metric worse, the worst first."""
    worse = [
        (e.decision.delta, e)
        for e in recent
        if e.decision is not None and e.proposal is not None and e.decision.delta is not None and e.decision.delta < 0
    ]
    ranked = sorted(worse, key=lambda item: (item[0], -item[1].number))[:5]
    return tuple(
        f"#{e.number} {quote.line(e.proposal.description or e.proposal.hypothesis, _SHOWN)}: {delta:+.3g}"
        for delta, e in ranked
        if e.proposal is not None
    )


# ---------------------------------------------------------------------- marks
def _spans(text: str) -> dict[str, _Span]:
    """The first whole pair of marks of each name."""
    found: dict[str, _Span] = {}
    before: re.Match[str] | None = None
    for mark in _MARK.finditer(text):
        pair = before is not None and (before[1], mark[1]) == ("begin", "end") and before[2] == mark[2]
        if pair and before is not None:
            found.setdefault(mark[2], _Span(mark[2], before.start(), before.end(), mark.start(), mark.end()))
        before = mark
    return found


def _own(text: str, spans: Mapping[str, _Span]) -> str:
    """All outside of the daemon's sections."""
    parts, at = [], 0
    for span in sorted(spans.values(), key=lambda s: s.begin):
        parts.append(text[at : span.outer_begin])
        at = span.outer_end
    return "".join((*parts, text[at:]))


def _newline(text: str, spans: Mapping[str, _Span]) -> str:
    """The line end of the user's own text: what the daemon writes must not change the answer."""
    mine = _own(text, spans)
    crlf = mine.count("\r\n")
    return "\r\n" if 2 * crlf > mine.count("\n") else "\n"


def _content(text: str, newline: str) -> str:
    """A section's text: no mark can be in it, whatever models wrote."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").strip("\n").replace("<!--", "< !--")
    return lines.replace("\n", newline)


def _appended(text: str, name: str, content: str, newline: str) -> str:
    gap = "" if not text else newline if text.endswith("\n") else 2 * newline
    lines = (
        f"## {_title(name)}",
        "",
        f"<!-- autoresearchd:begin {name} -->",
        *([content] if content else []),
        f"<!-- autoresearchd:end {name} -->",
        "",
    )
    return text + gap + newline.join(lines)


def _title(name: str) -> str:
    return name.replace("-", " ").capitalize()


def _is_title(heading: str, sections: Mapping[str, str]) -> bool:
    """Whether a heading is that of a section of the daemon's."""
    return heading.strip().lower().replace(" ", "-") in sections


def _tidy(text: str, sections: Mapping[str, str]) -> str:
    """Without the holes that the daemon's sections leave: their headings, and runs of empty lines."""
    kept: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        heading = _HEADING.fullmatch(line)
        if heading and _is_title(heading[1], sections):
            continue
        if line.strip() or (kept and kept[-1]):
            kept.append(line.rstrip())
    return "\n".join(kept).strip("\n")
