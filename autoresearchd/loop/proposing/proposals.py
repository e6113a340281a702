"""The first steps of an experiment: asking the policy, writing down what it gave, and giving a failed edit back."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from autoresearchd.domain.errors import AutoresearchdError, PolicyError, RepositoryError, SpendCapReached
from autoresearchd.domain.experiment import Decision, Experiment
from autoresearchd.domain.labels import Label, Phase, Status
from autoresearchd.domain.outlook import PASSED_BY, UNUSED
from autoresearchd.domain.ports import EventKind, ResearchState
from autoresearchd.domain.proposal import ASI, KNOWN_VALUE, REBASED, REFUSED, Cost, Proposal, Repair, Suggestion
from autoresearchd.domain.quantities import some_of
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.keep.decide import decide_failed_proposal, sign_of
from autoresearchd.evaluator.keep.tip_belief import look
from autoresearchd.evaluator.measure.measurement import is_simple
from autoresearchd.evaluator.re_added import KEY, Back, Removals
from autoresearchd.evaluator.rules.legality import check_edit, check_no_secret, code_hash, required_symbols
from autoresearchd.loop import messages
from autoresearchd.loop.measuring.run_files import read_sources
from autoresearchd.loop.messages import is_baseline, unified_diff
from autoresearchd.loop.proposing.build_state import Research, Turns, training_log
from autoresearchd.loop.run import Question, Slot
from autoresearchd.loop.session_view import SessionView
from autoresearchd.policy import answer_words
from autoresearchd.policy.edits.merge import merge
from autoresearchd.policy.near_duplicates import WINDOW, NearDuplicates
from autoresearchd.policy.policy_names import OUTSIDE, TUNERS
from autoresearchd.policy.roles import off_surface
from autoresearchd.policy.search.find_constants import MOST_NAMED, changed
from autoresearchd.store.repository import SqlStore

LOG_LINES = 40
MOST_FLAGGED = 1000
_LOG_BYTES = 64 * 1024
_AT_ONCE = 64
PATIENT_SLOTS = 4
"""With so many slots or fewer edits that gained beside other keeps are tried on the tip as soon as they promise as much
as a fresh edit; with more slots they wait for each other in proportion. In sessions of 130 simulated runs four slots
then lose 9% of what one slot gains, and 16 21%."""


def _numbers(found: object) -> list[int]:
    """Experiments that side information names; a model may have put anything there."""
    return [n for n in (found if isinstance(found, list) else [found]) if isinstance(n, int)]


def _of_none(e: Experiment) -> str:
    """In the place of a hash where there is no program: like no other's."""
    return f"{e.segment}:none:{e.number}"


