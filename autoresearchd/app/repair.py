"""Whether a session's database is sound and knows all that git knows; ``doctor --repair``: a new one where it is not.

SQLite drops without a word what follows a damaged place in its write-ahead log, and a database can be put back from a
backup by hand. What is missing then shows in git: every experiment's row is on disk before its ref is written. The new
one is built on the newest good copy, from git and the logs of runs, which are measured again as they were the first
time; the damaged file is kept aside, and nothing takes its place before it has passed every check.
"""

from __future__ import annotations

import math
import re
import secrets
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from autoresearchd.app.compose import make_executor
from autoresearchd.app.project import Project
from autoresearchd.config import dump_task, parse_task
from autoresearchd.config.load_task import read_task_text
from autoresearchd.domain.errors import (
    AutoresearchdError,
    EnvironmentFailure,
    RepositoryError,
    StoreDamaged,
    StoreError,
    UsageError,
)
from autoresearchd.domain.experiment import Decision, Experiment, Limits, Session
from autoresearchd.domain.labels import RULES, Label, Phase, Status
from autoresearchd.domain.ports import Executor, NewSession
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.evaluator.rules.legality import code_hash
from autoresearchd.executor.gpus import find_devices
from autoresearchd.learner.learner_process import hold_learner_lock
from autoresearchd.loop.messages import BASELINE, is_baseline, is_keep, unified_diff
from autoresearchd.loop.run import measure_run
from autoresearchd.loop.upkeep.session_lock import SessionLock
from autoresearchd.policy.policy_names import TUNERS
from autoresearchd.store import backups
from autoresearchd.store.backups import Draft, is_whole
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema import health
from autoresearchd.store.shared import RESTORE, Shared
from autoresearchd.workspace import layout
from autoresearchd.workspace.files import disk_errors, read_tail
from autoresearchd.workspace.git import GitWorkspace, open_workspace
from autoresearchd.workspace.history import RecordedCommit, recorded_sessions

_SIDE_FILES = ("-wal", "-shm", "-journal", "")
LOST = "lost with the database"
_FARTHEST = 1000
"""How many numbers beyond the last row or ref are believed: a damaged counter must not make millions."""
_LOG_BYTES = 32 * 2**20


def check_database(path: Path) -> str:
    """Refuse a damaged database; a sentence where the check was not finished in time, else empty."""
    try:
        found = health.quick_check(path)
    except sqlite3.Error as error:
        raise health.unchecked(path, error) from error
    if found:
        raise StoreDamaged(f"the database {path} is damaged: {found[0]}", hint=health.HINT)
    if found is None:
        return f"the database was not checked to its end within {health.QUICK_SECONDS:g} s; the next backup does it"
    return ""


def check_journal(store: SqlStore, workspace: GitWorkspace, session: Session) -> None:
    """Refuse a journal that lacks what git has: its numbers would be given out again."""
    latest = store.latest(session.id)
    if latest is None:
        return
    history = workspace.history()
    newest, missing = history.newest(), ""
    if newest > latest.number:
        missing = f"it ends with experiment {latest.number}, and git has experiment {newest} of session {session.tag}"
    for at, believed in ((history.tip(), session.incumbent), (history.confirmed(), session.confirmed)):
        if missing or at in (None, believed):
            continue
        try:
            record = history.read(at)
        except RepositoryError:  # a power cut took it: recovery writes it again, or says that it is lost
            continue
        number = record.number
        # Of another commit than ours recovery says what it means; the tip of a chain that fell is moved back next.
        ours = number is not None and number <= latest.number and history.experiment(number) == at
        if ours and number is not None and record.kept:
            e = store.experiment(session.id, number)
            if not is_keep(e):
                missing = f"git has experiment {number} as kept, which the database does not know"
            elif at == history.confirmed() and not e.confirmed:
                missing = f"experiment {number} is on branch {session.branch}, and the database has it as not confirmed"
    if missing:
        raise StoreDamaged(f"the database is older than git: {missing}", hint=health.HINT)


@dataclass
class Report:
    """What a repair found and did. kept: where the damaged file is now; None: nothing had to be repaired."""

    faults: list[str]
    kept: Path | None = None
    base: Path | None = None
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        kept, base = (None if path is None else str(path) for path in (self.kept, self.base))
        return {"faults": self.faults, "kept": kept, "backup": base, "notes": self.notes}

    def lines(self) -> list[str]:
        if self.kept is None and not self.faults:
            return ["the database is sound, and knows all that git knows: nothing to repair"]
        base = [f"built on the backup {self.base.name}"] if self.base is not None else []
        kept = [f"the damaged database is kept in {self.kept}"] if self.kept is not None else []
        faults = [f"damage: {fault}" for fault in self.faults]
        return [*faults, *base, *self.notes, *kept, "`autoresearchd resume` goes on"]


