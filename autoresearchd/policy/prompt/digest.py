"""What a session has learned so far, in a few lines: what was tried, what nearly helped, what failed, what is untried.

Pure functions of decided experiments, for the prompt and for the session's ``autoresearch.md``. Their lines hold words
of models and programs: they are clean and cut, but data. The advice for a session in which nothing has been kept for a
while names experiments by number and constants by name only, so that no model's words are in it.

Of ``autoresearch.md`` the daemon owns what stands between its marks and nothing else; whatever the user writes
elsewhere stays as it is, to the byte. Marks count where an end follows its beginning with no other mark between: those
that the user has broken are the user's text, and the section is written anew at the end of the file.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rapidfuzz import fuzz, process
from rapidfuzz.utils import default_process

from autoresearchd.domain.experiment import Decision, Experiment
from autoresearchd.domain.labels import NEVER_RUN, Label, Status
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.task import Constraint, Direction, Task
from autoresearchd.policy.prompt.quote import Quote

MOST_IN_PROMPT = 8000
MOST_LEARNINGS = 6000
_MOST = 6
"""Near misses, hints, values of a constant and other changes that are shown."""
_MOST_CONSTANTS = _MOST_FAILURES = 12
_MOST_KEPT, _MOST_HURT = 8, 5
_TAKEN_UP = 80
"""From which likeness (``token_set_ratio`` of rapidfuzz, 0 to 100) a later experiment counts as having tried a hint."""
_LOOKED_AT = 16
"""Hints that are compared, the newest: what is older than that has had its time."""
_WORDS, _SHOWN = 240, 160
_NO_FAILURE = frozenset({Label.NONE, Label.SIMPLER, Label.NO_GAIN, Label.ABORTED_EARLY})
_MEASURED = frozenset({Label.NO_GAIN, Label.GATE_MISS, Label.CONSTRAINT, Label.SIZE_BLOCKED})
_NAME = re.compile(r"[A-Za-z_][\w.\[\]]{0,47}")
_MARK = re.compile(r"<!--[ \t]{0,8}autoresearchd:(begin|end)[ \t]{1,8}learnings[ \t]{0,8}-->")
_BEGIN, _END = "<!-- autoresearchd:begin learnings -->", "<!-- autoresearchd:end learnings -->"
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+learnings\s*", re.IGNORECASE)
_NOTHING = "Nothing yet."
KEPT = {True: "confirmed", None: "only believed so far", False: "fell back when it was tested"}
"""Of a keep: whether runs on fresh seeds have shown that it, or what it is part of, is an improvement."""


@dataclass(frozen=True, slots=True)
class Digest:
    """What was learned, each part in lines, the most telling first.

    failures: by label, with the latest example. near_misses: better than the tip but not kept, or within noise;
    near: their numbers. hints: of what to try next, not taken up since. tried: by constant, or by role, with what each
    value did; constants: their names, the most tried first.
    """

    failures: tuple[str, ...]
    near_misses: tuple[str, ...]
    hints: tuple[str, ...]
    kept: tuple[str, ...]
    tried: tuple[str, ...]
    near: tuple[int, ...]
    constants: tuple[str, ...]

    def lines(self) -> list[str]:
        named = {
            "Failed, by class": self.failures,
            "Near misses: combine them, or measure their neighbours": self.near_misses,
            "Hints of earlier experiments that nobody has taken up": self.hints,
            "Kept": self.kept,
            "Tried, by what was changed": self.tried,
        }
        return [line for name, items in named.items() if items for line in _under_heading(name, items)]


def _under_heading(name: str, items: Sequence[str]) -> list[str]:
    return [f"{name}:", *(f"- {item}" for item in items)]


def digest_of(
    recent: Sequence[Experiment],
    top: Sequence[Experiment] = (),
    failures: Mapping[str, int] | None = None,
    *,
    sigma: float | None = None,
    quote: Quote | None = None,
) -> Digest:
    """The digest of some decided experiments, the latest and the best.

    failures: of the whole session by label; None: counted here. sigma: standard deviation of a run's metric.
    """
    quote = quote or Quote()
    known = {e.number: e for e in (*top, *recent)}
    tries = [t for n in sorted(known) if (t := _try_of(known[n], quote)) is not None]
    measured = [t for t in tries if t.decision.label in _MEASURED and t.decision.delta is not None]
    near = [t for t in measured if t.delta > 0 or (sigma and t.delta >= -sigma)]
    near = sorted(near, key=lambda t: (-t.delta, -t.number))[:_MOST]
    by_constant: dict[str, list[_Try]] = defaultdict(list)
    for t in tries:
        for name in t.values if t.judged else ():
            by_constant[name].append(t)
    ranked = sorted(by_constant, key=lambda name: (-len(by_constant[name]), name))
    return Digest(
        failures=_failures(tries, failures, quote),
        near_misses=tuple(f"{t}: {t.outcome}" for t in near),
        hints=_hints(tries, quote),
        kept=tuple(f"{t}: {t.outcome}" for t in reversed(tries) if t.kept)[:_MOST_KEPT],
        tried=(
            *(_constant(name, by_constant[name]) for name in ranked[:_MOST_CONSTANTS]),
            *_roles(tries, quote),
            *_others(tries, quote),
        ),
        near=tuple(t.number for t in near),
        # What does not look like a name is left out.
        constants=tuple(name for name in ranked if _NAME.fullmatch(name))[:_MOST_CONSTANTS],
    )


# ---------------------------------------------------------------------- one experiment
@dataclass(frozen=True, slots=True)
class _Try:
    """An experiment that was tried and decided. values: of the constants that it sets; text: to compare hints with."""

    number: int
    words: str
    proposal: Proposal
    decision: Decision
    values: Mapping[str, str]
    arch_change: str
    text: str
    confirmed: bool | None = None

    def __str__(self) -> str:
        return f"#{self.number} {self.words}"

    @property
    def kept(self) -> bool:
        return self.decision.status is Status.KEEP

    @property
    def stands(self) -> bool:
        """Whether it was kept, and its chain has not fallen back."""
        return self.kept and self.confirmed is not False

    @property
    def judged(self) -> bool:
        """Whether a job was spent, so that it says something about the change."""
        return self.decision.label not in NEVER_RUN

    @property
    def delta(self) -> float:
        return self.decision.delta or 0.0

    @property
    def outcome(self) -> str:
        delta = "" if self.decision.delta is None else f" {self.decision.delta:+.3g}"
        kept = f"kept, {KEPT[self.confirmed]},"
        return (kept if self.kept else self.decision.label.value or self.decision.status.value) + delta


def _try_of(experiment: Experiment, quote: Quote) -> _Try | None:
    proposal, decision = experiment.proposal, experiment.decision
    if proposal is None or decision is None or proposal.policy == "baseline":
        return None
    description = quote.line(proposal.description or proposal.hypothesis, _WORDS)
    arch_change = quote.line(experiment.asi.arch_change, _WORDS)
    values = {
        quote.line(str(key).rpartition(":")[2], 48): quote.line(f"{v:.6g}" if isinstance(v, float) else v, 32)
        for key, v in list(proposal.changes.items())[:_MOST_CONSTANTS]
    }
    text = default_process(f"{description} {quote.line(proposal.hypothesis, _WORDS)} {arch_change}")
    words, confirmed = quote.line(description, _SHOWN), experiment.confirmed
    return _Try(experiment.number, words, proposal, decision, values, arch_change, text, confirmed)


# ---------------------------------------------------------------------- the parts
def _failures(tries: Sequence[_Try], counts: Mapping[str, int] | None, quote: Quote) -> tuple[str, ...]:
    """The ledger: each class of failure with its count over the session and the latest example, the commonest first."""
    latest = {t.decision.label.value: t for t in tries}
    counts = counts or Counter(t.decision.label.value for t in tries)
    lines = []
    for label, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if label in _NO_FAILURE or count <= 0:
            continue
        line = f"{quote.line(label, 40)} ×{count}"
        if (t := latest.get(label)) is not None:
            line += f", last {t}: {quote.line(t.decision.reason.removeprefix(f'{label}: '), _SHOWN)}"
        lines.append(line)
    return tuple(lines[:_MOST_FAILURES])


def _hints(tries: Sequence[_Try], quote: Quote) -> tuple[str, ...]:
    """What experiments said should be tried next, the newest first, where nothing since is like it."""
    lines: list[str] = []
    known: list[str] = []
    for t in reversed(tries[-_LOOKED_AT:]):
        # Of the policy's own words only: what the daemon adds for a crash is no idea.
        hint = quote.line(t.proposal.asi.next_action_hint, _WORDS)
        plain = default_process(hint)
        if plain:
            if process.extractOne(plain, known, scorer=fuzz.token_set_ratio, score_cutoff=_TAKEN_UP) is None:
                lines.append(f"{hint} (#{t.number})")
            known.append(plain)
        known.append(t.text)
    return tuple(lines[:_MOST])


def _constant(name: str, having: Sequence[_Try]) -> str:
    """Which values of a constant were tried and what they did."""
    values = []
    for t in having[-_MOST:]:
        others = f" with {counted(len(t.values) - 1, 'other change')}" if len(t.values) > 1 else ""
        values.append(f"{t.values[name]}{others}: {t.outcome} (#{t.number})")
    older = len(having) - len(values)
    helped = sum(t.stands or (t.decision.label in _MEASURED and t.delta > 0) for t in having)
    tried = f"{len(having)} tried, {helped} seemed to help"
    return f"{name} ({tried}): {'; '.join(values)}" + (f"; {older} older" if older else "")


def _roles(tries: Sequence[_Try], quote: Quote) -> Iterable[str]:
    for role in sorted({t.proposal.role for t in tries if t.proposal.role})[:_MOST_CONSTANTS]:
        own = [t for t in tries if t.proposal.role == role]
        yield f"role {quote.line(role, 40)}: {len(own)} tried, {sum(t.kept for t in own)} kept"


def _others(tries: Sequence[_Try], quote: Quote) -> Iterable[str]:
    """Changes that are no change of a constant, in their own words, the newest first."""
    others = [t for t in reversed(tries) if t.judged and not t.values and not t.kept][:_MOST]
    return (f"#{t.number} {quote.line(t.arch_change or t.words, _SHOWN)}: {t.outcome}" for t in others)


# ---------------------------------------------------------------------- stuck
REREAD, COMBINE, RADICAL, CHANGE = "re-read", "combine", "radical", "change"
_STEPS = ((10, CHANGE), (8, RADICAL), (6, COMBINE), (3, REREAD))
"""From how many experiments in a row that were not kept each mode begins, the highest first."""
_ADVICE = {
    REREAD: (
        "Stop and think before the next one: read the program from the top as if you had never seen it, ask which of "
        "your assumptions the results speak against, and where the time and the memory of a run really go.",
        "Most changes so far were to {names}: look elsewhere.",
    ),
    RADICAL: (
        "Small steps do not help any more. Try something radical: another architecture, another optimiser, another way "
        "to use the budget, or take a whole mechanism out.",
        "Leave {names} alone.",
    ),
    CHANGE: (
        "This line of work is exhausted, and so role, policy or parent may have been changed. Begin afresh: leave what "
        "was tried behind, and propose an idea of a kind that no experiment above belongs to.",
        "That rules out further changes of {names}.",
    ),
}
"""What each mode says, and what it adds where constants were changed most."""
_MOST_NAMED = 5


def stuck_mode(streak: int) -> str:
    """How stuck a session is after ``streak`` experiments in a row that were not kept; empty: not at all."""
    return next((mode for least, mode in _STEPS if streak >= least), "")


def advice(streak: int, *, near: Sequence[int] = (), constants: Sequence[str] = ()) -> str:
    """What to tell the policy; empty while it is not stuck.

    near: numbers of near misses, the best first. constants: names of what was changed most, the most first.
    """
    mode = stuck_mode(streak)
    if not mode:
        return ""
    if mode == COMBINE:
        words = _combine([str(n) for n in near[:_MOST_NAMED]])
    else:
        words, more = _ADVICE[mode]
        words += " " + more.format(names=", ".join(constants[:_MOST_NAMED])) if constants else ""
    return f"The last {streak} experiments were not kept. {words}"


def _combine(near: Sequence[str]) -> str:
    if not near:
        return "None of them came near. Join two independent changes that should each help a little, in one experiment."
    if len(near) == 1:
        return (
            f"Experiment {near[0]} nearly helped. Build on it: go further the same way, or join it with a second "
            "change that should add to it."
        )
    return (
        f"Experiments {', '.join(near[:-1])} and {near[-1]} nearly helped. Combine two of them that do not touch the "
        "same thing: gains that are too small to be told from noise may add up to one that is not."
    )


# ---------------------------------------------------------------------- autoresearch.md
def render_memo(task: Task) -> str:
    """The memo of a new session."""
    protected = f"; {', '.join(task.protected)} may not." if task.protected else "."
    constraints = [
        f"Only {', '.join(task.editable)} may be edited{protected}",
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

Improve {task.metric.name} ({better(task)} is better).

## Constraints

{listed}

## Ideas

"""
    return update(text, _NOTHING)


