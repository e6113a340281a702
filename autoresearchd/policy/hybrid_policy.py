"""A search that another policy, a model for the most part, may override in a share of the turns.

That a model of 0.8B helps so, and hinders where it edits freely, is found in arXiv:2603.24647; that a good part of what
agents gain is tuning of constants, in arXiv:2605.20086. The share follows what pays (Luce's choice rule on shrunken
means). docs/adr/0057 has the reasons.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random

from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.errors import Passed, PolicyError
from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import NEVER_RUN, Status
from autoresearchd.domain.outlook import PASSED_BY, UNUSED
from autoresearchd.domain.ports import Cancel, Policy, ResearchState
from autoresearchd.domain.proposal import Proposal
from autoresearchd.policy.answer_words import MAX_LINE
from autoresearchd.policy.search.search_policies import SearchPolicy

_TURNS = 4
"""Of the search after each keep that changed the structure: in simulated programs most of what it brings comes then."""
_SHARE, _LEAST, _MOST = 0.3, 0.1, 0.6
"""Of the other turns that are the other policy's: while both pay the same, and the ends."""
_PRIOR = 8.0
"""How many turns the belief is worth that both pay the same."""
_LARGE = 4.0
"""A keep that brings so many times the noise, or more, pays 1."""


class HybridPolicy:
    """The search proposes; in a share of the turns the other policy does, which is shown what the search would do.

    It may pass: the search's own proposal is run then, and says so, as it does where the other's answer is of no use.
    Its name is that of the other policy, which repairs its own proposals and no others. It remembers nothing itself.
    """

    def __init__(self, other: Policy, search: SearchPolicy) -> None:
        self._other, self._search = other, search
        self.name, self.repairs = other.name, other.repairs

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        """By one of the two for all members of a round; by the other policy where there is nothing to tune."""
        if state.repair is not None:
            return self._other.propose(state, cancel)
        if not self._overrides(state):
            with suppress(PolicyError):  # else the other one, which did not fail, would get no turn
                return self._search.propose(state, cancel)
        with suppress(PolicyError):
            state = replace(state, outlook=self._search.outlook(state))
        try:
            return self._other.propose(state, cancel)
        except PolicyError as error:
            if state.outlook is None or error.label not in NEVER_RUN:
                raise
            return self._stand_in(state, cancel, error)

    def _stand_in(self, state: ResearchState, cancel: Cancel, error: PolicyError) -> Proposal:
        """The search's proposal, at the cost of an answer that passed or cannot be used."""
        proposal = self._search.propose(state, cancel)
        said = {PASSED_BY: self.name}
        if not isinstance(error, Passed):
            said[UNUSED] = clean(error.what, MAX_LINE)
        asi = replace(proposal.asi, extra={**proposal.asi.extra, **said})
        proposal = replace(proposal, asi=asi)
        return proposal if error.cost is None else replace(proposal, cost=error.cost, charged=error.charged)

    def _overrides(self, state: ResearchState) -> bool:
        """Whether it is the other policy's turn: by its share, and always where there are notes, which it alone reads.

        It is not while the search has its turns after a keep that changed the structure.
        """
        tuning, search, other = 0, self._search.name, self.name
        asked, paid = {search: 0, other: 0}, {search: 0.0, other: 0.0}
        for e in (*state.recent, *state.under_way):
            if e.proposal is None or not e.number:
                continue
            kept = e.decision is not None and e.decision.status is Status.KEEP and e.confirmed is not False
            if e.proposal.policy != search and kept and not e.proposal.changes:
                tuning = _TURNS
            elif e.proposal.policy == search and tuning:
                tuning -= 1
                continue  # what this brings is neither's alone
            who = other if PASSED_BY in e.proposal.asi.extra else e.proposal.policy
            if e.decision is not None and who in asked:
                asked[who] += 1
                paid[who] += _pay(e, state.sigma) if kept and who == e.proposal.policy else 0.0
        if state.notes or tuning:
            return bool(state.notes)
        usual = (sum(paid.values()) + 0.5) / (sum(asked.values()) + 1)
        rate = {who: (paid[who] + _PRIOR * usual) / (asked[who] + _PRIOR) for who in asked}
        share = min(max(_SHARE * rate[other] / rate[search], _LEAST), _MOST)
        return Random(state.round_seed).random() < share  # noqa: S311


def _pay(e: Experiment, sigma: float | None) -> float:
    """What a keep pays, 0 to 1."""
    gain = e.decision.delta if e.decision is not None else None
    return 1.0 if not sigma or gain is None else min(max(gain / sigma, 0.0) / _LARGE, 1.0)