def repair(directory: Path, tag: str | None = None) -> Report:
    """Repair the database of a repository. tag: of the sessions that only git knows, rebuild this one; None: all."""
    project = Project.at(directory)
    if isinstance(place := project.journal, Shared):
        what = f"the sessions of this repository are in {place.name}, which is not repaired from here"
        raise UsageError(what, hint=f"{RESTORE}; then `autoresearchd resume`")
    tags = recorded_sessions(project.root)
    if tag is not None and tag not in tags and not project.database.exists():
        raise UsageError(f"git knows nothing of a session {tag!r}", hint="known: " + (", ".join(tags) or "none"))
    with ExitStack() as stack:
        for known in sorted({path.stem for path in project.locks.glob("*.lock")} | set(tags)):
            if layout.valid_tag(known):
                stack.enter_context(SessionLock(project.lock(known), known))
        if project.locks.exists():  # else nothing was ever begun here, and nothing is made
            with disk_errors("keeping learners out"):
                stack.enter_context(hold_learner_lock(project.locks))
        faults = _examine(project)
        if not faults:
            return Report([])
        if not (project.database.exists() or tags or backups.generations(project.backups)):
            what = f"there is no session in {project.root} to repair"
            raise UsageError(what, hint="`autoresearchd start` begins one")
        return _rebuild(project, tags if tag is None else [tag], faults)


# ---------------------------------------------------------------------- what is wrong
def _examine(project: Project) -> list[str]:
    """All that is wrong with the database as it is: its structure first, then what it says."""
    path = project.database
    if not health.has_content(path):
        return [f"{path} {health.lack_of(path)}"]
    found = health.faults(path)
    if found and not found[0].startswith("revision"):  # a newer version's is refused below, and left alone
        return found
    try:
        with project.open_store(repairs=True) as store:
            return _examine_sessions(project, store)
    except StoreError as error:
        return [error.what]


def _examine_sessions(project: Project, store: SqlStore) -> list[str]:
    """What keeps sessions from going on."""
    found = []
    for session in store.sessions():
        if session.branch:
            try:
                _check_session(project, store, session)
            except StoreError as error:
                found.append(f"session {session.tag}: {error.what}")
    return found


def _check_session(project: Project, store: SqlStore, session: Session) -> None:
    experiments = store.experiments(session.id)
    numbers = [e.number for e in experiments]
    decided = max((e.number for e in experiments if e.phase is Phase.DECIDED), default=-1)  # several may be under way
    unfinished = [e.number for e in experiments if e.number < decided and e.phase is not Phase.DECIDED]
    if numbers != list(range(len(numbers))):
        raise StoreDamaged("experiments are missing")
    if unfinished:
        raise StoreDamaged(f"experiment {unfinished[0]} was never decided")
    store.totals(session.id)
    if numbers and store.segment(session.id) is None:
        raise StoreDamaged("it has no segment")
    with closing(_workspace(project, session)) as workspace:
        check_journal(store, workspace, session)


def _workspace(project: Project, session: Session) -> GitWorkspace:
    return open_workspace(project.root, session.tag, parse_task(session.task_json), project.root / session.folder)


# ---------------------------------------------------------------------- the new database
def _rebuild(project: Project, tags: list[str], faults: list[str]) -> Report:
    report = Report(faults)
    try:
        with tempfile.TemporaryDirectory(prefix="repair-", dir=layout.state_dir(project.root)) as name:
            folder = Path(name)
            new = folder / "state.db"
            with Draft(new, _newest_good(project, report, folder)) as draft:
                _complete(project, draft, tags, report)
                draft.finish("the database was repaired")
            _accept(project, new)
            report.kept = _put_in_place(project, new)
    except OSError as error:
        raise EnvironmentFailure(
            f"the database cannot be repaired: {error}; it is as it was",
            hint="a repair needs room for two more copies of the database: free some disk space",
        ) from error
    return report