def better(task: Task) -> str:
    """Which values of the metric are better, in a word."""
    return "lower" if task.metric.direction is Direction.MINIMIZE else "higher"


def bounds(constraint: Constraint) -> str:
    """What a constraint asks of its metric, in words."""
    words = []
    if constraint.max is not None:
        words.append(f"at most {constraint.max:g}")
    if constraint.min is not None:
        words.append(f"at least {constraint.min:g}")
    if constraint.max_increase is not None:
        words.append(f"at most {constraint.max_increase:.0%} above the confirmed program's")
    return " and ".join(words)


def update(text: str, learnings: str) -> str:
    """The memo with the daemon's section written anew, or appended with a heading; all else stays, to the byte."""
    marks, own = _marks(text), own_text(text)
    newline = "\r\n" if 2 * own.count("\r\n") > own.count("\n") else "\n"
    # No mark can be in it, whatever models wrote.
    content = learnings.replace("\r\n", "\n").replace("\r", "\n").strip("\n").replace("<!--", "< !--")
    content = (content + "\n" if content else "").replace("\n", newline)
    if marks is not None:
        return text[: marks[0].end()] + newline + content + text[marks[1].start() :]
    gap = "" if not text else newline if text.endswith("\n") else 2 * newline
    return f"{text}{gap}## Learnings{2 * newline}{_BEGIN}{newline}{content}{_END}{newline}"


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
    return next((pair for pair in pairwise(_MARK.finditer(text)) if (pair[0][1], pair[1][1]) == ("begin", "end")), None)


