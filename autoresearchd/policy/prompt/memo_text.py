"""The living ``autoresearch.md`` of a session: goal, constraints, ideas, and what the daemon has learned between marks.

The daemon owns what stands between its marks and nothing else; whatever the user writes elsewhere stays as it is, to
the byte. Marks count where an end follows its beginning with no other mark between: those that the user has broken are
the user's text, and the section is written anew at the end of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.task import Constraint, Direction, Task
from autoresearchd.policy.prompt.digest import digest_of
from autoresearchd.policy.prompt.quote import Quote

MOST_IN_PROMPT = 8000
MOST_LEARNINGS = 6000

_MARK = re.compile(r"<!--[ \t]{0,8}autoresearchd:(begin|end)[ \t]{1,8}learnings[ \t]{0,8}-->")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+learnings\s*", re.IGNORECASE)
_NOTHING = "Nothing yet."
_SHOWN = 160


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
    listed = "\n".join(f"- {line}" for line in constraints)
    text = f"""\
# Research on {task.name}

This file is shown to the policy before each experiment. Write into it what you like, where you like:
only the text between the marks is rewritten.

## Goal

Improve {metric} ({better} is better).

## Constraints

{listed}

## Ideas

"""
    return update(text, _NOTHING)


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


def update(text: str, learnings: str) -> str:
    """The memo with the daemon's section written anew, or appended with a heading; all else stays, to the byte.

    Line ends are those of the rest of the file.
    """
    marks, own = _marks(text), own_text(text)
    newline = "\r\n" if 2 * own.count("\r\n") > own.count("\n") else "\n"
    # No mark can be in it, whatever models wrote.
    content = learnings.replace("\r\n", "\n").replace("\r", "\n").strip("\n").replace("<!--", "< !--")
    content = (content + "\n" if content else "").replace("\n", newline)
    if marks is not None:
        return text[: marks[0].end()] + newline + content + text[marks[1].start() :]
    gap = "" if not text else newline if text.endswith("\n") else 2 * newline
    begin, end = ("<!-- autoresearchd:begin learnings -->", "<!-- autoresearchd:end learnings -->")
    return f"{text}{gap}## Learnings{2 * newline}{begin}{newline}{content}{end}{newline}"


def own_text(text: str) -> str:
    """What the user wrote, headings included: all outside of the daemon's section, without any marks."""
    if (marks := _marks(text)) is not None:
        text = text[: marks[0].start()] + text[marks[1].end() :]
    return _MARK.sub("", text)


def show_in_prompt(text: str, quote: Quote) -> str:
    """The user's words as a policy is shown them: clean, cut, without the holes that the daemon's section leaves.

    The daemon's own section holds nothing that the prompt does not, and fresher.
    """
    kept: list[str] = []
    for line in own_text(text).replace("\r\n", "\n").split("\n"):
        if not _HEADING.fullmatch(line) and (line.strip() or (kept and kept[-1])):
            kept.append(line.rstrip())
    return quote.start("\n".join(kept).strip("\n"), MOST_IN_PROMPT)


def _marks(text: str) -> tuple[re.Match[str], re.Match[str]] | None:
    """The first whole pair of marks."""
    return next((pair for pair in pairwise(_MARK.finditer(text)) if (pair[0][1], pair[1][1]) == ("begin", "end")), None)


def learnings(
    recent: Sequence[Experiment],
    top: Sequence[Experiment],
    failures: Mapping[str, int] | None = None,
    *,
    sigma: float | None = None,
) -> str:
    """The daemon's own part: the best so far, what helped, what hurt, near misses, failures. top: the best first."""
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
    return text or _NOTHING


def _best(top: Sequence[Experiment], quote: Quote) -> str:
    kept = next((e for e in top if e.decision is not None and e.decision.status.value == "keep"), None)
    if kept is None or kept.decision is None or kept.decision.value is None:
        return ""
    what = kept.proposal.description or kept.proposal.hypothesis if kept.proposal else "the program as it was"
    return f"Best so far: {kept.decision.value:.6g} (#{kept.number} {quote.line(what, _SHOWN)})"


def _hurt(recent: Sequence[Experiment], quote: Quote) -> tuple[str, ...]:
    """What made the metric worse, the worst first."""
    worse = [
        (e.decision.delta, e.number, e.proposal.description or e.proposal.hypothesis)
        for e in recent
        if e.decision is not None and e.proposal is not None and (e.decision.delta or 0.0) < 0
    ]
    ranked = sorted(worse, key=lambda item: (item[0], -item[1]))[:5]
    return tuple(f"#{number} {quote.line(what, _SHOWN)}: {delta:+.3g}" for delta, number, what in ranked)
