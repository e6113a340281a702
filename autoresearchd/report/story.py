"""What a session tells: what held, what failed, which constants matter, who brought the gain; facts, not yet words.

Pure functions of the rows of ``store/story_reader.py`` and of records shaped like ``experiments --json``. Gains are in
units of the metric, positive where it became better, whichever way it goes.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from autoresearchd.domain.labels import NEVER_RUN, Label
from autoresearchd.domain.outlook import PASSED_BY
from autoresearchd.evaluator.re_added import Back, Removals, Texts
from autoresearchd.report.charts import Span
from autoresearchd.report.plain_text import clean, real
from autoresearchd.store.reader import seconds_at_work
from autoresearchd.store.story_reader import Edit, SlotRun

Record = Mapping[str, Any]
_NEVER_RUN = frozenset(map(str, NEVER_RUN))
_LOST = (Label.INTERRUPTED, Label.HOST_LOST, Label.DISK_FULL)


class Gain(NamedTuple):
    """How much better, and the standard error."""

    value: float = 0.0
    error: float = 0.0


class Credit(NamedTuple):
    """What one keep brought of a step of the confirmed program; step: which, counted from 0."""

    value: float
    error: float
    step: int


def total(credits: Iterable[Credit]) -> Gain:
    """Their sum: parts of one step share its error, errors of steps are independent."""
    values, errors = 0.0, defaultdict[int, float](float)
    for credit in credits:
        values += credit.value
        errors[credit.step] += credit.error
    return Gain(values, math.hypot(*errors.values()))


class Failure(NamedTuple):
    """What did not hold, by label; reasons: the most frequent ones with how often; numbers: of all of them."""

    status: str
    label: str
    numbers: tuple[int, ...]
    reasons: tuple[tuple[str, int], ...]


class Held(NamedTuple):
    """A step of the confirmed program: the test as ``show --json`` has it (None: an older session) and its keeps."""

    test: Record | None
    keeps: tuple[Record, ...]


class Shares(NamedTuple):
    """Of the confirmed gain: by edits that do more than set constants, by constants alone, by edits that are lost."""

    structure: Gain
    tuning: Gain
    unknown: Gain


class Constant(NamedTuple):
    """What the edits of a constant did.

    moved: how far a change of it usually moves the metric either way, beyond noise, and its standard error; best: the
    gain of the best edit that changed it; value: in the last standing keep that set it.
    """

    name: str
    tries: int
    keeps: int
    moved: Gain
    best: float
    value: Any


class Theme(NamedTuple):
    """Experiments with nearly the same idea."""

    words: str
    numbers: tuple[int, ...]
    keeps: int
    confirmed: int


class Worker(NamedTuple):
    """A policy in a role. gain: confirmed; hours: of its runs and of proposing; usd: None: not known in full."""

    policy: str
    role: str
    tried: int
    keeps: int
    confirmed: int
    gain: Gain
    hours: float
    usd: float | None


class ReAdded(NamedTuple):
    """What an experiment brings back of what keeps had removed."""

    number: int
    policy: str
    kept: bool
    back: Back


class Returned(NamedTuple):
    """Lines of code that a policy added, those of them that a keep had removed, and constants that only went back."""

    policy: str
    added: int
    lines: int
    values: int

    @property
    def share(self) -> float:
        return self.lines / self.added if self.added else 0.0


# ---------------------------------------------------------------------- what held, and what did not
def baselines(records: Sequence[Record]) -> frozenset[int]:
    """Numbers of the first keep of each segment, and of what failed to become one."""
    first: dict[int, int] = {}
    for record in records:
        if record.get("status") == "keep":
            first.setdefault(int(record.get("segment") or 0), int(record["experiment"]))
    return frozenset(first.values()) | {int(r["experiment"]) for r in records if r.get("policy") == "baseline"}


def parents(records: Iterable[Record]) -> dict[int, int]:
    """What experiments, in order, were made on: of those before them with that commit the last one with a value.

    There may be several: the baseline of a later segment is the program that was confirmed in the one before it.
    """
    owners, found = dict[str, int](), dict[int, int]()
    for record in records:
        number, commit = int(record["experiment"]), record.get("commit")
        if (parent := owners.get(record.get("parent") or "")) is not None:
            found[number] = parent
        if commit and real(record.get("metric")) is not None:
            owners[commit] = number
    return found


def comparable(records: Sequence[Record]) -> list[Record]:
    """Those of the latest segment that has a result: what it measured cannot be compared with another's figures."""
    segments = [record.get("segment") or 0 for record in records if record.get("status")]
    return [record for record in records if segments and (record.get("segment") or 0) == segments[-1]]


