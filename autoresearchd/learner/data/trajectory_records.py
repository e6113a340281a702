"""From what the store holds of a session to records: which answer earned what, and in which words it was told.

Rewards are those of ``evaluator.reward`` alone. Of the answers to one question:

- one that could not be used (malformed, illegal, no change) earned the penalty of that label, whatever came of the
  experiment later; its feedback is the error that it was sent back with;
- the one that became the proposal earned what the decision says;
- one whose proposal failed and was given back to be fixed earned the penalty of the label under which its run failed;
- one that was not used, though it could have been, was cut off from its outcome when the daemon ended: interrupted.

Answers to an agent are left out. Its proposal is the work of all of its turns, and neither the step that the learner
knows (one question, one answer, one outcome) nor the gate, which asks a question once, can tell what a turn was worth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from autoresearchd.domain.experiment import Decision, Experiment, Run
from autoresearchd.domain.labels import RULES, Label, Status
from autoresearchd.domain.proposal import Answer, Proposal
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.feedback import feedback
from autoresearchd.evaluator.reward import FORMULA, reward
from autoresearchd.learner.data.trajectories import Reason, Record
from autoresearchd.policy.policy_names import PolicySpec
from autoresearchd.store.reader import Transcript

NO_REPLY = "no reply: "
"""How the error of a question begins that was charged but not answered."""

UNREAD = "the answer could not be looked at"
"""The error of an answer whose reading failed for a reason that is not the answer's."""

_NO_OP = ("the edit changes nothing", "the edit in the answer is empty", "the constants have these values already")
_NEAR = "the edit is nearly the same as what has been tried"
_CUT_OFF = re.compile(r"\Ait was cut off at max_tokens \(\d+ tokens\): make a smaller edit\. As it stands: ")
_AGENT = "agent"
_AGENT_FORMS = frozenset({"command", "submit"})


def records(
    session: str, task: Task | None, transcripts: Iterable[Transcript], *, agent: bool = False
) -> tuple[list[Record], int]:
    """Records of all answers of a session, and how many answers could not be read.

    Args:
        session: its name, unique over all places that are read.
        task: the session's; None where it cannot be read: then there is no feedback on decided experiments.
        transcripts: its experiments, in order of number.
        agent: whether its policy is an agent, whatever its answers look like.
    """
    found: list[Record] = []
    lost = 0
    readable: list[tuple[Experiment, Transcript]] = []
    for transcript in transcripts:
        if transcript.experiment is None:
            lost += len(transcript.answers)
        else:
            lost += sum(answer is None for answer in transcript.answers)
            readable.append((transcript.experiment, transcript))
    rounds = _rounds(session, readable)
    for experiment, transcript in readable:
        made = _of_experiment(session, task, experiment, transcript, rounds[experiment.number])
        turn = agent or _of_agent(transcript)
        found += [replace(record, unusable=Reason.AGENT_TURN) for record in made] if turn else made
    return found, lost


def label_of(answer: Answer) -> Label:
    """Why an answer could not be used; the store keeps the words that the model was told."""
    error = _CUT_OFF.sub("", answer.error, count=1)
    if error.startswith(UNREAD):
        return Label.ERROR
    if error.startswith(_NO_OP):
        return Label.NO_OP
    if error.startswith(_NEAR):
        return Label.DUPLICATE
    # An edit that was read, and so has a form, was refused for what it does.
    return Label.ILLEGAL_EDIT if answer.form else Label.MALFORMED_ANSWER


def is_agent(policy: str) -> bool:
    """Whether a policy, by its name, works turn by turn in a shell."""
    return policy.partition(":")[0] == _AGENT


def penalty(label: Label) -> float | None:
    """What the formula gives for a label alone; None where that depends on the value, or there is no reward."""
    found = reward(label, None, None, None)
    return None if found is None else found.total


def is_reply(answer: Answer) -> bool:
    """Whether a model said anything; a question that failed and cost something is stored as an answer too."""
    return bool(answer.generation.completion) or not answer.error.startswith(NO_REPLY)


# ---------------------------------------------------------------------- one experiment
def _of_experiment(
    session: str, task: Task | None, e: Experiment, transcript: Transcript, around: tuple[str, str]
) -> list[Record]:
    given = [answer for answer in transcript.answers if answer is None or is_reply(answer)]
    proposals = {proposal.attempt: proposal for proposal in transcript.proposals}
    last = {answer.attempt: index for index, answer in enumerate(given) if answer is not None}
    found = []
    for index, answer in enumerate(given):
        if answer is None:
            continue
        label, earned, words = _outcome(task, e, answer, proposals, last=index == last[answer.attempt])
        own = proposals.get(answer.attempt) if answer.attempt else None
        round_id, state_id = (own.round_id, own.state_id) if own else around
        decided = not answer.error and earned is not None and answer.attempt == e.attempt
        found.append(
            Record(
                session,
                e,
                answer,
                earned,
                label,
                feedback=words,
                index=index,
                round_id=round_id,
                state_id=state_id,
                unusable=Reason.OTHER_FORMULA if decided and _of_other_formula(e.decision) else None,
            )
        )
    return found


