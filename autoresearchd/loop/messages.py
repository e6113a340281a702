"""Words about an experiment: diffs, commit messages, lines for people, side information that survives a revert."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from autoresearchd.domain.confirmation import ABLATED, ABLATION, Confirmation, Verdict, ablates
from autoresearchd.domain.errors import PolicyError, StoreError
from autoresearchd.domain.experiment import Decision, Experiment, Measurement, Run
from autoresearchd.domain.labels import Label, Outcome, Phase, Status
from autoresearchd.domain.line_changes import unified
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.domain.quantities import is_whole
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.measure.log_text import shorten, tells
from autoresearchd.workspace.history import commit_message as format_message

T = TypeVar("T")
BASELINE = "baseline"
"""What stands for the policy of an experiment that measures the program as it is."""


def _require(value: T | None, e: Experiment, what: str) -> T:
    if value is None:
        raise StoreError(f"experiment {e.number} is {e.phase.value} but has no {what}")
    return value


def proposal_of(e: Experiment) -> Proposal:
    """The proposal that an experiment of this phase must have."""
    return _require(e.proposal, e, "proposal")


def commit_of(e: Experiment) -> str:
    """The commit that an experiment of this phase must have."""
    return _require(e.commit, e, "commit")


def decision_of(e: Experiment) -> Decision:
    """The decision that an experiment of this phase must have."""
    return _require(e.decision, e, "decision")


def value_of(e: Experiment) -> float:
    """The metric that an experiment must have been decided with."""
    return _require(decision_of(e).value, e, "value")


def is_keep(e: Experiment) -> bool:
    """Whether the experiment was kept."""
    return e.decision is not None and e.decision.status is Status.KEEP


def is_baseline(e: Experiment) -> bool:
    """Whether the experiment measures the program as it is."""
    return e.proposal is not None and e.proposal.policy == BASELINE


def is_settled(e: Experiment) -> bool:
    """Whether it is decided, and branch and folders are as the decision wants them."""
    return e.phase is Phase.DECIDED and e.overhead_ms is not None


def unified_diff(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Unified diff of the editable files, in order of path."""
    return "".join(f"{line}\n" for path in sorted(after) for line in unified(path, before.get(path, ""), after[path]))


def commit_message(e: Experiment, task: Task, decision: Decision | None = None) -> str:
    """Subject, hypothesis and trailers; ``Metric:`` and ``Delta:`` once there is a decision."""
    proposal = proposal_of(e)
    trailers = {"Experiment": str(e.number)}
    if decision is not None and decision.value is not None:
        trailers["Metric"] = f"{task.metric.name}={decision.value:.6g}"
        if decision.delta is not None:
            trailers["Delta"] = f"{decision.delta:+.6g}"
    trailers["Policy"] = proposal.policy
    return format_message(proposal.description or proposal.hypothesis, proposal.hypothesis, trailers)


def failed_proposal(error: PolicyError) -> str:
    """Why there is no proposal, in a few words: the first line of the error, without what the tool printed."""
    return shorten(error.what.split("\n", 1)[0].rstrip(":"), 100)


def describe_decision(e: Experiment, decision: Decision, task: Task) -> str:
    """The decision in one line."""
    what = e.proposal.description or e.proposal.hypothesis if e.proposal else "no proposal"
    label = f"/{decision.label.value}" if decision.label else ""
    reason = decision.reason.removeprefix(f"{decision.label.value}: ")
    value = f"{task.metric.name} {short(decision.value)}" if decision.value is not None else reason
    better = decision.delta is not None and decision.delta > 0 and decision.label is Label.NO_GAIN
    doubt = ", too little" if better else ""  # else a gain that was not kept is a riddle; `show N` tells it all
    delta = f" ({short(decision.delta, sign='+')}{doubt})" if decision.delta is not None else ""
    if tells(reason, what):  # a failed proposal is described by its failure
        what = ""
    return f"{decision.status.value}{label}: {value}{delta}" + (f" · {what}" if what else "")


def short(value: float, sign: str = "-") -> str:
    """A figure with six decimals, an integer with none; one too large for that in the form 1.23457e+08."""
    if is_whole(value):
        return f"{value + 0.0:{sign}.0f}"  # no -0
    return f"{value:{sign}.6f}" if abs(value) < 1e6 else f"{value:{sign}.6g}"


def asi_of(e: Experiment, decision: Decision, task: Task) -> ASI:
    """The policy's own side information, with the result and, where it gave none, a hint for the next attempt."""
    asi = e.proposal.asi if e.proposal else ASI()
    if e.proposal and not asi.hypothesis:
        asi = replace(asi, hypothesis=e.proposal.hypothesis)
    detail = e.last_own.detail if e.last_own else ""
    extra = {**asi.extra, **({"failure": detail[:500]} if detail else {})}
    hint = asi.next_action_hint
    if not hint and decision.status is Status.CRASH:
        hint = "Find out why it failed before trying it again."
    return replace(asi, result=f"{task.metric.name}: {decision.reason}", next_action_hint=hint, extra=extra)