def _newest_good(project: Project, report: Report, folder: Path) -> Path | None:
    """The copy to build on: of the database itself, where all of it can be read and no backup is newer, or a backup.

    Newer by its name, unless that is of a clock which ran ahead: then the same sessions are further in another one.
    """
    base, written = None, datetime.min.replace(tzinfo=UTC)
    for path in backups.generations(project.backups):
        if base is not None and not _is_further(path, base):
            continue
        fault, at = _read_through(path, folder / "probe.db")
        if not fault:
            report.base, base, written = path, path, at
        elif base is None:
            report.notes.append(f"the backup {path.name} is damaged as well: {fault}")
    itself = folder / "itself.db"
    if health.has_content(project.database) and not health.faults(project.database):
        with project.open_store(repairs=True) as store:
            store.backup(itself)
        fault, latest = _read_through(itself, folder / "probe.db")
        if not fault and (base is None or latest >= written or _is_further(itself, base)):
            report.base = None
            return itself
    if base is not None:
        report.notes.append(f"what was written after {written:%Y-%m-%d %H:%M:%S} UTC is lost but for what git tells")
    return base


def _is_further(path: Path, other: Path) -> bool:
    """Whether a copy has all sessions of another one, none of them less far and one further; false: also not known."""
    own, others = _newest(path), _newest(other)
    gains = [own.get(session, -2) - number for session, number in others.items()]
    return min(gains, default=0) >= 0 and any(gains)


def _newest(path: Path) -> dict[tuple[str, int, str], int]:
    """Number of each session's newest experiment, −1: none yet. Without what cannot be read."""
    with suppress(AutoresearchdError), SqlStore.open_readonly(path) as store:
        newest = [(session, store.latest(session.id)) for session in store.sessions()]
        return {(s.tag, s.seed, s.base_commit): -1 if e is None else e.number for s, e in newest}
    return {}


def _read_through(path: Path, probe: Path) -> tuple[str, datetime]:
    """What is wrong with a copy of the database, empty where all of it can be read; and when it was last written."""
    written = datetime.min.replace(tzinfo=UTC)
    try:
        if faults := health.faults(path):
            return faults[0], written
        with Draft(probe, path) as draft:
            for session in draft.sessions():
                written = max(written, session.heartbeat_at or session.started_at)
                for experiment in draft.experiments(session.id):
                    written = max(written, experiment.finished_at or experiment.started_at)
    except (StoreError, EnvironmentFailure) as error:
        return error.what, written
    return "", written


def _complete(project: Project, draft: Draft, tags: list[str], report: Report) -> None:
    """What git and the logs of runs know beside the rows."""
    known, executor = {session.tag: session for session in draft.sessions()}, make_executor("local")
    for tag in tags:
        if tag not in known:
            try:
                new, at = plan_session(project, tag, seed=secrets.randbelow(2**31))
            except UsageError as error:
                if len(tags) == 1:
                    raise
                report.notes.append(f"session {tag} is left out: {error.what}")
                continue
            report.notes.append(
                f"session {tag}: neither a backup nor the database knows it, so it is rebuilt from git alone: "
                f"task and folder are those of its first commit, policy {new.policy}"
                f"{ends_after(new.limits)} (`resume --max-experiments N` changes that)"
            )
            known[tag] = draft.create_session(new, at)
    for session in known.values():
        if session.branch:
            with closing(_workspace(project, session)) as workspace:
                restorer = Restorer(project, draft, workspace, session, executor)
                report.notes += [f"session {session.tag}: {note}" for note in restorer.run()]


def _accept(project: Project, new: Path) -> None:
    """The same checks that a sound database passes; the damaged one stays where it is when they fail."""
    found = health.faults(new)
    if not found:
        with SqlStore.open(f"sqlite:///{new}") as store:
            found = _examine_sessions(project, store)
        for suffix in _SIDE_FILES[:-1]:
            if new.with_name(new.name + suffix).exists():
                found.append(f"{new.name}{suffix} is left")
    if found:
        raise StoreError(
            f"the repaired database would not be sound ({found[0]}), so the damaged one was left as it is",
            hint="report this; the newest backup can be put in its place by hand",
        )
    backups.sync(new)


def _put_in_place(project: Project, new: Path) -> Path:
    """Move the damaged file aside with all that belongs to it, then the new one to its name."""
    at = datetime.now(UTC)
    kept = layout.state_dir(project.root) / "damaged" / f"{at:%Y%m%dT%H%M%S%f}Z"
    kept.mkdir(parents=True)
    for suffix in _SIDE_FILES:
        # The write-ahead log goes first: SQLite would take it for that of the new file.
        old = project.database.with_name(project.database.name + suffix)
        if old.exists():
            shutil.move(old, kept / old.name)
    new.replace(project.database)
    backups.sync(project.database.parent)
    return kept


