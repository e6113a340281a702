"""The first steps of an experiment: asking the policy, writing down what it gave, and giving a failed edit back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from autoresearchd.domain.errors import PolicyError, SpendCapReached
from autoresearchd.domain.events import EventKind
from autoresearchd.domain.experiment import Decision, Experiment
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.proposal import ASI, Cost, Proposal, Repair
from autoresearchd.evaluator.keep.decide import decide_failed_proposal
from autoresearchd.evaluator.measure.measurement import is_simple
from autoresearchd.evaluator.rules.legality import check_edit, check_no_secret, code_hash, required_symbols
from autoresearchd.loop import messages
from autoresearchd.loop.measuring.run_files import read_sources
from autoresearchd.loop.messages import is_baseline
from autoresearchd.loop.proposing.build_state import Research, training_log
from autoresearchd.loop.proposing.experiment_turns import Turns
from autoresearchd.loop.session_view import SessionView
from autoresearchd.loop.slot import Slot
from autoresearchd.policy.policy_names import TUNERS
from autoresearchd.policy.roles import off_surface
from autoresearchd.policy.search.program_constants import changed, named

LOG_LINES = 40
MOST_FLAGGED = 1000
REFUSED = "refused"
"""Key of the side information under which a failed proposal keeps its label."""
_LOG_BYTES = 64 * 1024


class Proposals:
    """What is proposed, and made into commits."""

    def __init__(self, view: SessionView, research: Research, turns: Turns) -> None:
        self._view, self._context, self._research, self._turns = view, view.context, research, turns

    @cached_property
    def _required(self) -> Mapping[str, frozenset[str]]:
        """For each editable file the names that the protected programs take from it."""
        return required_symbols(self._context.task, read_sources(self._context.task, self._context.site.pristine))

    def ask(self, e: Experiment, slot: Slot, repair: Repair | None = None) -> Proposal:
        """A legal proposal; PolicyError when there is none."""
        context, state = self._context, self._research.state(e, repair)
        started = context.clock.monotonic()
        try:
            proposal = context.policy.propose(state, context.stop.now)
        finally:
            slot.policy_s += context.clock.monotonic() - started
        try:
            check_edit(context.task, state.code, {**state.code, **proposal.files}, required=self._required)
            check_no_secret(context.redactor, state.code, proposal.files)
        except PolicyError as error:  # what cannot be used has cost no less
            error.cost, error.charged = proposal.cost, proposal.charged
            raise
        proposal = replace(proposal, attempt=0 if repair is None else repair.attempt, role=proposal.role or state.role)
        return self._flagged(e, proposal, state.code)

    def _flagged(self, e: Experiment, proposal: Proposal, before: Mapping[str, str]) -> Proposal:
        """With what it changes of what is measured and, where it is a role's, claims and does outside of it."""
        proposal = self._warned(e, proposal, before)
        role = next((r for r in self._context.task.roles if r.name == proposal.role), None)
        if role is None:
            return proposal
        extra = dict(proposal.asi.extra)
        extra["claimed_parent"], extra["incumbent"] = proposal.parent or e.parent, self._view.parent
        outside = off_surface(role, before, {**before, **proposal.files})
        if outside:
            extra["off_surface"] = ", ".join(outside)[:MOST_FLAGGED]
        return replace(proposal, asi=replace(proposal.asi, extra=extra))

    def _warned(self, e: Experiment, proposal: Proposal, before: Mapping[str, str]) -> Proposal:
        """With a warning where an edit changes what makes, splits or measures the data of a score of its own."""
        if proposal.policy in TUNERS:  # their space has none of these; a look costs some tenths of a second
            return proposal
        found = changed(self._context.task, before, {**before, **proposal.files})
        if not found:
            return proposal
        warning = self._context.redactor.text(f"it changes {named(found)}")[:MOST_FLAGGED]
        self._context.emit(EventKind.WARNING, f"warning: {warning}", experiment=e.number)
        return replace(proposal, asi=replace(proposal.asi, extra={**proposal.asi.extra, "warning": warning}))

    def record(self, e: Experiment, slot: Slot, proposal: Proposal) -> Experiment:
        """Write a proposal down."""
        context, before = self._context, self._view.programs.code(e.parent)
        diff = messages.unified_diff(before, {**before, **proposal.files})
        code_hash = self._code_hash(e, proposal)
        e = context.store.record_proposal(context.session_id, e.number, proposal, diff=diff, code_hash=code_hash)
        if proposal.policy == context.policy.name:  # who stands in for it, as search does, reads no notes
            self._research.mark_notes_seen(e)
        context.emit(
            EventKind.PROPOSED,
            proposal.description or proposal.hypothesis,
            experiment=e.number,
            description=proposal.description,
            hypothesis=proposal.hypothesis,
            seconds=slot.policy_s,
            role=proposal.role,
            attempt=proposal.attempt,
        )
        return e

    def record_failure(self, e: Experiment, slot: Slot, error: PolicyError) -> Experiment:
        """Write down that there is no proposal, and what it cost all the same."""
        failed = Proposal(
            {},
            "",
            self._context.policy.name,
            messages.failed_proposal(error),
            role=self._turns.turn_of(e).role,
            asi=ASI(extra={REFUSED: error.label.value}),
            cost=error.cost or Cost(seconds=slot.policy_s),
            charged=error.cost is not None and error.charged,
        )
        return self._context.store.record_proposal(
            self._context.session_id, e.number, failed, diff="", code_hash=f"{e.segment}:none:{e.number}"
        )

    def rejection(self, e: Experiment) -> Decision | None:
        """The decision on a proposal that needs no run, also where its daemon died before it was decided."""
        proposal = messages.proposal_of(e)
        label = proposal.asi.extra.get(REFUSED)
        if not proposal.files and label in set(Label):
            return decide_failed_proposal(Label(label), proposal.description)
        if is_baseline(e):
            return None
        twin = self._context.store.find_duplicate(self._context.session_id, self._code_hash(e, proposal))
        if twin is None or twin == e.number:
            return None
        reason = f"The same program as experiment {twin}; no run was spent on it."
        return Decision(Status.DISCARD, Label.DUPLICATE, reason=reason)

    def repair(self, e: Experiment, slot: Slot, decision: Decision) -> Experiment | Decision:
        """Give a proposal that failed for a simple reason back to its policy: the experiment with a further attempt.

        The decision where it is to stand: the failure is not simple, it was given back often enough, or nothing better
        came of it.
        """
        attempt, policy = messages.proposal_of(e).attempt + 1, self._context.policy
        run = e.last_own
        simple = run is not None and decision.label is Label.ERROR and is_simple(run.detail)
        if run is None or not simple or attempt > policy.repairs:
            return decision
        failed = messages.proposal_of(e)
        log = "\n".join(training_log(self._view, run, LOG_LINES, _LOG_BYTES))
        repair = Repair(attempt, failed.files, decision.label.value, decision.reason, log, failed.description)
        self._context.emit(
            EventKind.REPAIR,
            f"given back to be fixed ({attempt} of {policy.repairs}): {run.detail}",
            experiment=e.number,
            attempt=attempt,
        )
        try:
            repaired = self.ask(e, slot, repair)
        except SpendCapReached as error:
            if not error.whole_session:
                raise
            return replace(decision, reason=f"{decision.reason} Not given back to be fixed: {error.what}.")
        except PolicyError as error:
            reason = f"{decision.reason} Given back to be fixed, in vain: {messages.failed_proposal(error)}."
            return replace(decision, reason=reason)
        return self.record(e, slot, repaired)

    def commit(self, e: Experiment) -> str:
        """The proposal as a commit on the experiment's parent; for the baseline the parent itself."""
        if is_baseline(e):
            return e.parent
        return self._write(e, e.parent, messages.commit_message(e, self._context.task))

    def commit_kept(self, e: Experiment, decision: Decision) -> str:
        """The tested tree with the result in its message, on the incumbent, so that the branch holds keeps only."""
        assert decision.status is Status.KEEP
        if is_baseline(e):
            return messages.commit_of(e)
        return self._write(e, self._view.base(e), messages.commit_message(e, self._context.task, decision))

    def _write(self, e: Experiment, on: str, message: str) -> str:
        files = messages.proposal_of(e).files
        if on != e.parent:
            files = {**self._view.programs.code(e.parent), **files}
        return self._context.workspace.commit(
            number=e.number, parent=on, files=files, message=self._context.redactor.text(message), when=e.started_at
        )

    def _code_hash(self, e: Experiment, proposal: Proposal) -> str:
        """Hash of the editable files after the edit, with the segment: in another it may be measured again."""
        return f"{e.segment}:{code_hash({**self._view.programs.code(e.parent), **proposal.files})}"
