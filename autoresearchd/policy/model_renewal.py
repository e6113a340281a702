"""A policy whose local model follows the versions that are promoted, from one experiment to the next."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from autoresearchd.domain.ports import Cancel, Policy
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.research_state import ResearchState


@runtime_checkable
class Renewable(Protocol):
    """A model's client that answers with the version in use as of the latest ``renew``."""

    def renew(self) -> None:
        """Look before the next question which version is in use."""
        ...


@runtime_checkable
class Unloadable(Protocol):
    """A model's client that holds the model in this process."""

    def unload(self) -> None:
        """Give back what the model takes in memory; it is loaded again at the next question."""
        ...


class Following:
    """Has a client look which version is in use before each round, and never in the middle of one.

    All proposals of a round, and the repairs of each, come from one version: as a group they are learned from.

    policy: asks the client. client: of the local model.
    """

    def __init__(self, policy: Policy, client: Renewable) -> None:
        self._policy, self._client = policy, client
        self._round = ""

    @property
    def name(self) -> str:
        """The policy's."""
        return self._policy.name

    @property
    def repairs(self) -> int:
        """The policy's."""
        return self._policy.repairs

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        """The policy's proposal, from the version that was in use when the round began."""
        if state.repair is None and (not state.round_id or state.round_id != self._round):
            self._client.renew()
            self._round = state.round_id
        return self._policy.propose(state, cancel)
