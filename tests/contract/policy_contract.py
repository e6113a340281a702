"""What every policy must do, as tests: subclass ``PolicyContract`` in a test module and say how the policy is made.

::

    class TestMine(PolicyContract):
        def make_policy(self, history: TrialHistory) -> Policy:
            return MyPolicy(history)
"""

from __future__ import annotations

import ast
import json
import math
import threading
from collections.abc import Sequence

import pytest

from autoresearchd.domain.errors import Interrupted
from autoresearchd.domain.ports import Policy, ResearchState, TrialHistory
from autoresearchd.domain.proposal import Proposal
from tests.fakes.policies import MemoryHistory, make_state, make_task

SAMPLE = '''"""A program to improve."""

LEARNING_RATE = 3e-4
BATCH_SIZE = 2**6  # rows
DEPTH = 4
BETAS = (0.9, 0.95)
WARMUP_RATIO = 0.0
SEED = 1337


def train() -> float:
    return LEARNING_RATE * BATCH_SIZE * DEPTH * BETAS[0] * BETAS[1] + WARMUP_RATIO + SEED


if __name__ == "__main__":
    print(f"val_loss: {train()}")
'''
HELPER = "# a second editable file\nWIDTH = 64\n"


class PolicyContract:
    """The suite. A policy that asks a model sets ``deterministic`` to False."""

    deterministic = True

    def make_policy(self, history: TrialHistory) -> Policy:
        """A new policy object."""
        raise NotImplementedError

    def states(self) -> Sequence[ResearchState]:
        """States that it is tried on; more than one, to find what it wrongly keeps."""
        task = make_task(editable=("train.py", "model.py"))
        code = {"train.py": SAMPLE, "model.py": HELPER}
        return [make_state(code, number=n, seed=1000 + n, task=task) for n in range(1, 9)]

    def propose(self, policy: Policy, state: ResearchState) -> Proposal:
        return policy.propose(state, threading.Event())

    def test_a_proposal_can_be_run_and_stored_and_belongs_to_its_state(self) -> None:
        policy = self.make_policy(MemoryHistory())
        for state in self.states():
            proposal = self.propose(policy, state)
            assert proposal.files, "a proposal without an edit must be a PolicyError"
            assert set(proposal.files) <= set(state.task.editable)
            for path, text in proposal.files.items():
                assert text != state.code[path]
                if path.endswith(".py"):
                    ast.parse(text)
            subject = proposal.description or proposal.hypothesis
            assert proposal.hypothesis.strip() and subject.strip()
            assert len(subject.splitlines()) == 1 and "\0" not in subject
            json.dumps([dict(proposal.changes), proposal.asi.as_dict()], allow_nan=False).encode()
            assert proposal.expected_delta is None or math.isfinite(proposal.expected_delta)
            assert proposal.policy == policy.name
            assert (proposal.state_id, proposal.round_id) == (state.state_id, state.round_id)

    def test_a_new_object_proposes_the_same_after_a_restart(self) -> None:
        if not self.deterministic:
            return
        old = self.make_policy(MemoryHistory())
        for state in self.states():
            first = self.propose(old, state)
            again = self.propose(self.make_policy(MemoryHistory()), state)
            assert first.files == again.files
            assert first.changes == again.changes

    def test_a_policy_that_is_asked_to_stop_is_interrupted(self) -> None:
        policy, cancel = self.make_policy(MemoryHistory()), threading.Event()
        cancel.set()
        with pytest.raises(Interrupted):
            policy.propose(self.states()[0], cancel)
