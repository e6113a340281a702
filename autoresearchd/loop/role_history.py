"""What each role proposed itself, as far back as its own last experiments lie, kept in memory."""

from __future__ import annotations

from collections import deque

from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import Phase
from autoresearchd.loop.context import Context


class RoleHistory:
    """The last experiments of each role: read from the store at its first turn, then kept up. Owned by the loop."""

    def __init__(self, context: Context, most: int) -> None:
        self._context, self._most = context, most
        self._of: dict[str, deque[Experiment]] = {}

    def before(self, role: str, number: int) -> tuple[Experiment, ...]:
        """What a role proposed before an experiment, oldest first: all that is known of its last ones.

        Those from ``number`` on count towards the bound: the more of them there are, the fewer come from before.
        """
        return tuple(e for e in self._known(role) if e.number < number) if role else ()

    def decided(self, e: Experiment) -> None:
        """A decision is on disk."""
        role = e.proposal.role if e.proposal is not None else ""
        if role in self._of:
            self._of[role].append(e)

    def _known(self, role: str) -> deque[Experiment]:
        if role not in self._of:
            # The store walks back until it has found so many: more than there are would take it to the beginning.
            count = self._context.store.role_stats(self._context.session_id).get(role, (0, 0, 0.0))[0]
            most = min(self._most, count)
            found = self._context.store.experiments(self._context.session_id, last=most, role=role) if most else ()
            self._of[role] = deque((e for e in found if e.phase is Phase.DECIDED), maxlen=self._most)
        return self._of[role]
