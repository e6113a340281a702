"""From a session's confirmed commits to branches that can be reviewed: a stack of improvements with their evidence.

An improvement is what a confirmed experiment changed in the tree of the whole repository. Stacked on another base, or
with some left out, each is merged in turn (three-way, line by line; ``policy/edits/merge.py``), and what comes out is
held against the same merge made in one step before it gets a name.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import fmean

from autoresearchd.domain.confirmation import Confirmation
from autoresearchd.domain.errors import RepositoryError
from autoresearchd.domain.experiment import Experiment, Run
from autoresearchd.domain.labels import Status
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.redaction import Redactor
from autoresearchd.policy.edits.merge import merge
from autoresearchd.workspace.branches import Branches, MergeConflict
from autoresearchd.workspace.history import History, commit_message

_MOST_WORDS = 4000
"""Of a hypothesis in a message: what was measured comes after it, and a message has an end."""
_WIDTH = 100


class Misfit(RepositoryError):
    """An improvement does not go together with what it is to stand on. number: of its experiment."""

    def __init__(self, number: int, conflict: MergeConflict, where: str, *, hint: str) -> None:
        super().__init__(f"experiment {number} does not fit {where}: {conflict.how}", hint=hint)
        self.number, self.path = number, conflict.path


@dataclass(frozen=True, slots=True)
class Improvement:
    """A confirmed keep. before, after: trees; beside: what it was kept on, of the same segment; test: what it passed.

    test: None in sessions of before there were confirmations.
    """

    experiment: Experiment
    commit: str
    before: str
    after: str
    beside: Experiment | None
    test: Confirmation | None

    @property
    def number(self) -> int:
        return self.experiment.number


@dataclass(frozen=True, slots=True)
class Step:
    """An improvement on a stack: the tree with it."""

    improvement: Improvement
    tree: str


@dataclass(frozen=True, slots=True)
class Base:
    """What branches stand on. start: the tree that the improvements were made on, those within the commit included."""

    commit: str
    tree: str
    start: str
    within: Collection[int] = ()


def improvements_of(
    branches: Branches,
    began: str,
    experiments: Sequence[Experiment],
    confirmations: Sequence[Confirmation],
    *,
    baseline: str,
) -> list[Improvement]:
    """The improvements of a session that began at a commit, oldest first. baseline: the policy that baselines have."""
    found, tree = list[Improvement](), branches.tree(began)
    beside: Experiment | None = None
    for e in experiments:
        if not (e.confirmed and e.commit and e.decision and e.decision.status is Status.KEEP):
            continue
        after = branches.tree(e.commit)
        if e.proposal is None or e.proposal.policy != baseline:
            tests = (c for c in confirmations if c.confirmed and c.against < e.number <= c.experiment)
            same = beside if beside is not None and beside.segment == e.segment else None
            found.append(Improvement(e, e.commit, tree, after, same, next(tests, None)))
        tree, beside = after, e
    return found


def base_of(branches: Branches, commit: str, began: str, improvements: Sequence[Improvement]) -> Base:
    """A commit as what branches are to stand on, with the improvements that it has already."""
    within = [i for i in improvements if branches.contains(commit, i.commit)]
    start = within[-1].after if within else branches.tree(began)
    return Base(commit, branches.tree(commit), start, frozenset(i.number for i in within))


def stack(branches: Branches, tree: str, improvements: Sequence[Improvement], where: str, hint: str) -> list[Step]:
    """Improvements, one on the other, on a tree; none that changes nothing there. Misfit; where, hint: words of it."""
    steps = []
    for one in improvements:
        try:
            after = branches.merge(one.before, tree, one.after, merge)
        except MergeConflict as error:
            raise Misfit(one.number, error, where, hint=hint) from error
        if after != tree:
            steps.append(Step(one, after))
        tree = after
    return steps


@dataclass(frozen=True, slots=True)
class Evidence:
    """What messages tell. ablations: verdicts on improvements that stay, by number; rebased: on another base."""

    tag: str
    task: str
    metric: str
    history: History
    redactor: Redactor
    ablations: Mapping[int, Confirmation] = field(default_factory=dict)
    ablated: Confirmation | None = None
    rebased: str = ""

    def of(self, one: Improvement, *, last: bool) -> str:
        """The message of an improvement: that of its commit, with what was measured after the hypothesis."""
        record = self.history.read(one.commit)
        measured = [*self._measured(one), self._last_words() if last else "", self.rebased]
        told = [record.body[:_MOST_WORDS], *map(_wrapped, measured)]
        return self._message(record.subject, told, record.trailers)

    def of_all(self, steps: Sequence[Step]) -> str:
        """The message of all of them in one commit."""
        subjects = [
            f"{self.history.read(s.improvement.commit).subject} (experiment {s.improvement.number})" for s in steps
        ]
        last = steps[-1].improvement
        told = ["\n".join(f"- {subject}" for subject in subjects)]
        tests = {id(s.improvement.test): s.improvement for s in steps}.values()
        told += map(_wrapped, [*map(self._confirmed, tests), self._last_words(), self.rebased])
        numbers = ", ".join(str(s.improvement.number) for s in steps)
        trailers = {**self.history.read(last.commit).trailers, "Experiment": numbers}
        trailers.pop("Delta", None)
        return self._message(f"{self.task}: {counted(len(steps), 'improvement')} of session {self.tag}", told, trailers)

    def _message(self, subject: str, told: Sequence[str], trailers: Mapping[str, str]) -> str:
        body = "\n\n".join(part for part in told if part)
        return self.redactor.text(commit_message(subject, body, {**trailers, "Session": self.tag}))

    def _measured(self, one: Improvement) -> list[str]:
        decision, words = one.experiment.decision, []
        if decision is not None and decision.value is not None:
            before = one.beside.decision.value if one.beside and one.beside.decision else None
            was = "" if before is None or one.beside is None else f"{before:.6g} (experiment {one.beside.number}) → "
            words.append(
                f"{self.metric} {was}{decision.value:.6g} in {_runs(one.experiment.good_runs)}. {decision.reason}"
            )
        words.append(self._confirmed(one))
        if (test := self.ablations.get(one.number)) is not None and test.verdict is not None:
            words.append(f"It stays after a test without it in {_runs(test.runs)}. {test.verdict.reason}")
        return words

    def _confirmed(self, one: Improvement) -> str:
        test = one.test
        if test is None or test.verdict is None:
            return ""
        sides = [
            [r.value for r in test.runs if r.good and r.value is not None and (r.of is None) is own]
            for own in (False, True)
        ]
        means = " → ".join(f"{fmean(values):.6g}" for values in sides if values)
        chain = f"keeps up to experiment {test.experiment}" if test.experiment != one.number else "it"
        what = f"Confirmation {test.number} of {chain} beside experiment {test.against}"
        return f"{what} found {self.metric} {means} in {_runs(test.runs)}. {test.verdict.reason}"

    def _last_words(self) -> str:
        verdict = self.ablated.verdict if self.ablated is not None else None
        return "" if verdict is None else f"What was dropped beside it is not missed. {verdict.reason}"


def _runs(runs: Sequence[Run]) -> str:
    good = [run for run in runs if run.good]
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(run.seed for run in good))
    return f"{counted(len(good), 'run')}, seed{'s' if ',' in seeds else ''} {seeds}"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


@dataclass(frozen=True, slots=True)
class Made:
    """A branch to be. experiments: those in it that are not in the one below; of the whole: all, as its tree is."""

    name: str
    commit: str
    experiments: list[int]
    subject: str


def commit_stack(
    branches: Branches, base: Base, steps: Sequence[Step], end: str, evidence: Evidence, into: str, *, squash: bool
) -> list[Made]:
    """The commits of a stack, lowest first, then the whole, named ``into``; that alone with ``squash``. No refs yet.

    end: the tree of the program that was confirmed. RepositoryError: what was written does not add up to that.
    """
    parent, commits = base.commit, list[Made]()
    names, numbers = names_of(into, 1 if squash else len(steps)), [step.improvement.number for step in steps]
    for i, step in enumerate(steps[-1:] if squash else steps):
        message = evidence.of_all(steps) if squash else evidence.of(step.improvement, last=i == len(steps) - 1)
        parent = branches.commit(step.tree, parent, message, _when(step.improvement.experiment))
        commits.append(Made(names[i], parent, numbers if squash else [numbers[i]], message.split("\n", 1)[0]))
    if len(commits) > 1:
        commits.append(Made(into, parent, numbers, "the whole"))
    try:
        whole = branches.merge(base.start, base.tree, end, merge)
    except MergeConflict:  # the base changed the same places, as with some of the improvements: each of the steps fits
        whole = branches.tree(parent) if base.tree != base.start else ""
    if branches.tree(parent) != whole:
        raise RepositoryError(
            "the branches would not add up to the confirmed program, so none was made",
            hint="`autoresearchd finalize` without --base makes them where the session began",
        )
    return commits


def _when(e: Experiment) -> datetime:
    return e.finished_at or e.started_at


def names_of(into: str, count: int) -> list[str]:
    """Names of the branches of a stack, lowest first; the last is that of the whole, beside the last one's number."""
    width = len(str(count))
    return [*(f"{into}-{n:0{width}}" for n in range(1, count + 1) if count > 1), into]