class EditCheck:
    """Knows what may be proposed in a session, and what was tried in it."""

    def __init__(self, task: Task, store: SqlStore, session_id: int, pristine: Path) -> None:
        self._task, self._store, self._session_id, self._pristine = task, store, session_id, pristine
        self._near = NearDuplicates()
        self._removals = Removals(self._texts)
        self._removing = threading.Lock()  # the loop looks at what comes from outside while a policy's thread looks
        self._last: int | None = None
        self._segment = 0

    @cached_property
    def _required(self) -> Mapping[str, frozenset[str]]:
        return required_symbols(self._task, read_sources(self._task, self._pristine))

    def legal(self, state: ResearchState, files: Mapping[str, str]) -> None:
        """Let the changed files of an edit pass, or raise PolicyError with what a model is to be told."""
        self.fits(state.code, files)
        check_no_secret(state.redactor, state.code, files)

    def fits(self, code: Mapping[str, str], files: Mapping[str, str]) -> None:
        """The same for an edit that has passed with another program. PolicyError."""
        check_edit(self._task, code, {**code, **files}, required=self._required)

    def near(self, state: ResearchState, files: Mapping[str, str], changes: Mapping[str, Any]) -> str:
        """What an edit is nearly the same as, or brings back, in words; said once of a program, then it is allowed."""
        self._catch_up(state.number)
        after = {**state.code, **files}
        diff = unified_diff(state.code, after)
        told = self._near.look(diff, changes, state.parent)
        if told:
            told = f"is nearly the same as what has been tried: {told}"
        elif (back := self._brought_back(diff)).due:
            told = back.told
        return told if told and self._near.warn_once(code_hash(after)) else ""

    def re_added(self, before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
        """Side information on an edit that brings back what a keep had removed; empty: it does not."""
        words = self._brought_back(unified_diff(before, after)).words
        return {KEY: words} if words else {}

    def _brought_back(self, diff: str) -> Back:
        with self._removing:
            for number in self._removals.stand(self._store.standing(self._session_id)):
                self._removals.keep(number, self._store.diff(self._session_id, number))
            return self._removals.look(diff)

    def _texts(self, number: int) -> Iterable[str]:
        kept = self._store.experiment(self._session_id, number)
        return kept.proposal.files.values() if kept.proposal else ()

    def _catch_up(self, number: int) -> None:
        segment = self._store.segment(self._session_id)
        if segment is not None and segment.number != self._segment:  # results of another one tell nothing here
            self._near, self._last, self._segment = NearDuplicates(), None, segment.number
        # Whoever stands in for a model may have made any number of experiments since it was asked last.
        count = WINDOW if self._last is None else min(WINDOW, max(_AT_ONCE, number - self._last))
        for e in self._store.experiments(self._session_id, last=count):
            tried = e.phase is Phase.DECIDED and e.proposal is not None and e.commit is not None
            if tried and e.segment == self._segment and (self._last is None or e.number > self._last):
                self._near.add(e, self._store.diff(self._session_id, e.number))
                self._last = e.number


class Proposals:
    """What is proposed, and made into commits."""

    def __init__(self, view: SessionView, research: Research, turns: Turns) -> None:
        self._view, self._context, self._research, self._turns = view, view.context, research, turns
        context = self._context
        self._check = EditCheck(context.task, context.store, context.session_id, context.site.pristine)
        self._asking: Slot | None = None

    def ask(self, e: Experiment, slot: Slot, repair: Repair | None = None) -> Proposal | None:
        """A legal proposal; None: with several slots, whose runs must be looked after, it is not there yet.

        PolicyError when there is none.
        """
        context = self._context
        if slot.asked is None:
            before = self._asking
            if before is not None and before.asked is not None and before.given_up is None:
                return None  # one at a time: what is proposed there is to be in the state here
            slot.asked, self._asking = self._begin(self._research.state(e, repair)), slot
        state, answer = slot.asked.state, slot.asked.answer
        if not answer.done():
            return None
        slot.policy_s += context.clock.monotonic() - slot.asked.began
        slot.asked = None
        proposal = answer.result()
        try:
            self._check.legal(state, proposal.files)
        except PolicyError as error:  # what cannot be used has cost no less
            error.cost, error.charged, error.adapter = proposal.cost, proposal.charged, proposal.adapter
            error.proposal = proposal
            raise
        attempt, after = 0 if repair is None else repair.attempt, {**state.code, **proposal.files}
        extra = {**proposal.asi.extra, **self._said(e, proposal, state.code, after)}
        role = next((r for r in context.task.roles if r.name == (proposal.role or state.role)), None)
        if role is not None and (outside := off_surface(role, state.code, after)):
            extra["off_surface"] = ", ".join(outside)[:MOST_FLAGGED]
        asi = replace(proposal.asi, extra=extra)
        return replace(proposal, attempt=attempt, role=proposal.role or state.role, asi=asi)

    def _begin(self, state: ResearchState) -> Question:
        context, answer = self._context, Future[Proposal]()

        def ask() -> None:
            with context.asking:
                try:
                    answer.set_result(context.policy.propose(state, context.stop.now))
                except BaseException as error:  # noqa: BLE001 raised where the answer is read
                    answer.set_exception(error)

        question = Question(state, context.clock.monotonic(), answer)
        if context.slots == 1:
            ask()
        else:
            threading.Thread(target=ask, name="policy", daemon=True).start()
        return question

    def _said(
        self, e: Experiment, proposal: Proposal, before: Mapping[str, str], after: Mapping[str, str]
    ) -> dict[str, str]:
        """What is to be said of an edit: that it brings lines back, or changes what makes or measures the data.

        The latter, where a score is the task's own, is a warning.
        """
        if proposal.policy in TUNERS:  # their space has none of these; a look costs some tenths of a second
            return {}
        said = self._check.re_added(before, after)
        touched = changed(self._context.task, before, after)
        if not touched:
            return said
        warning = self._context.redactor.text(f"it changes {some_of(touched, MOST_NAMED)}")[:MOST_FLAGGED]
        self._context.emit(EventKind.WARNING, f"warning: {warning}", experiment=e.number)
        return {**said, "warning": warning}

    def take(self, e: Experiment) -> Experiment | None:
        """The experiment with the proposal from outside that has waited longest; None: none waits, or not on the tip.

        It is held to what any proposal is. What cannot be used is written down as such, and waits no longer.
        """
        context = self._context
        waiting = context.store.next_suggestion(context.session_id) if e.parent == self._view.parent else None
        if waiting is None:
            return None
        code = self._view.programs.code(e.parent)
        state = ResearchState(context.tag, e.number, e.parent, context.task, code, redactor=context.redactor)
        who = {"proposer": waiting.proposer} if waiting.proposer else {}
        try:
            files = self._fitted(waiting, e.parent)
            self._check.legal(state, files)
            proposal = answer_words.propose(state, files, {**waiting.said, **who}, OUTSIDE)
            extra = {**proposal.asi.extra, **self._said(e, proposal, code, {**code, **files})}
            proposal = replace(proposal, asi=replace(proposal.asi, extra=extra))
        except PolicyError as error:
            words, asi = messages.failed_proposal(error), ASI(extra={**who, REFUSED: error.label.value})
            proposal = Proposal({}, "", OUTSIDE, words, asi=asi)
        except AutoresearchdError:
            raise
        except Exception as error:  # noqa: BLE001 - recorded; else each experiment from now on would stumble over it
            trace = traceback.format_exc()
            context.emit(EventKind.FAULT, f"{type(error).__name__}: {error}", experiment=e.number, traceback=trace)
            asi = ASI(extra={**who, REFUSED: Label.ERROR.value})
            words = f"it could not be read: {type(error).__name__}"
            proposal = Proposal({}, "", OUTSIDE, words, asi=asi)
        return self.record(e, proposal, waiting.id)

    def _fitted(self, waiting: Suggestion, parent: str) -> Mapping[str, str]:
        """Its files on ``parent``: with what was kept since they were written. PolicyError: the two do not fit."""
        if waiting.parent == parent:
            return waiting.files
        moved = f"the tip has moved on from {waiting.parent[:7]}"
        hint = "read the program anew, and propose it on that"
        try:
            before, now = (self._view.programs.code(commit) for commit in (waiting.parent, parent))
        except RepositoryError as error:
            raise PolicyError(f"{moved}, which is gone", label=Label.MALFORMED_ANSWER, hint=hint) from error
        files = {path: merge(before.get(path, ""), now.get(path, ""), text) for path, text in waiting.files.items()}
        fitting = {path: text for path, text in files.items() if text is not None and text != now.get(path)}
        if None in files.values():
            what = f"{moved}, and what was kept since changes the same lines"
            raise PolicyError(what, label=Label.MALFORMED_ANSWER, hint=hint)
        if not fitting:
            raise PolicyError(f"{moved}, which has this edit already", label=Label.NO_OP)
        return fitting

    def rebase(self, e: Experiment) -> Proposal | None:
        """Edits that gained beside other keeps, on the tip; None: none is worth it.

        They are those whose parent was not the tip any more (``stale_parent``), and what was the tip where an edit on
        an earlier one took its place. Each must go together with what was kept meanwhile. All are tried in one run,
        once they promise more than a fresh edit would.
        """
        view, context = self._view, self._context
        if context.slots == 1 or view.belief is None or e.parent != view.tip_commit:
            return None
        gained = ((old, *self._gained(old, e)) for old in view.recent)
        worth = [(old, made, gain) for old, made, gain in gained if gain > 0]
        least = max(1.0, context.slots / PATIENT_SLOTS) * view.belief.hope
        if worth and sum(gain for _, _, gain in worth) >= least:
            tried = (x.proposal for x in (*view.recent, *view.under_way()) if x.proposal)
            done = {n for proposal in tried for n in _numbers(proposal.asi.extra.get(REBASED))}
            worth = [(old, made, gain) for old, made, gain in worth if old.number not in done]
        if not worth or sum(gain for _, _, gain in worth) < least:
            return None
        now = view.programs.code(e.parent)
        files, used = dict[str, str](), list[Experiment]()
        for old, made, _ in worth:
            if more := self._merged(old.parent, made, {**now, **files}):
                files, used = {**files, **more}, [*used, old]
        return self._again(used, files) if used else None

    def _gained(self, old: Experiment, e: Experiment) -> tuple[str, float]:
        """A commit whose edits are worth a try together with the tip, and what they are expected to bring; 0: none."""
        view, decision = self._view, old.decision
        assert view.belief is not None
        if decision is None or old.parent == e.parent or messages.is_baseline(old):
            return "", 0.0
        since = view.kept_since(old)
        if decision.label is Label.STALE_PARENT:
            gains = sum((k.decision.delta or 0.0) for k in since if k.decision)
            value = sign_of(self._context.task.metric) * messages.value_of(old) + gains
            return old.commit or "", look(view.belief, value).gain
        stands = messages.is_keep(old) and old.confirmed is not False
        displaced = [k for k in since if stands and k.number < old.number]
        gain = sum((k.decision.delta or 0.0) for k in displaced if k.decision)
        return (displaced[-1].commit or "", gain) if displaced else ("", 0.0)

    def _merged(self, base: str, made: str, now: Mapping[str, str]) -> dict[str, str]:
        """The files in which a program differs from ``now`` with the edits from base to made; none: they do not fit."""
        before, edited = self._view.programs.code(base), self._view.programs.code(made)
        merged = {path: merge(before[path], now[path], text) for path, text in edited.items() if text != before[path]}
        files = {path: text for path, text in merged.items() if text is not None and text != now[path]}
        if None in merged.values() or not files:
            return {}
        try:
            self._check.fits(now, files)
        except PolicyError:
            return {}
        return files

    def _again(self, used: Sequence[Experiment], files: Mapping[str, str]) -> Proposal:
        """used: whose edits they are; of a keep that took the tip's place: those of that tip."""
        proposals, numbers = [messages.proposal_of(old) for old in used], [old.number for old in used]
        first, listed = proposals[0], ", ".join(map(str, numbers))
        asi = ASI(first.asi.hypothesis, first.asi.arch_change, extra={REBASED: numbers})
        hypothesis = f"What gained beside other keeps goes together: {listed}."
        words = f"experiments {listed} and the tip"
        if len(used) == 1 and not messages.is_keep(used[0]):
            hypothesis, words = first.hypothesis, first.description or first.hypothesis
            words = f"{words} (experiment {listed} on the tip)"
        known = all(p.changes for p in proposals) and not any(map(messages.is_keep, used))
        changes = {name: value for p in proposals for name, value in p.changes.items()} if known else {}
        return Proposal(files, hypothesis, first.policy, words, changes=changes, role=first.role, asi=asi)

    def record(self, e: Experiment, proposal: Proposal, suggestion: int | None = None) -> Experiment:
        """suggestion: what waited outside and is this proposal."""
        context, before = self._context, self._view.programs.code(e.parent)
        diff = messages.unified_diff(before, {**before, **proposal.files})
        refused = suggestion is not None and not proposal.files
        code_hash = _of_none(e) if refused else self._code_hash(e, proposal)
        e = context.store.record_proposal(
            context.session_id, e.number, proposal, diff=diff, code_hash=code_hash, suggestion=suggestion
        )
        # Who stands in for it, as search does, reads no notes, but where it was asked and passed.
        passed = PASSED_BY in proposal.asi.extra and UNUSED not in proposal.asi.extra
        if proposal.policy == context.policy.name or passed:
            self._research.mark_notes_seen(e)
        context.emit(EventKind.PROPOSED, proposal.description or proposal.hypothesis, experiment=e.number)
        return e

    def record_failure(self, e: Experiment, slot: Slot, error: PolicyError) -> Experiment:
        """Write down that there is no proposal, what it cost all the same, whose answer it was, and what was refused.

        The latter as a diff only: no file of it is ever to be run.
        """
        context, role, refused = self._context, self._turns.turn_of(e).role, error.proposal or Proposal({}, "", "")
        asi = replace(refused.asi, extra={**refused.asi.extra, REFUSED: error.label.value})
        diff = unified_diff(self._view.programs.code(e.parent), refused.files) if refused.files else ""
        cost, charged = error.cost or Cost(seconds=slot.policy_s), error.cost is not None and error.charged
        words = messages.failed_proposal(error)
        failed = Proposal(
            {}, refused.hypothesis, context.policy.name, words, role=role, asi=asi, cost=cost, charged=charged,
            adapter=error.adapter,
        )  # fmt: skip
        return context.store.record_proposal(context.session_id, e.number, failed, diff=diff, code_hash=_of_none(e))

    def rejection(self, e: Experiment) -> tuple[Experiment, Decision] | None:
        """The decision on a proposal that needs no run, also where its daemon died before it was decided.

        The experiment with what is known of its program.
        """
        proposal = messages.proposal_of(e)
        label = proposal.asi.extra.get(REFUSED)
        if not proposal.files and label in set(Label):
            return e, decide_failed_proposal(Label(label), proposal.description)
        if is_baseline(e):
            return None
        store, session = self._context.store, self._context.session_id
        twin = store.find_duplicate(session, self._code_hash(e, proposal))
        if twin is None or twin == e.number:
            return None
        gave, found = "", store.experiment(session, twin).decision
        if found is not None and found.value is not None:
            gave = f", which gave {self._context.task.metric.name} {found.value:.6g}"
            asi = replace(proposal.asi, extra={**proposal.asi.extra, KNOWN_VALUE: found.value})
            e = replace(e, proposal=replace(proposal, asi=asi))
        elif found is not None and found.label:
            gave = f", which ended with {found.label.value}"
        why = f"The same program as experiment {twin}{gave}; no run was spent on it."
        return e, Decision(Status.DISCARD, Label.DUPLICATE, reason=why)

    def repair(self, e: Experiment, slot: Slot, decision: Decision) -> Experiment | Decision:
        """Give a proposal that failed for a simple reason back to its policy; the decision where it is to stand.

        The experiment as it is while the policy is at it.
        """
        failed, run, policy = messages.proposal_of(e), e.last_own, self._context.policy
        attempt = failed.attempt + 1
        if run is None or decision.label is not Label.ERROR or attempt > policy.repairs or not is_simple(run.detail):
            return decision
        if failed.policy != policy.name:  # of one who stands in for it
            return decision
        log = "\n".join(training_log(self._view, run, LOG_LINES, _LOG_BYTES))
        repair = Repair(attempt, failed.files, decision.label.value, decision.reason, log, failed.description)
        told = f"given back to be fixed ({attempt} of {policy.repairs}): {run.detail}"
        if slot.asked is None:
            self._context.emit(EventKind.REPAIR, told, experiment=e.number)
        try:
            repaired = self.ask(e, slot, repair)
        except SpendCapReached as error:
            if not error.whole_session:
                raise
            return replace(decision, reason=f"{decision.reason} Not given back to be fixed: {error.what}.")
        except PolicyError as error:
            reason = f"{decision.reason} Given back to be fixed, in vain: {messages.failed_proposal(error)}."
            return replace(decision, reason=reason)
        return e if repaired is None else self.record(e, repaired)

    def commit(self, e: Experiment) -> str:
        """The proposal as a commit on the experiment's parent; for the baseline the parent itself."""
        if is_baseline(e):
            return e.parent
        return self._write(e, e.parent, messages.commit_message(e, self._context.task))

    def commit_kept(self, e: Experiment, decision: Decision) -> str:
        """The tested tree with the result in its message, on the incumbent, so that the branch holds keeps only."""
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
