"""The first steps of an experiment: asking the policy, writing down what it gave, and giving a failed edit back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoresearchd.domain.events import EventKind
from autoresearchd.domain.experiment import Decision, Experiment, Run
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.proposal import ASI, Cost, Proposal, Repair
from autoresearchd.errors import PolicyError, SpendCapReached
from autoresearchd.evaluator.decide import decide_failed_proposal
from autoresearchd.evaluator.failure import is_simple, last_lines
from autoresearchd.evaluator.legality import check_edit, code_hash
from autoresearchd.evaluator.secrets import check_no_secret
from autoresearchd.loop import words
from autoresearchd.loop.artifacts import read_tail
from autoresearchd.loop.context import Context
from autoresearchd.loop.standing import Standing, is_baseline
from autoresearchd.policy.measured_constants import LEAVES_ALONE, changed, named
from autoresearchd.policy.roles import off_surface

LOG_LINES = 40
MOST_FLAGGED = 1000
REFUSED = "refused"
"""Key of the side information under which a failed proposal keeps its label."""
_LOG_BYTES = 64 * 1024


class Proposals:
    """What is proposed, for one experiment at a time. seconds: what the policy took for the experiment under way."""

    def __init__(self, context: Context, standing: Standing) -> None:
        self._context, self._standing = context, standing
        self._hash: tuple[int, int, str] | None = None
        self._diff: tuple[int, str] | None = None
        self.seconds = 0.0

    def ask(self, e: Experiment, repair: Repair | None = None) -> Proposal:
        """A legal proposal; PolicyError when there is none."""
        state = self._standing.state(e, repair)
        started = self._context.clock.monotonic()
        try:
            proposal = self._context.policy.propose(state, self._context.stop.now)
        finally:
            self.seconds += self._context.clock.monotonic() - started
        try:
            check_edit(
                self._context.task, state.code, {**state.code, **proposal.files}, required=self._standing.required
            )
            check_no_secret(self._context.redactor, state.code, proposal.files)
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
        extra["claimed_parent"], extra["incumbent"] = proposal.parent or e.parent, self._standing.parent
        outside = off_surface(role, before, {**before, **proposal.files})
        if outside:
            extra["off_surface"] = ", ".join(outside)[:MOST_FLAGGED]
        return replace(proposal, asi=replace(proposal.asi, extra=extra))

    def _warned(self, e: Experiment, proposal: Proposal, before: Mapping[str, str]) -> Proposal:
        """With a warning where an edit changes what makes, splits or measures the data of a score of its own."""
        if proposal.policy in LEAVES_ALONE:  # a look at the program costs up to some tenths of a second
            return proposal
        found = changed(self._context.task, before, {**before, **proposal.files})
        if not found:
            return proposal
        warning = self._context.redactor.text(f"it changes {named(found)}")[:MOST_FLAGGED]
        self._context.emit(EventKind.WARNING, f"warning: {warning}", experiment=e.number)
        return replace(proposal, asi=replace(proposal.asi, extra={**proposal.asi.extra, "warning": warning}))

    def record(self, e: Experiment, proposal: Proposal) -> Experiment:
        """Write a proposal down."""
        context, before = self._context, self._standing.code(e.parent)
        diff = words.unified_diff(before, {**before, **proposal.files})
        self._hash = None
        e = context.store.record_proposal(
            context.session_id, e.number, proposal, diff=diff, code_hash=self._code_hash(e, proposal)
        )
        self._diff = (e.number, context.redactor.text(diff))
        if proposal.policy == context.policy.name:  # who stands in for it, as search does, reads no notes
            self._standing.notes_shown(e)
        context.emit(
            EventKind.PROPOSED,
            proposal.description or proposal.hypothesis,
            experiment=e.number,
            description=proposal.description,
            hypothesis=proposal.hypothesis,
            seconds=self.seconds,
            role=proposal.role,
            attempt=proposal.attempt,
        )
        return e

    def refuse(self, e: Experiment, error: PolicyError) -> Experiment:
        """Write down that there is no proposal, and what it cost all the same."""
        failed = Proposal(
            {},
            "",
            self._context.policy.name,
            words.failed_proposal(error),
            role=self._standing.turns.of(e, self._standing).role,
            asi=ASI(extra={REFUSED: error.label.value}),
            cost=error.cost or Cost(seconds=self.seconds),
            charged=error.cost is not None and error.charged,
        )
        return self._context.store.record_proposal(
            self._context.session_id, e.number, failed, diff="", code_hash=f"{e.segment}:none:{e.number}"
        )

    def refusal(self, e: Experiment) -> Decision | None:
        """The decision on a failed proposal whose daemon died before it was decided; None for any other."""
        proposal = words.proposal_of(e)
        label = proposal.asi.extra.get(REFUSED)
        if proposal.files or label not in set(Label):
            return None
        return decide_failed_proposal(Label(label), proposal.description)

    def mend(self, e: Experiment, decision: Decision) -> Experiment | Decision:
        """Give a proposal that failed for a simple reason back to its policy: the experiment with a further attempt.

        The decision where it is to stand: the failure is not simple, it was given back often enough, or nothing better
        came of it.
        """
        attempt, policy = words.proposal_of(e).attempt + 1, self._context.policy
        run = e.last_own
        simple = run is not None and decision.label is Label.ERROR and is_simple(run.detail)
        if run is None or not simple or attempt > policy.repairs:
            return decision
        failed = words.proposal_of(e)
        log = self._log(run)
        repair = Repair(attempt, failed.files, decision.label.value, decision.reason, log, failed.description)
        self._context.emit(
            EventKind.REPAIR,
            f"given back to be mended ({attempt} of {policy.repairs}): {run.detail}",
            experiment=e.number,
            attempt=attempt,
        )
        try:
            mended = self.ask(e, repair)
        except SpendCapReached as error:
            if not error.whole_session:
                raise
            return replace(decision, reason=f"{decision.reason} Not given back to be mended: {error.what}.")
        except PolicyError as error:
            reason = f"{decision.reason} Given back to be mended, in vain: {words.failed_proposal(error)}."
            return replace(decision, reason=reason)
        return self.record(e, mended)

    def _log(self, run: Run) -> str:
        """The end of what the training printed; nothing of the evaluation, which may have seen private data."""
        text = read_tail(self._context.site.run_dir(run.experiment, run.index) / "training.log", _LOG_BYTES)
        return "\n".join(last_lines(text)[-LOG_LINES:])

    def twin(self, e: Experiment) -> int | None:
        """An earlier experiment of this segment with the same program; the baseline has none."""
        proposal = words.proposal_of(e)
        if is_baseline(e):
            return None
        twin = self._context.store.find_duplicate(self._context.session_id, self._code_hash(e, proposal))
        return twin if twin is not None and twin != e.number else None

    def diff(self, e: Experiment) -> str | None:
        """The diff of the proposal as the store has it, where it was written down by this object."""
        return self._diff[1] if self._diff is not None and self._diff[0] == e.number else None

    def commit(self, e: Experiment) -> str:
        """The proposal as a commit on the experiment's parent; for the baseline the parent itself."""
        if is_baseline(e):
            return e.parent
        return self._write(e, e.parent, words.commit_message(e, self._context.task))

    def commit_kept(self, e: Experiment, decision: Decision) -> str:
        """The tested tree with the result in its message, on the incumbent, so that the branch holds keeps only."""
        assert decision.status is Status.KEEP
        if is_baseline(e):
            return words.commit_of(e)
        return self._write(e, self._standing.base(e), words.commit_message(e, self._context.task, decision))

    def _write(self, e: Experiment, on: str, message: str) -> str:
        files = words.proposal_of(e).files
        if on != e.parent:
            files = {**self._standing.code(e.parent), **files}
        return self._context.workspace.commit(
            number=e.number, parent=on, files=files, message=self._context.redactor.text(message), when=e.started_at
        )

    def _code_hash(self, e: Experiment, proposal: Proposal) -> str:
        """Hash of the editable files after the edit, with the segment.

        The same program may be measured again in another.
        """
        if self._hash is None or self._hash[:2] != (e.number, proposal.attempt):
            text = {**self._standing.code(e.parent), **proposal.files}
            self._hash = (e.number, proposal.attempt, f"{e.segment}:{code_hash(text)}")
        return self._hash[2]