def held(records: Sequence[Record], confirmations: Iterable[Record]) -> list[Held]:
    """The steps of the confirmed program, oldest first."""
    first = baselines(records)
    proven = [r for r in records if r.get("confirmed") and r.get("status") == "keep" and r["experiment"] not in first]
    found, told = [], set[int]()
    for test in confirmations:
        if test.get("moved") and test.get("outcome") == "confirmed":
            chain = tuple(r for r in proven if test["against"] < r["experiment"] <= test["experiment"])
            chain = tuple(r for r in chain if r["experiment"] not in told)
            told.update(int(r["experiment"]) for r in chain)
            found.append(Held(test, chain))
    found += [Held(None, (r,)) for r in proven if r["experiment"] not in told]
    return sorted(found, key=lambda one: max((int(r["experiment"]) for r in one.keeps), default=0))


def failures(records: Sequence[Record], reasons: Mapping[int, str] | None = None) -> list[Failure]:
    """Experiments that were not kept, by status and label, the most frequent first."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for record in records:
        if record.get("status") and record["status"] != "keep":
            groups[str(record["status"]), str(record.get("label") or "")].append(int(record["experiment"]))
    found = []
    for (status, label), numbers in groups.items():
        told = Counter(_without_figures(words) for n in numbers if (words := clean((reasons or {}).get(n, ""), 200)))
        found.append(Failure(status, label, tuple(numbers), tuple(told.most_common(3))))
    return sorted(found, key=lambda one: -len(one.numbers))


def _without_figures(words: str) -> str:
    return re.sub(r"\d[\d.,]*(?:e[+-]?\d+)?", "…", words)


def credits(records: Sequence[Record], confirmations: Iterable[Record], direction: str) -> dict[int, Credit]:
    """What each confirmed keep brought: the gain of its test, shared by what was expected of each keep of the chain."""
    sign = 1.0 if direction == "maximize" else -1.0
    found: dict[int, Credit] = {}
    kept = [r for r in records if r.get("status") == "keep" and real(r.get("metric")) is not None]
    before = {b["experiment"]: a for a, b in pairwise(kept) if a.get("segment") == b.get("segment")}
    for step, (test, keeps) in enumerate(held(records, confirmations)):
        numbers = [int(keep["experiment"]) for keep in keeps]
        if test is None:
            for keep in keeps:
                if (prior := before.get(keep["experiment"])) is not None and real(keep.get("metric")) is not None:
                    found[int(keep["experiment"])] = Credit(sign * (keep["metric"] - prior["metric"]), 0.0, step)
        elif (gain := real(test.get("gain"))) is not None and numbers:
            weights = [max(real(keep.get("delta")) or 0.0, 0.0) for keep in keeps]
            total = sum(weights)
            parts = [weight / total if total else 1 / len(weights) for weight in weights]
            error = real(test.get("error")) or 0.0
            found |= {n: Credit(gain * part, error * part, step) for n, part in zip(numbers, parts, strict=True)}
    return found


def shares(credit: Mapping[int, Credit], edits: Iterable[Edit]) -> Shares:
    """How much of the confirmed gain is structure and how much tuning of constants."""
    known = {edit.number: edit for edit in edits}
    sums: dict[str, list[Credit]] = {"structure": [], "tuning": [], "unknown": []}
    for number, gain in credit.items():
        edit = known.get(number)
        kind = (
            "unknown" if edit is None or not (edit.changes or edit.diff) else "tuning" if edit.changes else "structure"
        )
        sums[kind].append(gain)
    return Shares(**{kind: total(parts) for kind, parts in sums.items()})


# ---------------------------------------------------------------------- which constants matter
_FOLDS, _SWEEPS, _MOST_CONSTANTS = 20, 60, 60


def importance(
    records: Sequence[Record],
    edits: Iterable[Edit],
    direction: str,
    *,
    sigma: float | None = None,
    beliefs: Sequence[tuple[float, float, float]] = (),
) -> list[Constant]:
    """The constants that were changed, those first whose changes moved the metric most.

    Main effects alone, in the manner of functional ANOVA (Hutter, Hoos, Leyton-Brown 2014, ICML): the mean square that
    an edit moved the metric by, less that of noise, is the sum of those of its constants, none of them negative (fitted
    coordinate by coordinate: Franc, Hlaváč, Navara 2005); errors by a jackknife over twenty parts. A gain counts up to
    six times the usual one, so that one broken program does not outshine all; what crashed tells nothing.
    """
    import numpy as np

    changes = {edit.number: edit.changes for edit in edits if edit.changes}
    gains = _gains(records, changes, direction, beliefs)
    having: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        for name in changes.get(record["experiment"], ()) if record.get("status") else ():
            having[name].append(record)
    names = sorted(having, key=lambda name: -len(having[name]))[:_MOST_CONSTANTS]
    place = {name: i for i, name in enumerate(names)}
    moments, sums = np.zeros((_FOLDS + 1, len(names), len(names))), np.zeros((_FOLDS + 1, len(names)))
    size = [abs(gain) for gain, _ in gains.values()]
    most = max(6 * median(size or [0.0]), 6 * (sigma or 0.0)) or math.inf
    for number, (gain, spread) in gains.items():
        at = [place[name] for name in changes[number] if name in place]
        moments[number % _FOLDS][np.ix_(at, at)] += 1.0
        sums[number % _FOLDS][at] += min(abs(gain), most) ** 2 - (sigma or 0.0) ** 2 - spread**2
    told = [*(part for part in range(_FOLDS) if moments[part].any()), _FOLDS]  # the last: the whole; others lack a part
    moments, sums = (moments.sum(0) - moments)[told], (sums.sum(0) - sums)[told]
    squares = np.zeros_like(sums)
    for _ in range(_SWEEPS):
        for i in range(len(names)):
            slope = np.einsum("fj,fj->f", moments[:, i], squares) - sums[:, i]
            squares[:, i] = np.maximum(0.0, squares[:, i] - slope / np.maximum(moments[:, i, i], 1e-9))
    roots, parts = np.sqrt(squares), len(squares) - 1
    error = np.sqrt(np.var(roots[:-1], axis=0) * (parts - 1)) if parts > 1 else np.zeros(len(names))
    found = []
    for name in names:
        with_it = having[name]
        kept = [r for r in with_it if r["status"] == "keep"]
        standing = [changes[r["experiment"]][name] for r in kept if r.get("confirmed") is not False]
        best = max((gains[r["experiment"]][0] for r in with_it if r["experiment"] in gains), default=0.0)
        moved = Gain(float(roots[-1, place[name]]), float(error[place[name]]))
        found.append(Constant(name, len(with_it), len(kept), moved, best, standing[-1] if standing else None))
    return sorted(found, key=lambda one: (-one.moved.value, -one.tries))


def _gains(
    records: Sequence[Record], changes: Mapping[int, Any], direction: str, beliefs: Sequence[tuple[float, float, float]]
) -> dict[int, tuple[float, float]]:
    """What edits of constants brought beside the tip as it was believed, or their parent, ± how well that is known."""
    sign = 1.0 if direction == "maximize" else -1.0
    by_number, made_on = {int(record["experiment"]): record for record in records}, parents(records)
    found: dict[int, tuple[float, float]] = {}
    before = _tips(records, made_on)
    at = -1  # the last belief before the experiment
    for record in records:
        number, value = int(record["experiment"]), real(record.get("metric"))
        while at + 1 < len(beliefs) and beliefs[at + 1][0] < number:
            at += 1
        if number not in changes:
            continue
        if value is None:
            forecast = real(record.get("delta")) if record.get("label") == Label.ABORTED_EARLY else None
            if forecast is not None:
                found[number] = forecast, _forecast_spread(record)
            continue
        parent = made_on.get(number)
        if parent in (None, before[number]) and at >= 0:
            found[number] = sign * (value - beliefs[at][1]), beliefs[at][2]
        elif parent is not None:
            found[number] = sign * (value - by_number[parent]["metric"]), 0.0
    return found


def _tips(records: Sequence[Record], made_on: Mapping[int, int]) -> dict[int, int | None]:
    """What each experiment could be made on at best: the last keep before it, or one below those that fell back."""
    found, kept, fell = dict[int, int | None](), list[int](), set[int]()
    for record in records:
        number = int(record["experiment"])
        while kept and kept[-1] in fell and made_on.get(number) in kept[:-1]:
            kept.pop()
        found[number] = kept[-1] if kept else None
        if record.get("status") == "keep":
            kept.append(number)
            fell |= {number} if record.get("confirmed") is False else set()
    return found


def _forecast_spread(record: Record) -> float:
    """Standard error of the forecast that a run was ended on, from its band of 90%."""
    low, high = (real((record.get("metrics") or {}).get(f"forecast_{end}")) for end in ("low", "high"))
    return abs(high - low) / (2 * 1.645) if low is not None and high is not None else 0.0


# ---------------------------------------------------------------------- themes, and what comes back
_ALIKE, _MOST_THEMES, _MOST_TEXTS = 82.0, 400, 3000
_WORD = re.compile(r"[a-zA-Z_]{2,}")


def themes(records: Sequence[Record], edits: Iterable[Edit]) -> list[Theme]:
    """Ideas that were tried at least twice, the most frequent first.

    Edits of constants: those of the same ones. Others: those whose hypotheses have nearly the same words, in any order.
    """
    from rapidfuzz import fuzz, process

    by_number = {int(record["experiment"]): record for record in records if record.get("status")}
    first = baselines(records)
    edits = list(edits)
    short = short_names(name for edit in edits for name in edit.changes)
    groups: dict[str, list[int]] = defaultdict(list)
    leaders: dict[str, str] = {}
    compared: dict[str, str] = {}
    for edit in edits:
        if edit.number not in by_number or edit.number in first:
            continue
        if edit.changes:
            groups[" ".join(sorted(edit.changes))].append(edit.number)
            leaders.setdefault(" ".join(sorted(edit.changes)), "set " + ", ".join(short[n] for n in edit.changes))
            continue
        words = edit.hypothesis or str(by_number[edit.number].get("description") or "")
        key = "~" + " ".join(sorted(w.lower() for w in _WORD.findall(words)[:60]))
        if key == "~":
            continue
        leader = compared.get(key)
        if leader is None and len(compared) < _MOST_TEXTS:
            near = process.extractOne(key, [k for k in leaders if k[0] == "~"], scorer=fuzz.ratio, score_cutoff=_ALIKE)
            leader = compared[key] = near[0] if near else key
        if leader is not None and (leader in leaders or len(leaders) < _MOST_THEMES):
            groups[leader].append(edit.number)
            leaders.setdefault(leader, clean(words, 160))
    found = []
    for leader, numbers in groups.items():
        if len(numbers) > 1:
            kept = [by_number[n] for n in numbers if by_number[n]["status"] == "keep"]
            proven = sum(r.get("confirmed") is True for r in kept)
            found.append(Theme(leaders[leader], tuple(numbers), len(kept), proven))
    return sorted(found, key=lambda one: -len(one.numbers))


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Constants without their file, but where two of them are called the same."""
    alone = {name: name.rpartition(":")[2] for name in names}
    times = Counter(alone.values())
    return {name: clean(short if times[short] == 1 else name, 60) for name, short in alone.items()}


