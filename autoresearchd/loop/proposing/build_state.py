"""What a policy is shown: the research state of a session, with what each role did and what is known of the machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autoresearchd.domain.events import EventKind
from autoresearchd.domain.experiment import Experiment, Run
from autoresearchd.domain.labels import Phase
from autoresearchd.domain.proposal import Repair
from autoresearchd.domain.research_state import ResearchState
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.measure.measurement import last_lines
from autoresearchd.loop.measuring.run_files import read_tail
from autoresearchd.loop.messages import is_keep
from autoresearchd.loop.proposing.experiment_turns import Turn, Turns
from autoresearchd.loop.session_view import RECENT, SessionView

LEARNINGS_EVERY = 5
"""Experiments between two times that ``autoresearch.md`` is brought up to date without a keep."""

FACTS = ("device", "cpu", "python")
SHOWN_METRICS = (
    "peak_vram_mb", "peak_memory_mb", "mfu_percent", "num_steps", "num_params_M", "total_tokens_M", "depth",
)  # fmt: skip
"""Of the metrics that programs of karpathy's kind print, those that tell of memory, size and speed."""

LOG_LINES = 6
_LOG_BYTES = 8 * 1024


class Research:
    """Makes research states. Owned by the loop's thread."""

    def __init__(self, view: SessionView, turns: Turns) -> None:
        self._view, self._context, self._turns = view, view.context, turns
        facts = self._context.facts()
        self._facts = {name: facts[name] for name in FACTS if facts.get(name)}
        self._roles: dict[str, deque[Experiment]] = {}
        self._shown: list[int] = []

    def state(self, e: Experiment, repair: Repair | None = None) -> ResearchState:
        """All that a policy is shown; members of a round are shown what its first was shown."""
        turn = self._turns.turn_of(e)
        if turn.state is not None and repair is None:
            return replace(turn.state, number=e.number, seed=self._context.random_seed(e.number, "policy"))
        state = self._state(e, turn, repair)
        if repair is None:
            self._turns.freeze(e, state)
        return state

    def _state(self, e: Experiment, turn: Turn, repair: Repair | None) -> ResearchState:
        context, view, tag = self._context, self._view, self._context.tag
        notes = context.store.unseen_notes(context.session_id)
        self._shown = [note.id for note in notes]
        figures = view.figures()
        return ResearchState(
            tag=tag,
            number=e.number,
            parent=e.parent,
            task=_shown(view),
            code=view.programs.code(e.parent),
            recent=view.recent,
            top=view.top,
            own=self._of_role(turn.role),
            baseline=figures["baseline"],
            incumbent_value=figures["best"],
            sigma=figures["sigma"],
            notes=tuple(note.text for note in notes),
            diagnostics=self._diagnostics(),
            role=turn.role,
            seed=context.random_seed(e.number, "policy" if repair is None else f"repair {repair.attempt}"),
            state_id=f"{tag}/{e.number}" + (f"/{repair.attempt}" if repair else ""),
            round_id=f"{tag}/{turn.first}" + (f"/{e.number}/{repair.attempt}" if repair else ""),
            incumbent=view.tip_commit,
            failures=dict(view.labels),
            streak=view.streak,
            memo=context.memo.read(),
            repair=repair,
            redactor=context.redactor,
        )

    def mark_notes_seen(self, e: Experiment) -> None:
        if self._shown:
            self._context.store.mark_notes_seen(self._context.session_id, self._shown, e.number)
            self._shown = []

    def decided(self, e: Experiment) -> None:
        role = e.proposal.role if e.proposal is not None else ""
        if role in self._roles:
            self._roles[role].append(e)

    def write_learnings(self, e: Experiment) -> None:
        """Bring ``autoresearch.md`` up to date after a keep, and now and then."""
        view, memo = self._view, self._context.memo
        if memo.path is None or not (is_keep(e) or e.number % LEARNINGS_EVERY == 0):
            return
        failed = memo.failed
        memo.keep_up(self._context.task, view.recent, view.top, dict(view.labels), view.sigma)
        if memo.failed and memo.failed != failed:
            self._context.emit(EventKind.WARNING, f"autoresearch.md is not kept up: {memo.failed}")

    def _of_role(self, role: str) -> tuple[Experiment, ...]:
        """What a role proposed before the latest experiments, oldest first; the latest count towards the bound."""
        if not role:
            return ()
        if role not in self._roles:  # read at its first turn, then kept up
            store, session_id = self._context.store, self._context.session_id
            # The store walks back until it has found so many: more than there are would take it to the beginning.
            most = min(RECENT, store.role_stats(session_id).get(role, (0, 0, 0.0))[0])
            past = store.experiments(session_id, last=most, role=role) if most else ()
            self._roles[role] = deque((e for e in past if e.phase is Phase.DECIDED), maxlen=RECENT)
        recent = self._view.recent
        return tuple(e for e in self._roles[role] if e.number < (recent[0].number if recent else 0))

    def _diagnostics(self) -> Mapping[str, Any]:
        """Device, memory, throughput and the last failure, by name, in words; only what is known."""
        view, told = self._view, dict[str, Any](self._facts)
        latest = next((e for e in reversed(view.recent) if e.good_runs), None)
        for name, e in (("run of the incumbent", None if view.needs_baseline else view.tip), ("latest run", latest)):
            if e is not None and e.good_runs:
                told[name] = _describe(e)
        failed = [run for e in view.recent if (run := e.last_own) is not None and run.detail]
        if failed:
            told["last_failure"] = failed[-1].detail
            told["last_failure_log"] = " | ".join(training_log(view, failed[-1], LOG_LINES, _LOG_BYTES))
        return {name: value for name, value in told.items() if value}


def _shown(view: SessionView) -> Task:
    """The task with what training may take, where that is known from the baseline."""
    task, most = view.context.task, view.pace.most if view.pace else None
    if most is None:
        return task
    return replace(task, execution=replace(task.execution, budget=replace(task.execution.budget, most=most)))


def training_log(view: SessionView, run: Run, lines: int, most: int) -> Sequence[str]:
    """The end of what training printed; nothing of the evaluation, which has seen private data."""
    path = view.context.site.run_dir(run.experiment, run.index) / "training.log"
    return last_lines(read_tail(path, most))[-lines:]


def _describe(e: Experiment) -> str:
    run = e.good_runs[-1]
    known = [f"{name} {run.metrics[name]:.6g}" for name in SHOWN_METRICS if name in run.metrics]
    return ", ".join([f"experiment {e.number}", f"{run.duration_s:.1f} s", *known])
