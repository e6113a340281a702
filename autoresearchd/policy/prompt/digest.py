"""What a session has learned so far, in a few lines: what was tried, what nearly helped, what failed, what is untried.

A pure function of decided experiments. Its lines hold words of models and programs: they are clean and cut, but data.
The advice for a session in which nothing has been kept for a while names experiments by number and constants by name
only, so that no model's words are in it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rapidfuzz import fuzz, process
from rapidfuzz.utils import default_process

from autoresearchd.domain.experiment import Decision, Experiment
from autoresearchd.domain.labels import NEVER_RUN, RULES, Label, Status
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.research_state import ResearchState
from autoresearchd.policy.prompt.quote import Quote

_MOST = 6
"""Near misses, hints, values of a constant and other changes that are shown."""
_MOST_CONSTANTS = _MOST_FAILURES = 12
_MOST_KEPT = 8
_TAKEN_UP = 80
"""From which likeness (``token_set_ratio`` of rapidfuzz, 0 to 100) a later experiment counts as having tried a hint."""
_LOOKED_AT = 16
"""Hints that are compared, the newest: what is older than that has had its time."""
_WORDS = 240
_SHOWN = 160
_NO_FAILURE = frozenset({Label.NONE, Label.SIMPLER, Label.NO_GAIN, Label.ABORTED_EARLY})
_MEASURED = frozenset({Label.NO_GAIN, Label.GATE_MISS, Label.CONSTRAINT, Label.SIZE_BLOCKED})

_NAME = re.compile(r"[A-Za-z_][\w.\[\]]{0,47}")


@dataclass(frozen=True, slots=True)
class Digest:
    """What was learned, each part in lines, the most telling first.

    failures: by label, with the latest example. near_misses: better than the incumbent but not kept, or within noise;
    near: their numbers. hints: of what to try next, not taken up since. kept: what was kept. tried: by constant, or by
    role, with what each value did; constants: their names, the most tried first. verdicts: runs ended early, and gains
    taken for noise.
    """

    failures: tuple[str, ...] = ()
    near_misses: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()
    verdicts: tuple[str, ...] = ()
    near: tuple[int, ...] = ()
    constants: tuple[str, ...] = ()

    def parts(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """(heading, lines) of each part that is not empty, the most useful first."""
        named = (
            ("Failed, by class", self.failures),
            ("Near misses: combine them, or measure their neighbours", self.near_misses),
            ("Hints of earlier experiments that nobody has taken up", self.hints),
            ("Kept", self.kept),
            ("Tried, by what was changed", self.tried),
            ("Verdicts", self.verdicts),
        )
        return tuple((heading, lines) for heading, lines in named if lines)


def digest(state: ResearchState) -> Digest:
    """The digest of a research state."""
    return digest_of(state.recent, state.top, state.failures, sigma=state.sigma, quote=Quote(state.redactor))


def digest_of(
    recent: Sequence[Experiment],
    top: Sequence[Experiment] = (),
    failures: Mapping[str, int] | None = None,
    *,
    sigma: float | None = None,
    quote: Quote | None = None,
) -> Digest:
    """The digest of some decided experiments, the latest and the best.

    failures: how many of the whole session ended under each label; None: counted here. sigma: standard deviation of a
    run's metric. quote: how words of others are cleaned.
    """
    quote = quote or Quote()
    known = {e.number: e for e in (*top, *recent)}
    tries = [t for n in sorted(known) if (t := _try_of(known[n], quote)) is not None]
    near = [t for t in tries if not t.kept and t.decision.label in _MEASURED and _near(t.decision.delta, sigma)]
    near = sorted(near, key=lambda t: (-(t.decision.delta or 0.0), -t.number))[:_MOST]
    by_constant: dict[str, list[_Try]] = {}
    for t in tries:
        for name in t.values if t.judged else ():
            by_constant.setdefault(name, []).append(t)
    ranked = dict(sorted(by_constant.items(), key=lambda item: (-len(item[1]), item[0])))
    constants = [_constant(name, having) for name, having in ranked.items()][:_MOST_CONSTANTS]
    names = [name for name in ranked if _NAME.fullmatch(name)]  # what does not look like one is left out
    return Digest(
        failures=_failures(tries, failures, quote),
        near_misses=tuple(f"{t}: {_outcome(t)}" for t in near),
        hints=_hints(tries, quote),
        kept=tuple(f"{t}: {_outcome(t)}" for t in reversed(tries) if t.kept)[:_MOST_KEPT],
        tried=(*constants, *_roles(tries, quote), *_others(tries, quote)),
        verdicts=_verdicts(tries, sigma),
        near=tuple(t.number for t in near),
        constants=tuple(names[:_MOST_CONSTANTS]),
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

    def __str__(self) -> str:
        return f"#{self.number} {self.words}"

    @property
    def kept(self) -> bool:
        return self.decision.status is Status.KEEP

    @property
    def judged(self) -> bool:
        """Whether a job was spent, so that it says something about the change."""
        return self.decision.label not in NEVER_RUN


def _try_of(experiment: Experiment, quote: Quote) -> _Try | None:
    """None for baselines and what is not decided."""
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
    return _Try(experiment.number, quote.line(description, _SHOWN), proposal, decision, values, arch_change, text)


def _outcome(t: _Try) -> str:
    """What became of it, in two words."""
    delta = "" if t.decision.delta is None else f" {t.decision.delta:+.3g}"
    return ("kept" if t.kept else t.decision.label.value or t.decision.status.value) + delta


def _near(delta: float | None, sigma: float | None) -> bool:
    """Whether something was better than the incumbent of the time, or no further below it than its noise."""
    margin = sigma or 0.0
    return delta is not None and (delta > 0 or (margin > 0 and delta >= -margin))


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
        values.append(f"{t.values[name]}{others}: {_outcome(t)} (#{t.number})")
    older = len(having) - len(values)
    helped = sum(t.kept or (t.decision.label in _MEASURED and (t.decision.delta or 0.0) > 0) for t in having)
    return f"{name} ({len(having)} tried, {helped} helped): {'; '.join(values)}" + (f"; {older} older" if older else "")


def _roles(tries: Sequence[_Try], quote: Quote) -> tuple[str, ...]:
    """How each role has fared."""
    lines = []
    for role in sorted({t.proposal.role for t in tries if t.proposal.role})[:_MOST_CONSTANTS]:
        own = [t for t in tries if t.proposal.role == role]
        lines.append(f"role {quote.line(role, 40)}: {len(own)} tried, {sum(t.kept for t in own)} kept")
    return tuple(lines)


def _others(tries: Sequence[_Try], quote: Quote) -> tuple[str, ...]:
    """Changes that are no change of a constant, in their own words, the newest first."""
    others = [t for t in reversed(tries) if t.judged and not t.values and not t.kept][:_MOST]
    return tuple(f"#{t.number} {quote.line(t.arch_change or t.words, _SHOWN)}: {_outcome(t)}" for t in others)


def _verdicts(tries: Sequence[_Try], sigma: float | None) -> tuple[str, ...]:
    lines = []
    aborted = [t.number for t in tries if t.decision.label is Label.ABORTED_EARLY]
    if aborted:
        lines.append(f"ended early, because their curves promised no gain: {_numbers(aborted)}")
    noise = [t.number for t in tries if t.decision.label is Label.NO_GAIN and (t.decision.delta or 0.0) > 0]
    if noise:
        known = f" (σ = {sigma:.3g})" if sigma is not None else ""
        lines.append(f"measured better, but by no more than noise{known}: {_numbers(noise)}")
    refused = [t.number for t in tries if RULES[t.decision.label].status is Status.CHECKS_FAILED]
    if refused:
        lines.append(f"refused by checks, whatever they measured: {_numbers(refused)}")
    return tuple(lines)


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(f"#{n}" for n in numbers[-_MOST:])
    return f"{len(numbers)} ({shown})" if len(numbers) <= _MOST else f"{len(numbers)} (last {shown})"


# ---------------------------------------------------------------------- stuck
class Mode(StrEnum):
    """How stuck a session is."""

    NONE = ""
    REREAD = "re-read"
    COMBINE = "combine"
    RADICAL = "radical"
    CHANGE = "change"


_STEPS = ((10, Mode.CHANGE), (8, Mode.RADICAL), (6, Mode.COMBINE), (3, Mode.REREAD))
"""From how many experiments in a row that were not kept each mode begins, the highest first."""
_ADVICE = {
    Mode.REREAD: (
        "Stop and think before the next one: read the program from the top as if you had never seen it, ask which of "
        "your assumptions the results speak against, and where the time and the memory of a run really go.",
        "Most changes so far were to {names}: look elsewhere.",
    ),
    Mode.RADICAL: (
        "Small steps do not help any more. Try something radical: another architecture, another optimiser, another way "
        "to use the budget, or take a whole mechanism out.",
        "Leave {names} alone.",
    ),
    Mode.CHANGE: (
        "This line of work is exhausted, and so role, policy or parent may have been changed. Begin afresh: leave what "
        "was tried behind, and propose an idea of a kind that no experiment above belongs to.",
        "That rules out further changes of {names}.",
    ),
}
"""What each mode says, and what it adds where constants were changed most."""
_MOST_NAMED = 5


def stuck_mode(streak: int) -> Mode:
    """The mode after ``streak`` experiments in a row that were not kept."""
    return next((m for least, m in _STEPS if streak >= least), Mode.NONE)


def advice(streak: int, *, near: Sequence[int] = (), constants: Sequence[str] = ()) -> str:
    """What to tell the policy; empty while it is not stuck.

    near: numbers of near misses, the best first. constants: names of what was changed most, the most first.
    """
    now = stuck_mode(streak)
    if now is Mode.NONE:
        return ""
    if now is Mode.COMBINE:
        words = _combine([str(n) for n in near[:_MOST_NAMED]])
    else:
        words, more = _ADVICE[now]
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
