"""A search that another policy, a model for the most part, may override in a share of the turns.

That a model of 0.8B helps so, and hinders where it edits freely, is found in arXiv:2603.24647; that a good part of what
agents gain is tuning of constants, in arXiv:2605.20086. The share follows what pays (Luce's choice rule on shrunken
means). docs/adr/0057 has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random

from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.errors import EnvironmentFailure, ModelsRefused, Passed, PolicyError, SpendCapReached
from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import NEVER_RUN, Status
from autoresearchd.domain.outlook import PASSED_BY, UNUSED
from autoresearchd.domain.ports import HOOK_SAYS, Cancel, Policy, ResearchState
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.randomness import derive_seed
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
    So it is while the other cannot be asked, which is tried in each of its turns, and said once (``tell``). Its name is
    that of the other policy, which repairs its own proposals and no others. It remembers no experiment itself.
    """

    def __init__(self, other: Policy, search: SearchPolicy, tell: Callable[[str], None] = lambda text: None) -> None:
        self._other, self._search, self._tell = other, search, tell
        self.name, self.repairs = other.name, other.repairs
        self._away = False

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        """By one of the two for all members of a round; by the other policy where there is nothing to tune."""
        if state.repair is not None:
            try:
                return self._ask(state, cancel)
            except EnvironmentFailure as error:
                if not _may_pass(error):
                    raise
                raise PolicyError(f"not repaired: {error.what}", hint=error.hint) from error
        if not self._overrides(state):
            with suppress(PolicyError):  # else the other one, which did not fail, would get no turn
                return self._search.propose(state, cancel)
        with suppress(PolicyError):
            state = replace(state, outlook=self._search.outlook(state))
        try:
            return self._ask(state, cancel)
        except (PolicyError, EnvironmentFailure) as error:
            lost = error.label in NEVER_RUN if isinstance(error, PolicyError) else _may_pass(error)
            if state.outlook is None or not lost:
                raise
            return self._stand_in(state, cancel, error)

    def _ask(self, state: ResearchState, cancel: Cancel) -> Proposal:
        """What the other policy proposes; that it answers again is said."""
        try:
            proposal = self._other.propose(state, cancel)
        except PolicyError:
            self._answered()
            raise
        self._answered()
        return proposal

    def _answered(self) -> None:
        if self._away:
            self._tell(f"{self.name} answers again")
        self._away = False

    def _stand_in(self, state: ResearchState, cancel: Cancel, error: PolicyError | EnvironmentFailure) -> Proposal:
        """The search's proposal, at the cost of an answer that passed or cannot be used, or in the place of one."""
        try:
            proposal = self._search.propose(state, cancel)
        except PolicyError:  # what the other's answer has cost is not lost
            raise error from None
        said = {} if isinstance(error, Passed) else {UNUSED: clean(error.what, MAX_LINE)}
        if isinstance(error, PolicyError):
            said[PASSED_BY] = self.name
            if error.cost is not None:
                proposal = replace(proposal, cost=error.cost, charged=error.charged)
        elif not self._away:
            self._away = True
            self._tell(f"{error.what}; the search goes on, and {self.name} is asked again in its next turn")
        return replace(proposal, asi=replace(proposal.asi, extra={**proposal.asi.extra, **said}))

    def _overrides(self, state: ResearchState) -> bool:
        """Whether it is the other policy's turn: by its share, and always while a person's notes wait for it.

        Of one that is away they wait. It is not while the search has its turns after a keep that changed the structure.
        """
        tuning, search, other = 0, self._search.name, self.name
        parents: set[str] = set()  # of the experiments up to such a keep: who has one of them was under way
        asked, paid = {search: 0, other: 0}, {search: 0.0, other: 0.0}
        for e in (*state.recent, *state.under_way):
            if e.proposal is None or not e.number:
                continue
            kept = e.decision is not None and e.decision.status is Status.KEEP and e.confirmed is not False
            if not tuning:
                parents.add(e.parent)
            if e.proposal.policy != search and kept and not e.proposal.changes:
                tuning = _TURNS
                parents.add(e.parent)
            elif e.proposal.policy == search and tuning and e.parent not in parents:
                tuning -= 1
                continue  # what this brings is neither's alone
            who = other if PASSED_BY in e.proposal.asi.extra else e.proposal.policy
            if e.decision is not None and who in asked:
                asked[who] += 1
                paid[who] += _pay(e, state.sigma) if kept and who == e.proposal.policy else 0.0
        if wanted := not self._away and any(not note.startswith(HOOK_SAYS) for note in state.notes):
            return wanted
        if tuning:
            return False
        usual = (sum(paid.values()) + 0.5) / (sum(asked.values()) + 1)
        rate = {who: (paid[who] + _PRIOR * usual) / (asked[who] + _PRIOR) for who in asked}
        share = min(max(_SHARE * rate[other] / rate[search], _LEAST), _MOST)
        return luck(state.round_seed) < share


def _may_pass(error: EnvironmentFailure) -> bool:
    """Whether waiting may end it; of the others the loop, or the user, knows what to do."""
    return not isinstance(error, (SpendCapReached, ModelsRefused))


def luck(seed: int) -> float:
    """What a turn of that seed draws, 0 to 1: the other policy's is one below its share."""
    return Random(derive_seed(seed, 0, "turn")).random()  # noqa: S311


def _pay(e: Experiment, sigma: float | None) -> float:
    """What a keep pays, 0 to 1."""
    gain = e.decision.delta if e.decision is not None else None
    return 1.0 if not sigma or gain is None else min(max(gain / sigma, 0.0) / _LARGE, 1.0)