def re_added(records: Sequence[Record], edits: Iterable[Edit], texts: Texts = lambda _: ()) -> list[ReAdded]:
    """What each edit that adds code brings back of what the keeps before it, if they still stand, had removed."""
    policies = {int(r["experiment"]): clean(r.get("policy") or "", 60) for r in records}
    kept = {int(r["experiment"]) for r in records if r.get("status") == "keep"}
    fell = {int(r["experiment"]) for r in records if r.get("confirmed") is False}
    removals, found = Removals(texts), []
    for edit in edits:
        if edit.diff and (back := removals.look(edit.diff)).added:
            found.append(ReAdded(edit.number, policies.get(edit.number, ""), edit.number in kept, back))
        if edit.diff and edit.number in kept - fell:
            removals.keep(edit.number, edit.diff)
    return found


def returned(found: Iterable[ReAdded]) -> list[Returned]:
    """By policy, and last over all where there are several; empty where nothing came back."""
    groups: dict[str, list[Back]] = defaultdict(list)
    for one in found:
        groups[one.policy].append(one.back)
    rows = sorted((_sum(policy, backs) for policy, backs in groups.items()), key=lambda row: -row.lines)
    whole = _sum("all", [back for backs in groups.values() for back in backs])
    return [*rows, *([whole] if len(rows) > 1 else [])] if whole.lines or whole.values else []


