"""Whose turn the next experiment is: its role, the commit that it builds on, and the round that it belongs to.

Members of a round see one frozen state, and build on one commit. All of them are run; each is compared with the best
so far, so the best of them is what stays. A round that a restart interrupts is not gone on with: the next one begins.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from autoresearchd.domain.events import EventKind
from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.research_state import ResearchState
from autoresearchd.domain.task import Direction
from autoresearchd.loop.messages import is_keep
from autoresearchd.loop.session_view import SessionView
from autoresearchd.policy.puct import Tree
from autoresearchd.policy.turn_rules import LONG_STREAK, PUCT, next_turn

REMEMBERED = 400
"""Turns that a bandit is told of: enough for nine roles, of which it forgets the older by itself."""


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
        self._current: tuple[int, Turn] | None = None
        self._round: Turn | None = None
        self._tree: Tree | None = None
        self._tens: int | None = None
        self._paid: deque[tuple[int, str, float]] = deque(maxlen=REMEMBERED)

    def next_parent(self) -> str:
        """Decide on the next turn; the commit that it builds on."""
        if self._round is not None and self._round.left > 0:
            self._pending = self._round
        else:
            self._pending, self._round = self._fresh(), None
        return self._pending.parent

    def turn_of(self, e: Experiment) -> Turn:
        """The turn of an experiment; one that was found open after a restart is given its turn anew."""
        if self._current is not None and self._current[0] == e.number:
            return self._current[1]
        if e.proposal is not None:  # found after a restart: its turn has been taken
            self._current = (e.number, Turn(e.parent, e.proposal.role, first=e.number))
            return self._current[1]
        turn = self._pending if self._pending is not None and self._pending.parent == e.parent else None
        if turn is not None and turn is self._round:
            self._round = replace(turn, left=turn.left - 1)
        if turn is None:
            fresh = self._fresh()
            turn = fresh if fresh.parent == e.parent else replace(fresh, parent=e.parent, node=None)
        if turn.first < 0:
            turn = replace(turn, first=e.number)
            self._announce(e, turn)
        self._pending, self._current = None, (e.number, turn)
        return turn

    def freeze(self, e: Experiment, state: ResearchState) -> None:
        group, turn = self._context.task.proposing.group, self._current[1] if self._current else None
        if group > 1 and turn is not None and turn.first == e.number and turn.state is None:
            self._round = replace(turn, state=state, left=group - 1)

    def _fresh(self) -> Turn:
        context, task, view = self._context, self._context.task, self._view
        parent = view.parent
        if view.needs_baseline:
            return Turn(parent)
        number = view.totals.experiments
        roles = [role.name for role in task.roles]
        tens, streak = view.streak // LONG_STREAK, view.streak
        if self._tens is None:  # a restart at the tenth itself must not step over it
            self._tens = max(0, streak - 1) // LONG_STREAK
        if tens > self._tens:  # a round may have stepped over the tenth
            streak = tens * LONG_STREAK
        elif streak % LONG_STREAK == 0:
            streak += 1
        self._tens = tens
        chosen = next_turn(
            streak,
            roles,
            task.proposing.parents,
            self._past() if roles else (),
            context.random_seed(number, "turn"),
            bandit=task.proposing.turns == "bandit",
        )
        if chosen.parent == PUCT and task.history != "revert":
            node, parent = self._select()
            return Turn(parent, chosen.role, chosen.reason, node)
        as_ever = chosen.parent == PUCT  # a linear history has no other parent to choose
        return Turn(parent, chosen.role, "" if as_ever else chosen.reason)

    def _past(self) -> list[tuple[str, float]]:
        """Role and pay (1 for a keep) of the latest experiments, oldest first; read from the store once."""
        if not self._paid:
            found = self._context.store.role_turns(self._context.session_id, REMEMBERED)
            self._paid.extend((number, role, 1.0 if kept else 0.0) for number, role, kept in found)
        newest = self._paid[-1][0] if self._paid else -1
        late = (e for e in self._view.recent if e.number > newest and e.proposal is not None)
        self._paid.extend((e.number, e.proposal.role if e.proposal else "", 1.0 if is_keep(e) else 0.0) for e in late)
        return [(role, pay) for _, role, pay in self._paid]

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
                self._tree.visit(turn.node)
        if turn.reason:
            self._context.emit(
                EventKind.TURN, turn.reason, experiment=e.number, role=turn.role, parent=turn.parent, node=turn.node
            )
