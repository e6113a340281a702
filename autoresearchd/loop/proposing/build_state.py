"""Whose turn the next experiment is, on which commit and in which round, and what its policy is shown.

Members of a round see one frozen state, and build on one commit; each is compared with the best so far. A round that a
restart interrupts is not gone on with: the next one begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoresearchd.domain.experiment import Experiment, Run
from autoresearchd.domain.labels import Phase
from autoresearchd.domain.ports import HOOK_SAYS, EventKind, ResearchState
from autoresearchd.domain.proposal import Repair
from autoresearchd.domain.task import Direction
from autoresearchd.evaluator.measure.measurement import last_lines
from autoresearchd.loop.messages import is_keep
from autoresearchd.loop.session_view import RECENT, SessionView
from autoresearchd.policy.prompt.digest import learnings
from autoresearchd.policy.turn_rules import LONG_STREAK, PUCT, Tree, next_turn
from autoresearchd.workspace.files import read_tail

REMEMBERED = 400
"""Turns that a bandit is told of: enough for nine roles, of which it forgets the older by itself."""
LEARNINGS_EVERY = 5
"""Experiments between two times that ``autoresearch.md`` is brought up to date without a keep."""
FACTS = ("device", "cpu", "python")
SHOWN_METRICS = (
    "peak_vram_mb", "peak_memory_mb", "mfu_percent", "num_steps", "num_params_M", "total_tokens_M", "depth",
)  # fmt: skip
"""Of the metrics that programs of karpathy's kind print, those that tell of memory, size and speed."""