def _sum(policy: str, backs: Sequence[Back]) -> Returned:
    lines, values = sum(len(back.lines) for back in backs), sum(len(back.values) for back in backs)
    return Returned(policy, sum(back.added for back in backs), lines, values)


# ---------------------------------------------------------------------- who, and where
def workers(records: Sequence[Record], edits: Iterable[Edit], credit: Mapping[int, Credit]) -> list[Worker]:
    """Policies and roles with what they brought and took, the largest confirmed gain first."""
    first, seconds = baselines(records), {edit.number: edit.seconds for edit in edits}
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    asked: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.get("status") and record["experiment"] not in first:
            policy, role = str(record.get("policy") or ""), str(record.get("role") or "")
            groups[policy, role].append(record)
            # What was asked and passed has cost what it has, and brought nothing.
            passed_by = str((record.get("asi") or {}).get(PASSED_BY) or "")
            asked[passed_by or policy, role].append(record)
            _ = groups[passed_by or policy, role]
    found = []
    for (policy, role), own in groups.items():
        took = sum(run.get("duration_s") or 0.0 for record in own for run in record.get("runs") or ())
        took += sum(seconds.get(record["experiment"], 0.0) for record in asked[policy, role])
        prices = [real(record.get("cost_usd")) for record in asked[policy, role]]
        known = [price for price in prices if price is not None]
        kept = [record for record in own if record["status"] == "keep"]
        gain = total(credit[record["experiment"]] for record in kept if record["experiment"] in credit)
        proven = sum(record.get("confirmed") is True for record in kept)
        usd = sum(known) if len(known) == len(prices) else None
        found.append(Worker(policy, role, len(own), len(kept), proven, gain, took / 3600, usd))
    return sorted(found, key=lambda one: (-one.gain.value, -one.keeps, -one.tried))


