"""``finalize``: from the confirmed commits of a session to branches for a user, without what brings nothing, if asked.

An ablation goes through the improvements from the newest to the oldest. Each is taken out, together with those that
were dropped before it, and what is left runs beside the whole confirmed program until the session's own test decides:
where it is no worse than a tie, the improvement is dropped. So two that do the same are not both dropped, and what is
lost by all of them together is never more than a tie. At the end the program without all of them runs once more, on
fresh seeds, beside the whole; only if it passes is it used. All of this is confirmations in the journal, which a later
start takes up (docs/adr/0055).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autoresearchd import keys
from autoresearchd.app.project import Project
from autoresearchd.app.start import run_asked
from autoresearchd.config import parse_task
from autoresearchd.domain import errors
from autoresearchd.domain.confirmation import ABLATED, ABLATION, Confirmation, ablates
from autoresearchd.domain.experiment import Session
from autoresearchd.domain.labels import Outcome
from autoresearchd.domain.ports import EventSink
from autoresearchd.evaluator.rules.program_text import is_simpler
from autoresearchd.loop.confirming import Asked
from autoresearchd.loop.messages import BASELINE, commit_of
from autoresearchd.report.finalize import (
    Evidence,
    Improvement,
    Made,
    Misfit,
    base_of,
    commit_stack,
    improvements_of,
    names_of,
    stack,
)
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import preflight
from autoresearchd.workspace.git import GitWorkspace, open_workspace
from autoresearchd.workspace.history import commit_message

_OWN_BASE = (
    "`autoresearchd finalize` without --base makes them where the session began; then `git rebase` them, and settle it"
)


@dataclass(frozen=True, slots=True)
class FinalizeOptions:
    """What ``finalize`` was asked for. into: name of the branches; base: what they stand on; None: the usual."""

    into: str | None = None
    base: str | None = None
    squash: bool = False
    ablate: bool = False


@dataclass(frozen=True, slots=True)
class Finalized:
    """What was made: branches, lowest first, the last of them the whole, of this tree.

    notes: why experiments are not in it, or stay after an ablation, by number; remark: on what an ablation came to.
    """

    session: str
    base: str
    tree: str
    branches: list[Made]
    dropped: list[int]
    notes: dict[int, str]
    remark: str

    @property
    def undo(self) -> str:
        """The command that takes all of it back."""
        return "git branch -D -- " + " ".join(shlex.quote(made.name) for made in self.branches)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "undo": self.undo}


def finalize(directory: Path, tag: str | None, options: FinalizeOptions, sinks: Sequence[EventSink] = ()) -> Finalized:
    """Make the branches. Interrupted: an ablation was ended before it was through, and nothing was made.

    Only an ablation needs the session to itself: all else reads commits and rows that never change.
    """
    preflight.require_git()
    project = Project.of_session(directory)
    with project.existing_store() as store:
        session = project.pick_own(store, tag)
        task = parse_task(session.task_json)
        with closing(open_workspace(project.root, session.tag, task, project.root / session.folder)) as workspace:
            return _finalize(project, store, session, workspace, options, sinks)


def _finalize(
    project: Project, store: SqlStore, session: Session, workspace: GitWorkspace, options: FinalizeOptions,
    sinks: Sequence[EventSink],
) -> Finalized:  # fmt: skip
    branches, began = workspace.branches(), session.base_commit
    found = improvements_of(
        branches, began, store.experiments(session.id), store.confirmations(session.id), baseline=BASELINE
    )
    # One that is confirmed at this moment is not in the program that was read.
    found = [one for one in found if one.number <= session.confirmed_experiment]
    if not found:
        raise errors.UsageError(
            f"nothing of session {session.tag} is confirmed yet, so there is nothing to make branches of",
            hint=f"`autoresearchd confirm --session {session.tag}` tests its tip now",
        )
    base = base_of(branches, began if options.base is None else branches.resolve(options.base), began, found)
    where, wanted = f"the base {base.commit[:10]}", [i for i in found if i.number not in base.within]
    if not wanted:
        what = f"{where} has all that session {session.tag} has confirmed"
        raise errors.UsageError(what, hint="choose another --base")
    into = options.into if options.into is not None else f"final/{session.tag}"
    # What cannot be is told before hours of runs.
    branches.require_free(names_of(into, 1 if options.squash else len(wanted))[::-1])
    stack(branches, base.tree, wanted, where, _OWN_BASE)
    task, redactor = parse_task(session.task_json), keys.redactor(folder=project.root)
    evidence = Evidence(session.tag, task.name, task.metric.name, workspace.history(), redactor)
    kept, end, remark = wanted, branches.tree(session.confirmed), ""
    notes = dict.fromkeys(base.within, "the base has it")
    if options.ablate:
        ablation = Ablation(store, session, workspace, base.start, wanted)
        project.refuse_held(store, session.tag)
        ablation.run(lambda asked: run_asked(project, store, session, asked, sinks))
        kept = [i for i in wanted if i.number not in ablation.dropped]
        remark, end = ablation.remark, ablation.tree
        for number, why in ablation.notes.items():
            notes[number] = f"{'dropped' if number in ablation.dropped else 'stays'}: {why}"
        evidence = replace(evidence, ablations=ablation.tests, ablated=ablation.last if ablation.dropped else None)
    if base.tree != base.start:
        words = f"Measured on {began[:10]}, and merged onto {base.commit[:10]} line by line."
        evidence = replace(evidence, rebased=words)
    steps = stack(branches, base.tree, kept, where, _OWN_BASE)
    if not steps:
        what = f"no improvement of session {session.tag} is left that changes anything on {where}"
        raise errors.UsageError(what, hint="leave out --ablate, or choose another --base")
    made = commit_stack(branches, base, steps, end, evidence, into, squash=options.squash)
    branches.create({one.name: one.commit for one in made})
    there = {number for one in made for number in one.experiments}
    notes = {i.number: "it changes nothing there" for i in kept if i.number not in there} | notes
    dropped = [i.number for i in wanted if i not in kept]
    return Finalized(session.tag, base.commit, branches.tree(made[-1].commit), made, dropped, notes, remark)


class Ablation:
    """Takes improvements out of the confirmed program, one after the other. What it knows is in the journal.

    start: the tree that they were made on. tree: of the program that is left; dropped: what was taken out for it;
    tests, last: the verdicts on improvements, by number, and on that program; notes, remark: see ``Finalized``.
    """

    def __init__(
        self,
        store: SqlStore,
        session: Session,
        workspace: GitWorkspace,
        start: str,
        improvements: Sequence[Improvement],
    ) -> None:
        self._store, self._session, self._workspace = store, session, workspace
        self._branches, self._start, self._improvements = workspace.branches(), start, improvements
        self._task = parse_task(session.task_json)
        self._whole = store.experiment(session.id, session.confirmed_experiment)
        self._asked = set[str]()
        self._trees = dict[tuple[int, ...], str]()
        self.dropped: list[int] = []
        self.tests: dict[int, Confirmation] = {}
        self.last: Confirmation | None = None
        self.notes: dict[int, str] = {}
        self.remark, self.tree = "", self._branches.tree(session.confirmed)

    def run(self, compare: Callable[[Asked], int]) -> None:
        """Have the runs made that are still to be made. compare: makes them; an exit code."""
        segment = self._store.segment(self._session.id)
        if segment is None or self._whole.segment != segment.number:
            what = f"what session {self._session.tag} has confirmed was not measured under the conditions of today"
            hint = f"`autoresearchd resume {self._session.tag}` measures it first; or leave out --ablate"
            raise errors.UsageError(what, hint=hint)
        under_way = self._store.open_confirmation_of(self._session.id)
        if under_way is not None and not ablates(under_way.why):
            what = f"a confirmation of session {self._session.tag} is not through, and may move its branch"
            raise errors.UsageError(what, hint=f"`autoresearchd confirm --session {self._session.tag}` ends it")
        asked = self._next()
        if asked is not None and (compare(asked) or self._next() is not None):
            raise errors.Interrupted(
                f"the ablation of session {self._session.tag} was interrupted, and no branch was made",
                hint="the same command goes on with it: what was tested is not tested again",
            )

    def _next(self) -> Asked | None:
        """The comparison that is wanted next; None: all is told."""
        self.dropped, self.tests, self.notes = [], {}, {}
        whole = before = self._composed()
        program = commit_of(self._whole)
        for one in reversed(self._improvements):
            number = one.number
            try:
                tree = self._composed(number)
            except Misfit as error:
                self.notes[number] = f"experiment {error.number} builds on it, in {error.path}"
                continue
            if tree == before:
                self.dropped.append(number)
                self.notes[number] = "nothing is left of it"
                continue
            without = self._commit(tree, number)
            if is_simpler(self._code(program), self._code(without)):
                self.notes[number] = "it makes the program simpler"
                continue
            if before == whole and one.test and self._is_of(one.test.against, tree):
                self.notes[number] = "it was confirmed by itself"
                continue
            test, asked = self._look(ABLATION, number, tree, without)
            if asked is not None:
                return asked
            self.notes[number] = "its test did not come to an end"
            if test is not None and test.verdict is not None:
                self.tests[number], self.notes[number] = test, test.verdict.reason
                if test.verdict.outcome is Outcome.CONFIRMED:
                    self.dropped.append(number)
                    before, program = tree, without
        if before == whole:
            return None
        self.last, asked = self._look(ABLATED, self._whole.number, before, program)
        if asked is not None:
            return asked
        verdict = self.last.verdict if self.last is not None else None
        if verdict is not None and verdict.outcome is Outcome.CONFIRMED:
            self.tree, self.remark = before, verdict.reason
            return None
        why = verdict.reason if verdict is not None else "Its test did not come to an end."
        self.remark = f"Nothing is dropped: without experiments {_listed(self.dropped)} it may be worse. {why}"
        self.dropped = []
        return None

    def _look(self, kind: str, number: int, tree: str, program: str) -> tuple[Confirmation | None, Asked | None]:
        """The verdict that there is on a program, or what is to be asked for; neither where that was in vain."""
        why = f"{kind} {tree}"
        for c in self._store.confirmations(self._session.id):
            verdict = c.verdict if (c.why, c.against) == (why, self._whole.number) else None
            if verdict and (verdict.outcome is not Outcome.UNDECIDED or verdict.gain is not None):
                return c, None
        if why in self._asked:
            return None, None
        self._asked.add(why)
        return None, Asked(number, why=why, program=program, following=self._next)

    def _is_of(self, number: int, tree: str) -> bool:
        """Whether a tree is the program of an experiment."""
        return self._branches.tree(commit_of(self._store.experiment(self._session.id, number))) == tree

    def _composed(self, *more: int) -> str:
        """The tree without what is dropped, and without some more."""
        left = [i for i in self._improvements if i.number not in (*self.dropped, *more)]
        key = tuple(i.number for i in left)
        if key not in self._trees:  # a merge of all for each of them, and again after each test
            steps = stack(self._branches, self._start, left, "the rest", "")
            self._trees[key] = steps[-1].tree if steps else self._start
        return self._trees[key]

    def _commit(self, tree: str, number: int) -> str:
        """A program without an improvement as a commit that can be run; no ref names it, and it can be made again."""
        subject = f"The confirmed program without experiments {_listed([*self.dropped, number])}"
        message = commit_message(subject, "", {"Session": self._session.tag})
        return self._branches.commit(tree, commit_of(self._whole), message, self._whole.started_at)

    def _code(self, commit: str) -> Mapping[str, str]:
        return {path: self._workspace.read(commit, path) for path in self._task.editable}


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
