"""Another policy changes the structure of a program; a search tunes the constants around what was kept of it."""

from __future__ import annotations

from contextlib import suppress

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.labels import Status
from autoresearchd.domain.ports import Cancel, Policy, ResearchState
from autoresearchd.domain.proposal import Proposal

_TURNS = 4
"""Of the search after each keep of the other policy: in simulated programs most of what it brings comes in these."""


class HybridPolicy:
    """Another policy proposes; after each of its keeps, unless it fell, the search has some turns on what was kept.

    Its name is that of the other policy, which repairs its own proposals and no others. It remembers nothing itself.
    """

    def __init__(self, other: Policy, search: Policy) -> None:
        self._other, self._search = other, search
        self.name, self.repairs = other.name, other.repairs

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        """By the search where it has turns left and constants that it can change; else by the other policy."""
        if state.repair is None and self._tunes(state):
            with suppress(PolicyError):  # else the other one, which did not fail, would get no turn
                return self._search.propose(state, cancel)
        return self._other.propose(state, cancel)

    def _tunes(self, state: ResearchState) -> bool:
        """Whether the other policy's last keep has had fewer turns than it is to have."""
        turns = 0
        for e in reversed((*state.recent, *state.under_way)):
            if e.proposal is not None and e.proposal.policy == self._search.name:
                turns += 1
            elif e.number and e.decision is not None and e.decision.status is Status.KEEP:
                return turns < _TURNS and e.confirmed is not False
        return False