class Slots(NamedTuple):
    """What slots did: spans for ``charts.timeline``, refusals and length in seconds.

    busy: part of the time at work, which is without pauses and stops.
    """

    spans: tuple[Span, ...]
    refused: tuple[float, ...]
    length: float
    at_work: float
    busy: float | None


def slots(runs: Sequence[SlotRun], records: Iterable[Record], start: datetime, now: datetime) -> Slots:
    """Runs in lanes: those of a host and device that overlap stand below each other. now: for what goes on."""
    lanes: dict[tuple[str, str], list[datetime]] = defaultdict(list)
    spans, busy = list[Span](), 0.0
    last = max([start, *(run.end or now for run in runs)])
    for run in runs:
        end = max(run.end or now, run.start)
        where = run.host, run.device
        if not run.host:  # under way: where, is stored once it has ended; some slot that is free then
            where = next((w for w, ends in lanes.items() if w[0] and min(ends) <= run.start), where)
        free = lanes[where]
        lane = next((i for i, until in enumerate(free) if until <= run.start), len(free))
        free[lane : lane + 1] = [end]
        if run.label is Label.ABORTED_EARLY:
            kind = "aborted"
        elif run.label is not Label.NONE:
            kind = "failed"
        else:
            kind = "confirmation" if run.attempt < 0 else "run"
        name = " ".join(filter(None, (where[0] or "local", where[1], str(lane + 1))))
        spans.append(Span(name, (run.start - start).total_seconds(), (end - start).total_seconds(), kind))
        busy += (end - run.start).total_seconds() if run.label not in _LOST else 0.0
    length = (last - start).total_seconds()
    refused = [
        (datetime.fromisoformat(at) - start).total_seconds()
        for record in records
        if record.get("label") in _NEVER_RUN and (at := record.get("finished_at"))
    ]
    places = sum(map(len, lanes.values()))
    at_work = seconds_at_work((run.start, max(run.end or now, run.start)) for run in runs)
    part = min(1.0, busy / (at_work * places)) if at_work and places else None
    return Slots(tuple(sorted(spans, key=lambda span: span.lane)), tuple(refused), length, at_work, part)
