"""The policy ``random``: the same constants as ``search``, moved without looking at any result. The honest floor."""

from __future__ import annotations

import numpy as np

from autoresearchd.domain.labels import Label
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.domain.state import ResearchState
from autoresearchd.errors import Interrupted, PolicyError
from autoresearchd.policy import words
from autoresearchd.policy.program import Program, draw
from autoresearchd.ports import Cancel


class RandomPolicy:
    """Draws one to three constants and their values uniformly; what it draws follows from the state's seed alone."""

    name = "random"
    repairs = 0

    def __init__(self) -> None:
        self._program = Program()

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        """A random change."""
        if cancel.is_set():
            raise Interrupted("the policy was asked to stop")
        parameters = self._program.parameters(state)
        random = np.random.default_rng(state.seed)
        for _ in range(100):
            changes = draw(parameters, random)
            if changes:
                break
        else:
            raise PolicyError("no constant has another value in its range", label=Label.NO_OP)
        moves = [(parameters[name], value) for name, value in changes.items()]
        hypothesis = words.hypothesis(moves, "drawn at random")
        return Proposal(
            files=self._program.files(state, changes),
            hypothesis=hypothesis,
            policy=self.name,
            description=words.subject(moves),
            changes=changes,
            role=state.role,
            asi=ASI(hypothesis=hypothesis, arch_change=words.architecture(moves), next_action_hint=words.hint(moves)),
            state_id=state.state_id,
            round_id=state.round_id,
        )