# ---------------------------------------------------------------------- the experiments that no row tells of
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
        self._tip = self._history.tip()
        self._line = self._read_line()
        self._parent, self._at = session.base_commit, session.started_at

    def run(self) -> list[str]:
        notes = []
        numbers = {e.number: (e.phase, e.commit) for e in self._draft.experiments(self._session.id)}
        last = self._last(set(numbers))
        for number in range(last + 1):
            phase, commit = numbers.get(number, (None, None))
            ref = self._refs.get(number)
            own = self._own(number) if ref != commit else None
            kept_since = own is not None and own.kept  # as another commit than its row says
            if phase == Phase.DECIDED and not kept_since:
                if commit is not None and self._line.get(commit, False) is not False:
                    self._parent = commit
                continue
            notes += self._restore(number, is_last=number == last)
        self._settle_chains(last)
        return notes

    def _read_line(self) -> dict[str, bool | None]:
        """Commits of the branch (True), and beyond it up to the tip (None); False: a keep behind which it fell back."""
        history, base = self._history, self._session.base_commit
        branch = dict.fromkeys([base, *history.line(base, history.confirmed())], True)
        line: dict[str, bool | None] = {**dict.fromkeys(history.line(base, self._tip)), **branch}
        numbers: dict[str, int] = {}
        for commit in [*branch, *(commit for commit in line if commit not in branch)]:
            with suppress(RepositoryError):  # of one that is damaged no more is known
                record = history.read(commit)
                if record.falls_back:
                    line |= {k: False for k, number in numbers.items() if number > (record.number or 0)}
                elif record.kept:
                    numbers[commit] = record.number or 0
        return line

    def _settle_chains(self, last: int) -> None:
        """What a row says of a keep gives way to git: a later verdict was lost with the database."""
        for e in self._draft.experiments(self._session.id):
            if is_baseline(e) or not is_keep(e) or e.commit is None:
                continue
            stands = self._stands(e.commit, is_last=e.number == last)
            unsure = e.confirmed is None and self._tip is None  # the ref that would tell is lost: it may stand
            if e.confirmed is not stands and not unsure:
                self._draft.set_confirmed(self._session.id, e.number, stands)

    def _stands(self, commit: str, *, is_last: bool) -> bool | None:
        """What became of a keep: confirmed (True), open (None: the tip has it, or is about to), or fallen back."""
        if is_last and commit not in self._line:
            with suppress(RepositoryError):
                return None if self._history.read(commit).parent == (self._tip or self._history.confirmed()) else False
        return self._line.get(commit, False)

    def _last(self, rows: set[int]) -> int:
        """The highest number that was given out, as far as rows, git, the counter and the daemon's log tell."""
        sure = max([-1, *rows, *self._refs])
        logged = re.findall(
            rf"^[0-9-]{{10}} [0-9:]{{8}}Z {re.escape(self._session.tag)} opened #([0-9]{{1,9}}) ",
            read_tail(self._log, _LOG_BYTES),
            re.MULTILINE,
        )
        given_out = [self._draft.opened(self._session.id) - 1, *map(int, logged[-1:])]
        # A log of an earlier session of this tag tells nothing of this one.
        return max([sure, *(n for n in given_out if sure >= 0 and n <= sure + _FARTHEST)])

    # -- one experiment
    def _restore(self, number: int, *, is_last: bool) -> list[str]:
        session_id, store = self._session.id, self._draft
        record, own = self._record(number), self._own(number)
        e = self._draft.ensure_experiment(session_id, number, self._parent, self._at)
        if record is not None and record.parent is not None:
            self._at = record.at
        begins = own is None and self._draft.first_of_segment(session_id, number)
        kept = own is not None and own.kept
        ahead = e.proposal is None and own is not None  # git has a commit of it, and its row does not know a proposal
        if is_last and e.decision is None and not kept and is_whole(e) and not ahead:
            return []  # the loop goes on with it
        e, told = self._with_proposal(e, own, begins=begins)
        for run in e.runs:  # one that ended after the backup was made
            place = self._runs / str(number) / str(run.index)
            if run.open and run.attempt >= 0 and (result := self._executor.recover(place)) is not None:
                self._draft.close_run(run.id, measure_run(self._task, result, place), result, self._at, last=True)
        self._draft.close_runs(session_id, number, self._at, LOST)
        e = store.experiment(session_id, number)
        if not e.counted_runs:
            self._add_runs(e)
            e = store.experiment(session_id, number)
        decision = self._decision(e, record, kept=kept)
        commit = record.commit if record is not None else e.parent if is_baseline(e) and e.commit is None else e.commit
        segment = self._draft.segment_of(session_id, number)
        hypothesis = e.proposal.hypothesis if e.proposal else ""
        asi = ASI(hypothesis=hypothesis, result=f"{self._task.metric.name}: {decision.reason}")
        confirmed = None
        if decision.status is Status.KEEP and commit is not None:
            confirmed = is_baseline(e) or self._stands(commit, is_last=is_last)
        at = max(self._at, e.started_at)
        self._draft.decide(e, decision, asi, at, commit=commit, segment=segment, confirmed=confirmed)
        if decision.status is Status.KEEP and commit is not None and confirmed is not False:
            self._parent = commit
        value = "" if decision.value is None else f" {self._task.metric.name} {decision.value:.6g}"
        return [f"experiment {number}: {told}, {decision.status.value}{value}: {decision.reason}"]

    def _record(self, number: int) -> RecordedCommit | None:
        commit = self._refs.get(number)
        with suppress(RepositoryError):
            return None if commit is None else self._history.read(commit)
        return None

    def _own(self, number: int) -> RecordedCommit | None:
        """The record of an experiment that has a commit of its own."""
        record = self._record(number)
        return record if record is not None and record.number == number else None

    # -- parts of an experiment
    def _with_proposal(self, e: Experiment, own: RecordedCommit | None, *, begins: bool) -> tuple[Experiment, str]:
        """The experiment with a proposal, where there is any; and where that came from.

        own: its commit; begins: a segment, as a baseline does.
        """
        session_id = self._session.id
        if e.proposal is not None:
            return e, "that of the backup"
        parent = own.parent if own is not None else None
        if own is not None and parent is not None:
            self._draft.set_parent(session_id, e.number, parent, own.at)
        before = self._code(parent or e.parent)
        if begins:
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
        return e, "the program as it is" if begins else "rebuilt from its commit"

    def _code(self, commit: str) -> Mapping[str, str]:
        with suppress(AutoresearchdError):
            return {path: self._workspace.read(commit, path) for path in self._task.editable}
        return {}

    def _add_runs(self, e: Experiment) -> None:
        """Measure again what the runs left on disk: all of a baseline, of any other up to the first that is good."""
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
            counted += RULES[found.label] is not None
            if found.label is Label.NONE and not is_baseline(e):
                return  # a later one may be of the incumbent's program, run again beside this; nothing here tells

    def _decision(self, e: Experiment, record: RecordedCommit | None, *, kept: bool) -> Decision:
        values = [run.value for run in e.good_runs if run.value is not None]
        value = math.fsum(values) / len(values) if values else None
        if kept and record is not None:
            told = _number(record.trailers.get("Metric", "").rpartition("=")[2])
            delta = _number(record.trailers.get("Delta", ""))
            value = told if told is not None else value
            return Decision(Status.KEEP, Label.NONE, value, delta, reason="kept, as its commit says")
        if is_baseline(e) and value is not None:
            return Decision(Status.KEEP, Label.NONE, value, reason=f"the baseline, from {counted(len(values), 'run')}")
        failed = next((run for run in e.counted_runs if run.label is not Label.NONE), None)
        if failed is not None and not is_baseline(e) and value is None:
            status = RULES[failed.label] or Status.CRASH
            return Decision(status, failed.label, reason=f"{failed.label.value}: {failed.detail}")
        if value is not None:
            reason = "it is not on the branch, so it was not kept; the decision itself was " + LOST
            return Decision(Status.DISCARD, Label.NO_GAIN, value, reason=reason)
        twin = None if e.proposal is None or is_baseline(e) or record is not None else self._twin(e, e.proposal)
        if twin is not None:
            reason = f"The same program as experiment {twin}; no run was spent on it."
            return Decision(Status.DISCARD, Label.DUPLICATE, reason=reason)
        return Decision(Status.CRASH, Label.ERROR, reason=f"its result was {LOST}, and its runs have left none")

    def _twin(self, e: Experiment, proposal: Proposal) -> int | None:
        """An earlier experiment with the same program: then this one was never committed."""
        digest = code_hash({**self._code(e.parent), **proposal.files})
        segment = self._draft.segment_of(self._session.id, e.number)
        found = self._draft.find_duplicate(self._session.id, f"{segment}:{digest}")
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
    with closing(GitWorkspace(project.root, tag, task_folder=project.root, editable=())) as probe:
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
