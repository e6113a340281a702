"""Every bundled policy passes the contract suite that plug-in authors use."""

from __future__ import annotations

from autoresearchd.domain.ports import Policy, TrialHistory
from autoresearchd.policy.command_policy import CommandPolicy
from autoresearchd.policy.search.search_policies import RandomPolicy, SearchPolicy
from tests.contract.policy_contract import PolicyContract
from tests.fakes.repositories import write_files


class TestSearch(PolicyContract):
    def make_policy(self, history: TrialHistory) -> Policy:
        return SearchPolicy(history)


class TestRandom(PolicyContract):
    def make_policy(self, history: TrialHistory) -> Policy:
        return RandomPolicy()


class TestCommand(PolicyContract):
    def make_policy(self, history: TrialHistory) -> Policy:
        command = (
            """sed -i 's/DEPTH = 4/DEPTH = 5/' train.py; echo '{"hypothesis": "deeper", "description": "DEPTH 5"}'"""
        )
        return CommandPolicy(command, lambda state, folder: write_files(folder, state.code))
