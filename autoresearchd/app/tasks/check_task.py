"""``task check --run``: trial runs of a task exactly as a session would make them, without leaving a session behind.

A task without a check.yaml is run once. One that has it is held to what that says: its documented baseline and noise,
honest edits that must be accepted, and cheats of which none may pay.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from autoresearchd.app.tasks.trial_bench import Bench, Ended, Trial, open_bench, with_budget
from autoresearchd.config.check_file import load_check
from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.quantities import format_duration
from autoresearchd.domain.task import Documented, TaskCheck, Variant
from autoresearchd.evaluator.keep.noise import estimate_sigma, mean
from autoresearchd.evaluator.measure.measurement import EVALUATION, TRAINING
from autoresearchd.evaluator.rules.legality import check_edit, required_symbols
from autoresearchd.evaluator.rules.program_text import about_seed
from autoresearchd.evaluator.rules.run_time import STARVED, about_budget, pace_of
from autoresearchd.evaluator.rules.task_variants import Reference, changed, doubts, verdict

SEED = 1
PROFILE = "cpu"
"""What tasks are held to unless another is asked for: that of every machine."""
_RUNS = 3
_AT_ONCE = 2
"""Edits and cheats that run beside each other, where there are as many processors."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a check.yaml a task is held to.

    runs: of the unedited program, None: three; edits, cheats: the first so many, None: all; hurried: everything under
    the budget of the edits.
    """

    runs: int | None = None
    edits: int | None = None
    cheats: int | None = None
    hurried: bool = False


ALL = Extent()
SHORT = Extent(runs=1, edits=1, cheats=2, hurried=True)
MANY_TASKS = Extent(runs=2, edits=1, cheats=3)


@dataclass(frozen=True, slots=True)
class Checked:
    """What a trial run gave. measured: a sentence with the metric; notes: what the user should know about it."""

    measured: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of an edit. right: whether it ended as it had to."""

    name: str
    label: str
    detail: str
    right: bool


@dataclass(frozen=True, slots=True)
class Held:
    """How a task stood up to its check.yaml.

    values: of the unedited program, by seed; sigma: their spread, None for a single one; run_s: seconds of the median
    run, all of it; evaluation: the share of the evaluation in it; seconds: of the whole check, set-up included;
    known_edits, known_cheats: how many check.yaml has, of which ``edits`` and ``cheats`` were tried;
    faults: what is not as it should be, a sentence each; notes: as in ``Checked``.
    """

    metric: str
    profile: str
    budget: float
    values: tuple[float, ...]
    sigma: float | None
    documented: Documented | None
    run_s: float
    evaluation: float
    seconds: float
    edits: tuple[Tried, ...]
    cheats: tuple[Tried, ...]
    known_edits: int
    known_cheats: int
    faults: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def caught(self) -> int:
        """How many cheats ended as they had to."""
        return sum(cheat.right for cheat in self.cheats)


def check_run(folder: Path, budget: float | None = None, sandbox: str | None = None) -> Checked:
    """Run a task once and measure it.

    Raises BaselineError where it gives no metric, RepositoryError where no session could start from the folder, and
    MissingCapability where the ``sandbox`` (None: any) does not work.
    """
    with open_bench(folder, budget=budget, sandbox=sandbox) as bench:
        ended = bench.baseline(SEED)
        scoring = bench.task.scoring
        notes = (*bench.notes, *_about_program(bench, [ended]))
        return Checked(
            f"{scoring.metric.name} {ended.measurement.value:.6g} in {format_duration(ended.result.duration_s)} "
            f"({ended.result.tier}, {scoring.source.value})",
            notes,
        )


def check_held(
    folder: Path,
    *,
    extent: Extent = ALL,
    profile: str | None = PROFILE,
    sandbox: str | None = None,
    at_once: int | None = None,
) -> Held:
    """Hold a task to its check.yaml; one that has none only gives its baseline and noise.

    profile: None: what this machine has; at_once: how many edits and cheats run beside each other, None: two, where
    there are as many processors. Raises what ``check_run`` does, and ConfigError where check.yaml cannot be used or an
    edit in it does not fit the program any more.
    """
    began = time.monotonic()
    wanted = load_check(folder) or TaskCheck()
    documented = wanted.baseline.get(profile) if profile else None
    budget = wanted.budget if extent.hurried else documented.budget if documented else None
    with open_bench(folder, budget=budget, profile=profile, sandbox=sandbox) as bench:
        first = bench.task.editable[0]
        for variant in (*wanted.edits, *wanted.cheats):  # before anything is run
            changed(variant, _all_files(bench, variant, first), first, {})
        at_once = at_once or (1 if bench.task.profile == "cuda" else min(_AT_ONCE, len(os.sched_getaffinity(0))))
        ended = [bench.baseline(SEED + index) for index in range(extent.runs or _RUNS)]  # nothing beside them
        trials = _Trials(bench, wanted, documented, ended, at_once)
        honest = wanted.edits[: extent.edits]
        tried = trials.all((*honest, *wanted.cheats[: extent.cheats]))
        edits, cheats = tried[: len(honest)], tried[len(honest) :]
        values = tuple(value for one in ended if (value := one.measurement.value) is not None)
        # Hurried, the budget is that of the edits, under which nothing is documented.
        differs = doubts(documented, values) if documented and not extent.hurried and len(values) > 1 else []
        faults = [f"{words}{_busy(ended)}" for words in differs]
        faults += [f"the edit {one.name!r} was refused: {one.label}: {one.detail}" for one in edits if not one.right]
        faults += [f"the cheat {one.name!r} ended as {one.label}: {one.detail}" for one in cheats if not one.right]
        return Held(
            metric=bench.task.metric.name,
            profile=bench.task.profile,
            budget=bench.task.execution.budget.training,
            values=values,
            sigma=estimate_sigma(values),
            documented=documented,
            run_s=median(one.result.duration_s for one in ended),
            evaluation=mean([_share(one) for one in ended]),
            seconds=time.monotonic() - began,
            edits=edits,
            cheats=cheats,
            known_edits=len(wanted.edits),
            known_cheats=len(wanted.cheats),
            faults=tuple(faults),
            notes=(*bench.notes, *_about_program(bench, ended)),
        )