HOOK_NOTES = 3
"""The latest that hooks said: while a model is away, or search has the turns, they would fill its next prompt."""
LOG_LINES = 6
_LOG_BYTES = 8 * 1024


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn. parent: a commit; node: the experiment whose commit that is, where it was selected from the tree.

    first: number of the round's first experiment, −1 until that is known; left: members of the round still to come.
    """

    parent: str
    role: str = ""
    reason: str = ""
    node: int | None = None
    first: int = -1
    left: int = 0
    state: ResearchState | None = None


class Turns:
    """Gives turns, for one segment. Owned by the loop's thread."""

    def __init__(self, view: SessionView) -> None:
        self._view, self._context = view, view.context
        self._pending: Turn | None = None
        self._given: dict[int, Turn] = {}
        self._round: Turn | None = None
        self._tree: Tree | None = None

    def next_parent(self) -> str:
        """Decide on the next turn; the commit that it builds on."""
        if self._round is not None and self._round.left > 0:
            self._pending = self._round
        else:
            self._pending, self._round = self._fresh(), None
        return self._pending.parent

    def turn_of(self, e: Experiment) -> Turn:
        """The turn of an experiment; one that was found open after a restart is given its turn anew."""
        if e.number in self._given:
            return self._given[e.number]
        self._given = {n: turn for n, turn in self._given.items() if n > self._view.last}
        if e.proposal is not None:  # found after a restart: its turn has been taken
            return self._given.setdefault(e.number, Turn(e.parent, e.proposal.role, first=e.number))
        turn = self._pending if self._pending is not None and self._pending.parent == e.parent else None
        if turn is not None and turn is self._round:
            self._round = replace(turn, left=turn.left - 1)
        if turn is None:
            fresh = self._fresh()
            turn = fresh if fresh.parent == e.parent else replace(fresh, parent=e.parent, node=None)
        if turn.first < 0:
            turn = replace(turn, first=e.number)
            self._announce(e, turn)
        self._pending, self._given[e.number] = None, turn
        return turn

    def freeze(self, e: Experiment, state: ResearchState) -> None:
        group, turn = self._context.task.proposing.group, self._given[e.number]
        if group > 1 and turn.first == e.number and turn.state is None:
            self._round = replace(turn, state=state, left=group - 1)

    def _fresh(self) -> Turn:
        context, task, view = self._context, self._context.task, self._view
        parent = view.parent
        if view.needs_baseline:
            return Turn(parent)
        roles = [role.name for role in task.roles]
        tens = view.streak // LONG_STREAK
        # a round may have stepped over the tenth
        streak = tens * LONG_STREAK if tens > max(0, view.streak - task.proposing.group) // LONG_STREAK else 0
        turns = context.store.role_turns(context.session_id, REMEMBERED) if roles else ()
        past = [(role, float(kept)) for _, role, kept in turns]
        seed = context.random_seed(view.totals.experiments, "turn")
        bandit = task.proposing.turns == "bandit"
        chosen = next_turn(streak, roles, task.proposing.parents, past, seed, bandit=bandit)
        if chosen.parent != PUCT:
            return Turn(parent, chosen.role, chosen.reason)
        if task.history == "revert":  # a linear history has no other parent to choose
            return Turn(parent, chosen.role)
        node, parent = self._select()
        return Turn(parent, chosen.role, chosen.reason, node)

    def _select(self) -> tuple[int, str]:
        """An experiment of this segment, by the tree of all that were measured, and its commit."""
        store, session_id = self._context.store, self._context.session_id
        if self._tree is None:
            self._tree = Tree(maximize=self._context.task.metric.direction is Direction.MAXIMIZE)
            self._tree.visited(store.visits(session_id))
        self._tree.add(store.tree(session_id, self._view.segment, self._tree.newest))
        number = self._tree.select()
        commit = store.experiment(session_id, number).commit
        return (number, commit) if commit is not None else (self._view.tip.number, self._view.parent)

    def _announce(self, e: Experiment, turn: Turn) -> None:
        """Say where a turn is out of the ordinary, and count the visit."""
        if turn.node is not None:
            self._context.store.add_visit(self._context.session_id, turn.node)
            if self._tree is not None:
                self._tree.visited({turn.node: 1})
        if turn.reason:
            self._context.emit(EventKind.TURN, turn.reason, experiment=e.number)


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
        stale = [note.id for note in notes if note.text.startswith(HOOK_SAYS)][:-HOOK_NOTES]
        again = f"/{repair.attempt}" if repair else ""
        return ResearchState(
            tag=tag,
            number=e.number,
            parent=e.parent,
            task=view.shown_task,
            code=view.programs.code(e.parent),
            recent=view.recent,
            top=view.top,
            own=self._of_role(turn.role),
            baseline=view.baseline.value if view.baseline else None,
            incumbent_value=view.best,
            sigma=view.sigma,
            notes=tuple(note.text for note in notes if note.id not in stale),
            diagnostics=self._diagnostics(),
            role=turn.role,
            seed=context.random_seed(e.number, "policy" if repair is None else f"repair {repair.attempt}"),
            state_id=f"{tag}/{e.number}{again}",
            round_id=f"{tag}/{turn.first}" + (f"/{e.number}{again}" if repair else ""),
            incumbent=view.tip_commit,
            failures=dict(view.labels),
            streak=view.streak,
            under_way=self._under_way(e),
            memo=context.memo.read(),
            repair=repair,
            redactor=context.redactor,
        )

    def _under_way(self, e: Experiment) -> tuple[Experiment, ...]:
        if self._context.slots == 1:
            return ()
        others = (x for x in self._view.under_way() if x.number != e.number and not x.decision)
        return tuple(x for x in others if x.proposal and x.proposal.files)

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
        memo.keep_up(self._context.task, learnings(view.recent, view.top, dict(view.labels), sigma=view.sigma))
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
        view, facts = self._view, dict[str, Any](self._facts)
        latest = next((e for e in reversed(view.recent) if e.good_runs), None)
        for name, e in (("run of the tip", None if view.needs_baseline else view.tip), ("latest run", latest)):
            if e is not None and e.good_runs:
                good = e.good_runs[-1]
                known = [f"{metric} {good.metrics[metric]:.6g}" for metric in SHOWN_METRICS if metric in good.metrics]
                facts[name] = ", ".join([f"experiment {e.number}", f"{good.duration_s:.1f} s", *known])
        failed = [run for e in view.recent if (run := e.last_own) is not None and run.detail]
        if failed:
            facts["last_failure"] = failed[-1].detail
            facts["last_failure_log"] = " | ".join(training_log(view, failed[-1], LOG_LINES, _LOG_BYTES))
        return {name: value for name, value in facts.items() if value}


def training_log(view: SessionView, run: Run, lines: int, most: int) -> Sequence[str]:
    """The end of what training printed; nothing of the evaluation, which has seen private data."""
    path = view.context.site.run_dir(run.experiment, run.index) / "training.log"
    return last_lines(read_tail(path, most))[-lines:]
