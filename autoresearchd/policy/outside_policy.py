"""The policy ``outside``: all proposals come from a coding agent. The loop takes them, and begins nothing before."""

from __future__ import annotations

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.ports import Cancel, ResearchState
from autoresearchd.domain.proposal import Proposal
from autoresearchd.policy.policy_names import OUTSIDE


class OutsidePolicy:
    """Proposes nothing itself. It is asked only where the tip moved after an experiment was begun for a proposal."""

    name, repairs = OUTSIDE, 0

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        raise PolicyError("no proposal from outside fits this experiment any more", label=Label.NO_OP)