def _about_program(bench: Bench, ended: Sequence[Ended]) -> tuple[str, ...]:
    """What the user should know of the program, its budget and its seed, now that it has been run."""
    took = [stage.duration_s for one in ended if (stage := one.result.stage(TRAINING))]
    texts = {**bench.sources(), **bench.files()}
    return (*about_budget(bench.task, texts, median(took) if took else None), *about_seed(bench.task, texts))


def _busy(ended: Sequence[Ended]) -> str:
    """Words for a machine that had something else to do, empty where the runs had a processor to themselves."""
    stages = [stage for one in ended if (stage := one.result.stage(TRAINING)) and stage.duration_s > 0]
    share = median(stage.cpu_s / stage.duration_s for stage in stages) if stages else 1.0
    return f"; its training had {share:.0%} of a processor: is this machine busy?" if share < STARVED else ""


def _share(ended: Ended) -> float:
    """The share of the evaluation in a run."""
    stage = ended.result.stage(EVALUATION)
    return stage.duration_s / ended.result.duration_s if stage and ended.result.duration_s > 0 else 0.0


def _all_files(bench: Bench, variant: Variant, first: str) -> dict[str, str]:
    """The editable files, and what else a variant names."""
    return {path: bench.text(path) for path in {*bench.task.editable, *(s.file or first for s in variant.change)}}


class _Trials:
    """Runs of edits and cheats beside the unedited program, all under one budget and one seed."""

    def __init__(
        self,
        bench: Bench,
        wanted: TaskCheck,
        documented: Documented | None,
        ended: Sequence[Ended],
        at_once: int,
    ) -> None:
        self._bench, self._budget, self._documented, self._ended = bench, wanted.budget, documented, ended
        self._task = bench.task
        self._at_once = at_once
        self._files, self._sources = bench.files(), bench.sources()
        self._required = required_symbols(self._task, self._sources)
        self._places = bench.places()

    def all(self, variants: Sequence[Variant]) -> tuple[Tried, ...]:
        """Try them in their order, a few at a time: what they gain is far more than what a busy machine costs.

        Where the unedited program has not run under their budget yet it is the first of them, kept waiting as they are.
        """
        if not variants:
            return ()
        tried: list[Tried] = []
        waiting, running = deque(variants), deque[tuple[Variant, Trial | PolicyError]]()
        same = self._budget in (None, self._task.execution.budget.training)
        unedited = self._held_to(self._ended) if same else self._bench.begin(SEED, None, self._budget)
        while waiting or running:
            if waiting and len(running) + isinstance(unedited, Trial) < self._at_once:
                variant = waiting.popleft()
                running.append((variant, self._begin(variant)))
            elif isinstance(unedited, Trial):
                unedited = self._held_to([self._bench.accepted(unedited.end())])
            else:
                tried.append(self._end(*running.popleft(), unedited))
        return tuple(tried)

    def _held_to(self, unedited: Sequence[Ended]) -> Reference:
        """What runs of the unedited program hold the others to."""
        stages = [stage for one in unedited for stage in one.result.stages]
        task = self._task if self._budget is None else with_budget(self._task, self._budget)
        pace = pace_of(task, {**self._sources, **self._files}, stages)
        value = unedited[0].measurement.value or 0.0
        noise = estimate_sigma([v for one in self._ended if (v := one.measurement.value) is not None]) or 0.0
        if self._documented is not None:  # what is larger on this machine is noisier on it, too
            scale = abs(value / (self._documented.value or value or 1.0))
            noise = max(noise, self._documented.sigma * max(1.0, scale))
        return Reference(value, unedited[0].measurement.metrics, pace, noise)

    def _begin(self, variant: Variant) -> Trial | PolicyError:
        first = self._task.editable[0]
        files = changed(variant, _all_files(self._bench, variant, first), first, self._places)
        try:
            check_edit(self._task, self._files, files, required=self._required)
        except PolicyError as error:
            return error
        return self._bench.begin(SEED, files, self._budget)

    def _end(self, variant: Variant, running: Trial | PolicyError, unedited: Reference) -> Tried:
        """An honest edit has to be legal and to give a metric, a cheat to end with a label that it may end with."""
        if isinstance(running, PolicyError):
            label, detail = running.label, running.what
        else:
            ended = running.end()
            label, detail = verdict(running.task, ended.measurement, ended.result, unedited)
        right = variant.expected or {Label.NONE, Label.NO_GAIN}
        if label is Label.NONE and label not in right:
            label, detail = self._beside(variant, unedited)
        return Tried(variant.name, label.value or "better", detail, label in right)

    def _beside(self, variant: Variant, before: Reference) -> tuple[Label, str]:
        """What came of a cheat beside the unedited program, on another seed.

        The one run that it beat may have been a slow one: in the second or so that cheats get, the curve is steep.
        """
        first = self._task.editable[0]
        files = changed(variant, _all_files(self._bench, variant, first), first, self._places)
        unedited = self._bench.begin(SEED + 1, None, self._budget)
        cheat = self._bench.begin(SEED + 1, files, self._budget)
        value, ended = unedited.end().measurement.value, cheat.end()
        reference = before if value is None else replace(before, value=value)
        return verdict(cheat.task, ended.measurement, ended.result, reference)