def learnings(
    recent: Sequence[Experiment],
    top: Sequence[Experiment],
    failures: Mapping[str, int] | None = None,
    *,
    sigma: float | None = None,
) -> str:
    """The daemon's own part: the best keep, what was kept, what hurt, near misses, failures. top: the best first."""
    quote = Quote()
    learned = digest_of(recent, top, failures, sigma=sigma, quote=quote)
    tries = [t for e in recent if (t := _try_of(e, quote)) is not None and t.delta < 0]
    worst = sorted((t for t in tries if t.number not in learned.near), key=lambda t: (t.delta, -t.number))[:_MOST_HURT]
    parts: dict[str, Sequence[str]] = {
        "Kept": learned.kept,
        "Hurt": [f"{t}: {t.delta:+.3g}" for t in worst],
        "Near misses": learned.near_misses,
        "Failed": learned.failures,
        "Tried": learned.tried,
        "Untried hints": learned.hints,
    }
    blocks = [_best(top, quote), *("\n".join(_under_heading(name, items)) for name, items in parts.items() if items)]
    text = ""
    for block in blocks:
        if block and len(text) + len(block) <= MOST_LEARNINGS:
            text += ("\n\n" if text else "") + block
    return text or _NOTHING


def _best(top: Sequence[Experiment], quote: Quote) -> str:
    kept = next((e for e in top if e.decision is not None and e.decision.status is Status.KEEP), None)
    if kept is None or kept.decision is None or kept.decision.value is None:
        return ""
    what = kept.proposal.description or kept.proposal.hypothesis if kept.proposal else "the program as it was"
    value, stands = f"{kept.decision.value:.6g}", KEPT[kept.confirmed]
    return f"Best value that was kept: {value} (#{kept.number} {quote.line(what, _SHOWN)}; {stands})"
