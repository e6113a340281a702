"""The experiments of one session that no row tells of any more: from git, and from what their runs left on disk.

An experiment's commit says what was tried and by whom, a kept one's trailers what it gave; the logs of its runs are
measured again as they were the first time. What neither knows is recorded as lost, under its number.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path, PurePosixPath

from autoresearchd.app.project import Project
from autoresearchd.config import dump_task, parse_task
from autoresearchd.config.load_task import read_task_text
from autoresearchd.domain.errors import AutoresearchdError, RepositoryError, UsageError
from autoresearchd.domain.experiment import Decision, Experiment, Limits, Session
from autoresearchd.domain.labels import RULES, Label, Phase, Status
from autoresearchd.domain.ports import Executor, NewSession
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.evaluator.rules.legality import code_hash
from autoresearchd.executor.devices import find_devices
from autoresearchd.loop.measuring.run_files import read_tail
from autoresearchd.loop.messages import BASELINE, unified_diff
from autoresearchd.loop.run import measure_run
from autoresearchd.policy.policy_names import TUNERS
from autoresearchd.store.backups import Draft, is_whole
from autoresearchd.workspace import layout
from autoresearchd.workspace.git import GitWorkspace
from autoresearchd.workspace.history import RecordedCommit

LOST = "lost with the database"
_FARTHEST = 1000
"""How many numbers beyond the last row or ref are believed: a damaged counter must not make millions."""
_LOG_BYTES = 32 * 2**20


class Restorer:
    """Completes one session of a draft; ``run`` gives a sentence for each experiment that was not simply there."""

    def __init__(
        self, project: Project, draft: Draft, workspace: GitWorkspace, session: Session, executor: Executor
    ) -> None:
        self._draft, self._workspace, self._session, self._executor = draft, workspace, session, executor
        self._task = parse_task(session.task_json)
        self._runs = layout.public_dir(project.root) / "runs" / session.tag
        self._log = layout.daemon_log(project.root)
        self._history = workspace.history()
        self._refs = self._history.experiments()
        self._branch = self._history.branch(session.base_commit)
        self._on_branch = set(self._branch)
        self._parent, self._at = session.base_commit, session.started_at

    def run(self) -> list[str]:
        notes = []
        numbers = {e.number: (e.phase, e.commit) for e in self._draft.experiments(self._session.id)}
        last = self._last(set(numbers))
        for number in range(last + 1):
            phase, commit = numbers.get(number, (None, None))
            if phase == Phase.DECIDED and not self._kept_since(number, commit):
                self._parent = commit if commit in self._on_branch and commit is not None else self._parent
                continue
            notes += self._restore(number, is_last=number == last)
        return notes

    def _last(self, rows: set[int]) -> int:
        """The highest number that was given out, as far as rows, git, the counter and the daemon's log tell."""
        sure = max([-1, *rows, *self._refs])
        logged = re.findall(
            rf"^[0-9-]{{10}} [0-9:]{{8}}Z {re.escape(self._session.tag)} opened #([0-9]{{1,9}}) ",
            read_tail(self._log, _LOG_BYTES),
            re.MULTILINE,
        )
        told = [self._draft.opened(self._session.id) - 1, *map(int, logged[-1:])]
        # A log of an earlier session of this tag tells nothing of this one.
        return max([sure, *(n for n in told if sure >= 0 and n <= sure + _FARTHEST)])

    def _kept_since(self, number: int, commit: str | None) -> bool:
        """Whether git knows an experiment as kept under another commit than its row."""
        ref = self._refs.get(number)
        return ref is not None and ref != commit and ref in self._on_branch

    # -- one experiment
    def _restore(self, number: int, *, is_last: bool) -> list[str]:
        session_id, store = self._session.id, self._draft
        record = self._record(number)
        own = record if record is not None and record.number == number else None
        e = self._draft.ensure_experiment(session_id, number, self._parent, self._at)
        if record is not None and record.parent is not None:
            self._at = record.at
        is_baseline = self._is_baseline(e, own)
        kept = record is not None and self._was_kept(record, is_last=is_last)
        ahead = e.proposal is None and own is not None  # git has a commit of it, and its row does not know a proposal
        if is_last and e.decision is None and not kept and is_whole(e) and not ahead:
            return []  # the loop goes on with it
        e, told = self._with_proposal(e, own, is_baseline=is_baseline)
        self._draft.close_runs(session_id, number, self._at, LOST)
        e = store.experiment(session_id, number)
        if not e.counted_runs:
            self._add_runs(e)
            e = store.experiment(session_id, number)
        decision = self._decision(e, record, is_baseline=is_baseline, kept=kept)
        commit = record.commit if record is not None else e.parent if is_baseline and e.commit is None else e.commit
        segment = self._draft.segment_of(session_id, number)
        hypothesis = e.proposal.hypothesis if e.proposal else ""
        asi = ASI(hypothesis=hypothesis, result=f"{self._task.metric.name}: {decision.reason}")
        self._draft.decide(e, decision, asi, max(self._at, e.started_at), commit=commit, segment=segment)
        if decision.status is Status.KEEP and commit is not None:
            self._parent = commit
        value = "" if decision.value is None else f" {self._task.metric.name} {decision.value:.6g}"
        return [f"experiment {number}: {told}, {decision.status.value}{value}: {decision.reason}"]

    def _record(self, number: int) -> RecordedCommit | None:
        commit = self._refs.get(number)
        with contextlib.suppress(RepositoryError):
            return None if commit is None else self._history.read(commit)
        return None

    def _was_kept(self, record: RecordedCommit, *, is_last: bool) -> bool:
        """The final commit of a keep is on the branch, or about to be moved there by whoever settles it."""
        tip = self._branch[-1] if self._branch else self._session.base_commit
        there = record.commit in self._on_branch or (is_last and record.parent == tip)
        return "Metric" in record.trailers and there

    def _is_baseline(self, e: Experiment, own: RecordedCommit | None) -> bool:
        if e.proposal is not None:
            return e.proposal.policy == BASELINE
        return own is None and (e.number == 0 or self._draft.first_of_segment(self._session.id, e.number))

    # -- parts of an experiment
    def _with_proposal(self, e: Experiment, own: RecordedCommit | None, *, is_baseline: bool) -> tuple[Experiment, str]:
        """The experiment with a proposal, where there is any; and where that came from. own: its commit."""
        session_id = self._session.id
        if e.proposal is not None:
            return e, "that of the backup"
        parent = own.parent if own is not None else None
        if own is not None and parent is not None:
            self._draft.set_parent(session_id, e.number, parent, own.at)
        before = self._code(parent or e.parent)
        if is_baseline:
            proposal = Proposal({}, "The program as it is.", BASELINE, description=BASELINE)
        elif own is None:
            return e, LOST
        else:
            files = {path: text for path, text in self._code(own.commit).items() if before.get(path) != text}
            hypothesis, policy = own.body or own.subject, own.trailers.get("Policy", "")
            proposal = Proposal(files, hypothesis, policy, description=own.subject, asi=ASI(hypothesis=hypothesis))
        after = {**before, **proposal.files}
        segment = self._draft.segment_of(session_id, e.number)
        digest = f"{segment}:{code_hash(after)}" if after else f"{segment}:none:{e.number}"
        diff = unified_diff(before, after)
        e = self._draft.add_proposal(session_id, e.number, proposal, diff=diff, code_hash=digest)
        return e, "the program as it is" if is_baseline else "rebuilt from its commit"

    def _code(self, commit: str) -> Mapping[str, str]:
        with contextlib.suppress(AutoresearchdError):
            return {path: self._workspace.read(commit, path) for path in self._task.editable}
        return {}

    def _add_runs(self, e: Experiment) -> None:
        """Measure again what the runs left on disk: all of a baseline, of any other up to the first that is good."""
        is_baseline = e.proposal is not None and e.proposal.policy == BASELINE
        folder = self._runs / str(e.number)
        indices = sorted(int(p.name) for p in folder.glob("*") if p.name.isdigit()) if folder.is_dir() else []
        taken, counted = {run.index for run in e.runs}, 0
        for index in indices:
            run_dir = folder / str(index)
            if index in taken or (result := self._executor.recover(run_dir)) is None:
                continue
            found = measure_run(self._task, result, run_dir)
            seed = derive_seed(self._session.seed, e.number, "run", counted)
            self._draft.add_run(self._session.id, e.number, index, seed, e.started_at, found, result)
            counted += RULES[found.label].status is not None
            if found.label is Label.NONE and not is_baseline:
                return  # a later one may be of the incumbent's program, run again beside this; nothing here tells

    def _decision(self, e: Experiment, record: RecordedCommit | None, *, is_baseline: bool, kept: bool) -> Decision:
        values = [run.value for run in e.good_runs if run.value is not None]
        value = math.fsum(values) / len(values) if values else None
        if kept and record is not None:
            told = _number(record.trailers.get("Metric", "").rpartition("=")[2])
            delta = _number(record.trailers.get("Delta", ""))
            value = told if told is not None else value
            return Decision(Status.KEEP, Label.NONE, value, delta, reason="kept, as its commit on the branch says")
        if is_baseline and value is not None:
            return Decision(Status.KEEP, Label.NONE, value, reason=f"the baseline, from {counted(len(values), 'run')}")
        failed = next((run for run in e.counted_runs if run.label is not Label.NONE), None)
        if failed is not None and not is_baseline and value is None:
            status = RULES[failed.label].status or Status.CRASH
            return Decision(status, failed.label, reason=f"{failed.label.value}: {failed.detail}")
        if value is not None:
            reason = "it is not on the branch, so it was not kept; the decision itself was " + LOST
            return Decision(Status.DISCARD, Label.NO_GAIN, value, reason=reason)
        twin = None if e.proposal is None or is_baseline or record is not None else self._twin(e, e.proposal)
        if twin is not None:
            reason = f"The same program as experiment {twin}; no run was spent on it."
            return Decision(Status.DISCARD, Label.DUPLICATE, reason=reason)
        return Decision(Status.CRASH, Label.ERROR, reason=f"its result was {LOST}, and its runs have left none")

    def _twin(self, e: Experiment, proposal: Proposal) -> int | None:
        """An earlier experiment with the same program: then this one was never committed."""
        after = {**self._code(e.parent), **proposal.files}
        digest = f"{self._draft.segment_of(self._session.id, e.number)}:{code_hash(after)}"
        found = self._draft.find_duplicate(self._session.id, digest)
        return found if found is not None and found < e.number else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