HINTS = {
    Label.DISK_FULL: "free some space; the experiment is run again by itself",
    Label.HOST_LOST: "nothing to do unless it goes on; the experiment is run again by itself",
}
"""What a person can do about a failure of the surroundings."""


def run_started(e: Experiment, run: Run, planned: int) -> str:
    """That a run begins. planned: runs of a baseline."""
    count = len(e.counted_runs) + 1
    return f"training, run {count} of {planned if is_baseline(e) else count}, seed {run.seed}"


ASKED, FAILURES, DOUBT = "asked", "failures", "doubt"
WHY = {
    "gain": "enough was gained since",
    "idle": "nothing new is proposed",
    "limit": "the session ends",
    "stop": "the session stops",
    ASKED: "as asked",
    FAILURES: "all that was tried on it failed",
    DOUBT: "later runs make it doubtful",
    ABLATION: "does it bring anything?",
    ABLATED: "is anything missed of what was dropped?",
}
"""Why a confirmation is made."""


def confirmation_begun(c: Confirmation) -> str:
    """That a chain is to be confirmed."""
    why = WHY.get(ablates(c.why) or c.why, c.why)
    if ablates(c.why):
        return f"running {without(c)} beside experiment {c.against}, which is the whole: {why}"
    return f"confirming experiment {c.experiment} beside experiment {c.against}: {why}"


def confirmation_run_started(c: Confirmation, run: Run) -> str:
    """That a run of a confirmation begins."""
    tip = without(c) if ablates(c.why) else f"experiment {c.experiment}"
    which = tip if run.of is None else f"experiment {c.against} beside it"
    return f"training {which} again, run {len(c.runs) + 1} of the confirmation, seed {run.seed}"


def without(c: Confirmation) -> str:
    """The program that an ablation runs beside the confirmed one."""
    what = f"experiment {c.experiment}" if ablates(c.why) == ABLATION else "what was dropped"
    return f"the confirmed program without {what}"


def of_ablation(c: Confirmation, verdict: Verdict) -> Verdict:
    """A verdict that names the program which ran, and not the experiment that was taken out of it."""
    reason, name = verdict.reason, without(c)
    begin = f"Experiment {c.experiment} "
    reason = f"{name[0].upper()}{name[1:]} {reason.removeprefix(begin)}" if reason.startswith(begin) else reason
    return replace(verdict, reason=reason)


def describe_verdict(c: Confirmation, *, tested: bool) -> str:
    """A verdict in one line. tested: it is about an open chain; else two programs were compared only."""
    verdict = _require_verdict(c)
    if only_looked_after(c) and verdict.gain is not None:
        return f"experiment {c.experiment} still runs: {verdict.reason}"
    if kind := ablates(c.why):
        misses = verdict.outcome is not Outcome.CONFIRMED
        if kind == ABLATED:
            return f"{'all improvements stay' if misses else 'what was dropped is not missed'}: {verdict.reason}"
        return f"experiment {c.experiment} {'stays' if misses else 'brings nothing and is dropped'}: {verdict.reason}"
    if not tested or (verdict.outcome is not Outcome.UNDECIDED and not c.moved):
        return f"compared only: {verdict.reason}"
    if c.why == DOUBT and c.moved:
        return f"experiment {c.experiment} is taken back, experiment {c.against} is the tip again: {verdict.reason}"
    words = {
        Outcome.CONFIRMED: f"experiment {c.experiment} is confirmed, the branch is there",
        Outcome.FELL: f"experiment {c.experiment} fell back with its chain, experiment {c.against} is the tip again",
        Outcome.UNDECIDED: f"experiment {c.experiment} is neither confirmed nor refuted yet",
    }[verdict.outcome]
    return f"{words}: {verdict.reason}"


def only_looked_after(c: Confirmation) -> bool:
    """Whether a confirmed program was run again to see whether it still runs."""
    return c.why == FAILURES and c.pairs is not None


def confirmed_fails(c: Confirmation) -> str:
    """That nothing built on a confirmed program can be kept any more."""
    verdict, who = _require_verdict(c), f"experiment {c.experiment}, which is confirmed,"
    if verdict.outcome is Outcome.UNDECIDED:
        others = f"nor experiment {c.against} runs any more: what they both need is to blame"
        return f"neither {who} {others}. {verdict.reason}"
    return (
        f"{who} no longer runs, so nothing built on it does: "
        f"{verdict.reason} `autoresearchd show {c.experiment}` tells what it changed"
    )


def _require_verdict(c: Confirmation) -> Verdict:
    if c.verdict is None:
        raise StoreError(f"confirmation {c.number} has no verdict")
    return c.verdict


def interrupted(tag: str, what: str) -> str:
    """That something was ended by `stop --now`, and what goes on with it."""
    return f"{what} was interrupted; `autoresearchd resume {tag}` runs it again"


def run_finished(measurement: Measurement, task: Task) -> str:
    """What a run gave."""
    if measurement.label is Label.NONE and measurement.value is not None:
        return f"{task.metric.name} {short(measurement.value)}"
    return measurement.label.value + (f": {measurement.detail}" if measurement.detail else "")