def _outcome(
    task: Task | None, e: Experiment, answer: Answer, proposals: Mapping[int, Proposal], *, last: bool
) -> tuple[Label | None, float | None, str]:
    """Label, reward and feedback of an answer."""
    if e.decision is None:
        return _open_label(e), None, ""
    if answer.error:
        label = label_of(answer)
        return label, None if label is Label.ERROR else penalty(label), answer.error
    proposal = proposals.get(answer.attempt)
    if not last or proposal is None or not _asks_model(proposal.policy):
        return Label.INTERRUPTED, None, ""
    if answer.attempt == e.attempt:
        return e.decision.label, e.decision.reward, "" if task is None else feedback(task, e)
    failed = _failed_run(e.runs, answer.attempt)
    if failed is None:
        return Label.INTERRUPTED, None, ""
    status = RULES[failed.label].status or Status.CRASH
    reason = f"{failed.label.value}: {failed.detail}".rstrip(". ") + "."
    told = replace(e, proposal=proposal, decision=Decision(status, failed.label, reason=reason))
    return failed.label, penalty(failed.label), "" if task is None else feedback(task, told)


def _open_label(e: Experiment) -> Label | None:
    """Why an experiment has not been decided, where its last run says so."""
    label = e.runs[-1].label if e.runs and not e.runs[-1].open else Label.NONE
    return label if RULES[label].status is None else None


def _failed_run(runs: Sequence[Run], attempt: int) -> Run | None:
    """The run for which a proposal was given back."""
    for run in reversed(runs):
        own = run.attempt == attempt and run.of is None and not run.open
        if own and run.label is not Label.NONE and RULES[run.label].status is not None:
            return run
    return None


def _of_other_formula(decision: Decision | None) -> bool:
    return decision is not None and decision.reward_formula != FORMULA


def _asks_model(policy: str) -> bool:
    """Whether a proposal is a model's: once the money is spent, another policy may propose in its place."""
    return PolicySpec(policy.partition(":")[0]).asks_model


def _of_agent(transcript: Transcript) -> bool:
    """Whether an agent was at work: its turns have forms of their own."""
    named = any(is_agent(proposal.policy) for proposal in transcript.proposals)
    return named or any(answer is not None and answer.form in _AGENT_FORMS for answer in transcript.answers)


# ---------------------------------------------------------------------- rounds
def _rounds(session: str, found: Sequence[tuple[Experiment, Transcript]]) -> dict[int, tuple[str, str]]:
    """Round and state of each experiment's first question, by number.

    A proposal tells them. Where no answer could be used there is none; but members of a round are asked the same, to
    the letter, so that it belongs to those next to it that were asked what it was asked.
    """
    rounds: dict[int, tuple[str, str]] = {}
    same: list[tuple[Experiment, Transcript]] = []
    asked: object = None
    for e, transcript in found:
        question = _question(transcript)
        if same and (question is None or question != asked or e.segment != same[0][0].segment):
            rounds |= _of_same(session, same)
            same = []
        asked = question
        same.append((e, transcript))
    return rounds | _of_same(session, same)


def _of_same(session: str, same: Sequence[tuple[Experiment, Transcript]]) -> dict[int, tuple[str, str]]:
    """Rounds of experiments that were asked the same: the unknown ones are of the round before, or else after them."""
    told = [(e.number, _told(transcript)) for e, transcript in same]
    known = [ids for _, ids in told if ids is not None]
    current = known[0] if known else (f"{session}/{same[0][0].number}",) * 2 if same else ("", "")
    rounds: dict[int, tuple[str, str]] = {}
    for number, ids in told:
        current = ids or current
        rounds[number] = current
    return rounds


def _told(transcript: Transcript) -> tuple[str, str] | None:
    """Round and state as the first proposal tells them."""
    first = next((p for p in transcript.proposals if p.attempt == 0), None)
    return (first.round_id, first.state_id) if first is not None and first.round_id and first.state_id else None


def _question(transcript: Transcript) -> object:
    """What the experiment was asked first; None where that is not known."""
    first = next((a for a in transcript.answers if a is None or is_reply(a)), None)
    return None if first is None or first.attempt else first.generation.messages or None