# ---------------------------------------------------------------------- a session of which only git is left
def ends_after(limits: Limits) -> str:
    """The end of the line that a daemon begins its log with, from which a repair knows the session's limits again."""
    told = {"experiments": limits.max_experiments, "seconds": limits.max_seconds, "usd": limits.max_usd}
    words = " ".join(f"{name}={value:.12g}" for name, value in told.items() if value is not None)
    return f"; ends after {words}" if words else "; ends when it is stopped"


def _limits_in_log(log: Path, tag: str) -> Limits:
    """The limits that the latest daemon of a session wrote into its log; none where it wrote none."""
    begins = rf"[0-9-]{{10}} [0-9:]{{8}}Z {re.escape(tag)} session_(?:started|resumed) "
    ends = rf"^{begins}.*; ends (?:after (.*)|when it is stopped)$"
    lines = re.findall(ends, read_tail(log, _LOG_BYTES), re.MULTILINE)
    told = dict(re.findall(r"(experiments|seconds|usd)=([0-9.e+-]{1,20})(?: |$)", lines[-1] if lines else ""))
    found = {name: value for name, text in told.items() if (value := _number(text)) is not None}
    most = found.get("experiments")
    return Limits(None if most is None else int(most), found.get("seconds"), found.get("usd"))


def plan_session(project: Project, tag: str, *, seed: int) -> tuple[NewSession, datetime]:
    """What a session can be created from again, and when it began."""
    with contextlib.closing(GitWorkspace(project.root, tag, task_folder=project.root, editable=())) as probe:
        history = probe.history()
        base = history.experiment(0)
        if base is None:
            raise UsageError(f"git knows nothing of a session {tag!r}", hint="see `git for-each-ref refs/autoresearch`")
        refs = history.experiments()
        newest = history.read(refs[max(refs)])
        task_folder, text = _task_file(probe, base, newest.commit if len(refs) > 1 else base)
        device = str(find_devices())
        task = read_task_text(text, profile="cuda" if device.startswith("cuda") else "cpu")
        policy = newest.trailers.get("Policy", "")
        at = history.read(base).at
    new = NewSession(
        tag=tag,
        branch=probe.branch,
        task_json=dump_task(task),
        # Nothing that would run a program is taken from a commit message.
        policy=policy if policy in TUNERS else "search",
        executor="local",
        base_commit=base,
        seed=seed,
        limits=_limits_in_log(layout.daemon_log(project.root), tag),
        folder=(task_folder / task.source_dir).as_posix(),
    )
    return new, at


def _task_file(workspace: GitWorkspace, base: str, newest: str) -> tuple[PurePosixPath, str]:
    """Folder and text of the session's task.yaml: beside or above the files that its experiments changed."""
    changed = re.findall(r"^\+\+\+ b/(.+)$", workspace.diff(base, newest), re.MULTILINE)
    folders = [PurePosixPath(), *(parent for path in changed for parent in PurePosixPath(path).parents)]
    for folder in dict.fromkeys(reversed(folders)):
        try:
            return folder, workspace.read(base, str(folder / "task.yaml"))
        except (RepositoryError, UsageError):
            continue
    raise UsageError(
        f"session {workspace.tag} cannot be rebuilt from git: its first commit has no task.yaml",
        hint="put a backup of state.db in its place",
    )
