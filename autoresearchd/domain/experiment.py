"""An experiment, its runs and the decision on it, as rows that are read back and never changed in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from autoresearchd.domain.labels import Label, Phase, SessionState, Status
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.domain.quantities import counted, format_duration

FAILURES = 2
"""How often a program fails in one confirmation for good: once may be bad luck."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One point of a learning curve as logged. progress: share of the budget; validation: of data not trained on."""

    step: float
    loss: float
    progress: float | None = None
    seconds: float | None = None
    validation: bool = False


@dataclass(frozen=True, slots=True)
class StageResult:
    """How one process of a run ended. name: ``training``, ``evaluation`` or ``check-<i>``.

    exit_code: 0…255, or −signal; None when it was never started. outcome: ``ok``, ``failed``, ``timeout`` (hard wall),
    ``budget_overrun``, ``killed`` (by us), ``oom``, ``disk_full``, ``lost`` (the supervisor died), ``tampered`` (never
    started: what edited code left for it leads to what that code may not read). cpu_s: 0.0 where it is not known.
    """

    name: str
    outcome: str
    exit_code: int | None
    duration_s: float
    log_path: str
    peak_rss_mb: float = 0.0
    detail: str = ""
    cpu_s: float = 0.0

    @property
    def beyond(self) -> bool:
        """Whether it was ended for what it used (processes, files, bytes), which its detail says."""
        return self.outcome == "failed" and self.detail.startswith("it ")


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came back from the executor: facts only, nothing judged."""

    stages: tuple[StageResult, ...]
    duration_s: float
    tier: str
    host: str = "local"
    device: str = "cpu"

    def stage(self, name: str) -> StageResult | None:
        """The stage of that name, None when the run did not get that far."""
        return next((s for s in self.stages if s.name == name), None)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What the evaluator read out of a run: label NONE means that the metric is good."""

    label: Label
    value: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    detail: str = ""
    curve: tuple[CurvePoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a program under one seed. index counts from 0 within the experiment that it was made for.

    of: the experiment whose program ran, where it is another one: in a confirmation, and beside experiments of sessions
    before there were any. attempt: of the proposal that the experiment had when it ran (0: the first, 1…: repairs);
    −1 − n: it is one of confirmation n.
    """

    id: int
    experiment: int
    index: int
    seed: int
    started_at: datetime
    finished_at: datetime | None = None
    label: Label = Label.NONE
    value: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    duration_s: float = 0.0
    exit_code: int | None = None
    tier: str = ""
    host: str = ""
    device: str = "cpu"
    detail: str = ""
    of: int | None = None
    attempt: int = 0

    @property
    def open(self) -> bool:
        return self.finished_at is None

    @property
    def counts(self) -> bool:
        """Whether it ended by itself: not interrupted, not lost with its host."""
        return not self.open and self.label not in (Label.INTERRUPTED, Label.HOST_LOST, Label.DISK_FULL)

    @property
    def good(self) -> bool:
        """Whether it ended with a usable metric."""
        return not self.open and self.label is Label.NONE and self.value is not None


@dataclass(frozen=True, slots=True)
class Decision:
    """The judgement on an experiment.

    value: mean of its good runs; delta: expected improvement over the tip (positive: better), shrunken by what edits
    have brought so far; sigma: noise as it is believed to be; confidence: |best − baseline| / MAD over the session, the
    advisory figure of pi-autoresearch; reward: for the learner, with its components and the version of its formula.
    shift: what keeps that were made while it ran are believed to have brought: value and shift tell of the tip.
    """

    status: Status
    label: Label
    value: float | None = None
    delta: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    confidence: float | None = None
    sigma: float | None = None
    reward: float | None = None
    reason: str = ""
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    reward_formula: str | None = None
    shift: float | None = None


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment as the store knows it.

    parent: what it is reverted to; runs: of all attempts, and of confirmations. confirmed: True: the branch has it;
    False: it was kept, and its chain fell back; None: its chain is not tested yet, or it was never kept.
    """

    session_id: int
    number: int
    segment: int
    phase: Phase
    parent: str
    started_at: datetime
    commit: str | None = None
    proposal: Proposal | None = None
    runs: tuple[Run, ...] = ()
    decision: Decision | None = None
    asi: ASI = field(default_factory=ASI)
    finished_at: datetime | None = None
    overhead_ms: float | None = None
    attempt: int = 0
    confirmed: bool | None = None

    @property
    def current_runs(self) -> tuple[Run, ...]:
        """Runs of the current attempt: a repair is judged by what it did itself."""
        return tuple(r for r in self.runs if r.attempt == self.attempt)

    @property
    def good_runs(self) -> tuple[Run, ...]:
        """Runs of its own program that ended with a usable metric."""
        return tuple(r for r in self.current_runs if r.good and r.of is None)

    @property
    def last_own(self) -> Run | None:
        """The last run of its own program."""
        return next((r for r in reversed(self.current_runs) if r.of is None), None)

    @property
    def counted_runs(self) -> tuple[Run, ...]:
        """Runs that ended by themselves."""
        return tuple(r for r in self.current_runs if r.counts)


@dataclass(frozen=True, slots=True)
class Trial:
    """What a search learns of a finished experiment. changes: against ``parent``; delta: the forecast's, if aborted."""

    number: int
    parent: str
    commit: str | None
    changes: Mapping[str, Any]
    status: Status
    label: Label
    value: float | None
    delta: float | None = None
    reason: str = ""
    segment: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """An experiment as a place to go on from, whatever was decided on it; parent: the one it was made from, if any."""

    number: int
    parent: int | None
    commit: str
    value: float
    status: Status


@dataclass(frozen=True, slots=True)
class AbortMemory:
    """What early abort has learned in a segment, as of experiment ``number``. state: None: as it was stored last."""

    segment: int
    number: int
    figures: Mapping[str, float | None]
    state: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """When a session ends by itself; None: never. Seconds, US dollars; experiments do not count the baseline."""

    max_experiments: int | None = None
    max_seconds: float | None = None
    max_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """One run of the daemon on one task.

    task_json: the validated task.yaml (after the profile and the command line). folder: the task's, relative to the top
    of the repository. base_commit: where the branch began. incumbent: the commit of the tip, which the next edit is
    made on; confirmed: that of the confirmed program, where the branch should point, as the store has it.
    """

    id: int
    tag: str
    branch: str
    task_json: str
    policy: str
    executor: str
    base_commit: str
    incumbent: str
    incumbent_experiment: int
    confirmed: str
    confirmed_experiment: int
    state: SessionState
    started_at: datetime
    seed: int
    limits: Limits = field(default_factory=Limits)
    pid: int | None = None
    heartbeat_at: datetime | None = None
    reason: str = ""
    active_seconds: float = 0.0
    folder: str = "."


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a session in which results are comparable. first: number of its first experiment, the baseline."""

    number: int
    first: int
    fingerprint: str
    reason: str
    hardware: str
    started_at: datetime


@dataclass(frozen=True, slots=True)
class Note:
    """A message from the user to the policy."""

    id: int
    text: str
    created_at: datetime
    seen_in: int | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a session that must not cost more as it grows."""

    experiments: int = 0
    keeps: int = 0
    discards: int = 0
    crashes: int = 0
    checks_failed: int = 0
    usd: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    gpu_s: float = 0.0


# ---------------------------------------------------------------------- when a session ends, and when it is too noisy
TIMES = 3.0
"""How many times the σ of the baseline's first runs is too much; one run each raises what is believed of it slowly."""
CALM = 2.0
"""Below so many times it the machine is quiet again; apart from TIMES, so that a figure at the edge is no news."""


def noise_has_grown(sigma: float | None, first: float | None, times: float = TIMES) -> bool:
    """Whether σ is so many times what it was at first; never where either is not known or 0."""
    return bool(sigma and first and sigma >= times * first)


def explain_noise(sigma: float, first: float) -> str:
    """The fact, and what may be behind it: few large effects and more noise look alike, as each edit runs once."""
    return (
        f"σ is thought to be {sigma:.2g}, {sigma / first:.0f} times the {first:.2g} of when the baseline was first "
        "measured: smaller gains cannot be told. Is the machine busy with something else? "
        "If not, edits may have large effects, or the baseline's runs were alike by luck: no harm."
    )


class Reached(NamedTuple):
    """A limit that a session has reached. more: the option of ``resume`` that extends it, twice as far."""

    reason: str
    more: str


def limit_reached(limits: Limits, *, experiments: int, seconds: float, usd: float) -> Reached | None:
    """The first limit that a session reached; experiments: without baselines; seconds: of all its daemons together."""
    most, longest, dearest = limits.max_experiments, limits.max_seconds, limits.max_usd
    if most is not None and experiments >= most:
        so_many = "as asked" if experiments == most else f"more than the {most} asked for"
        more = f"--max-experiments {max(1, 2 * experiments)}"
        return Reached(f"{counted(experiments, 'experiment')} done, {so_many}", more)
    if longest is not None and seconds >= longest:
        twice = format_duration(max(1.0, 2 * max(longest, seconds))).replace(" ", "")
        return Reached(f"the time limit of {format_duration(longest)} is reached", f"--max-time {twice}")
    if dearest is not None and usd >= dearest:
        return Reached(
            f"the spend limit of {dearest:g} USD is reached", f"--max-cost {max(0.01, 2 * max(dearest, usd)):.2f}"
        )
    return None
