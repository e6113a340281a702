"""Every bundled policy passes the contract suite that plug-in authors use."""

from __future__ import annotations

from pathlib import Path

from autoresearchd.domain.ports import Policy, ResearchState, TrialHistory
from autoresearchd.policy.command_policy import CommandPolicy
from autoresearchd.policy.search.search_policies import RandomPolicy, SearchPolicy
from tests.contract.policy_contract import SAMPLE, PolicyContract
from tests.fakes.policies import ScriptedPolicy


class TestSearch(PolicyContract):
    def make_policy(self, history: TrialHistory) -> Policy:
        return SearchPolicy(history)


class TestRandom(PolicyContract):
    def make_policy(self, history: TrialHistory) -> Policy:
        return RandomPolicy()


class TestCommand(PolicyContract):
    def make_policy(self, history: TrialHistory) -> Policy:
        def materialise(state: ResearchState, folder: Path) -> None:
            for path, text in state.code.items():
                (folder / path).write_text(text, encoding="utf-8")

        command = (
            """sed -i 's/DEPTH = 4/DEPTH = 5/' train.py; echo '{"hypothesis": "deeper", "description": "DEPTH 5"}'"""
        )
        return CommandPolicy(command, materialise)


class TestScripted(PolicyContract):
    def make_policy(self, history: TrialHistory) -> Policy:
        return ScriptedPolicy([SAMPLE.replace("DEPTH = 4", f"DEPTH = {n}") for n in range(5, 20)])

    def test_a_new_object_proposes_the_same_after_a_restart(self) -> None:
        state = self.states()[0]
        assert self.propose(self.make_policy(self), state) == self.propose(self.make_policy(self), state)
