"""A damaged journal is rebuilt from backups, readable rows and git: nothing is lost, no number given out twice."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autoresearchd.app.project import Project
from autoresearchd.app.repair import Report, check_database, check_journal, ends_after, plan_session, repair
from autoresearchd.domain.errors import SessionLocked, StoreDamaged, UsageError
from autoresearchd.domain.experiment import Experiment, Limits
from autoresearchd.domain.labels import Phase, Status
from autoresearchd.domain.ports import Event, EventKind
from autoresearchd.learner.learner_process import hold_learner_lock
from autoresearchd.loop.daemon import FileSink
from autoresearchd.loop.upkeep.session_lock import SessionLock
from autoresearchd.store import backups
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema import health
from autoresearchd.workspace import layout
from tests.integration.bench import Bench, ByNumber

BEFORE, AFTER = 6, 14


class Often(ByNumber):
    """Every fifth proposal is one that was made before; most others are new, some of them better."""

    def __init__(self) -> None:
        self.values = tuple(4.0 if n % 5 == 4 else 2.0 + (-1) ** n * 3.0 / (n + 1) for n in range(60))


class Site:
    """A session with a backup in its middle, whose daemon has been killed."""

    def __init__(self, folder: Path, policy: ByNumber, *pieces: int) -> None:
        """pieces: how many experiments there are at each backup, and then in all."""
        self.bench = Bench(folder)
        self.bench.policy = policy
        self.database = self.bench.state / "state.db"
        for backup_at in pieces[:-1]:
            self.run(backup_at)
            self.back_up()
        self.run(pieces[-1])
        self.before = list(self.bench.store.experiments(self.bench.session.id))
        self.snapshot = folder / "snapshot"
        shutil.copytree(self.bench.root, self.snapshot, symlinks=True)

    def run(self, experiments: int) -> None:
        lab = self.bench.laboratory()
        self.bench.loop(experiments, lab).run()
        lab.workspace.close()

    def back_up(self) -> Path:
        return backups.make(self.bench.store.backup, self.bench.state / "backups", datetime.now(UTC))

    def reset(self) -> None:
        """Everything as it was when the session was made; at the same place, for git and the store remember paths."""
        self.bench.close()
        shutil.rmtree(self.bench.root)
        shutil.copytree(self.snapshot, self.bench.root, symlinks=True)
        self.bench.store = SqlStore.open(f"sqlite:///{self.database}")
        self.bench.session = self.bench.store.session("t")

    def stop(self, *, checkpoint: bool) -> None:
        """As kill -9 leaves it: with a write-ahead log, or after the last close without one."""
        if checkpoint:
            self.bench.close()
            return
        kept = {name: (self.bench.state / name).read_bytes() for name in ("state.db", "state.db-wal")}
        self.bench.close()
        for name, content in kept.items():
            (self.bench.state / name).write_bytes(content)

    def repair(self) -> Report:
        return repair(self.bench.root)

    def go_on(self, experiments: int) -> list[Experiment]:
        """What ``resume`` does: its checks, then the loop."""
        assert check_database(self.database) == ""
        bench = self.bench
        bench.store = SqlStore.open(f"sqlite:///{self.database}")
        bench.session = bench.store.session("t")
        workspace = bench.workspace()
        check_journal(bench.store, workspace, bench.session)
        workspace.close()
        if bench.store.segment(bench.session.id).fingerprint == "":
            bench.store.open_segment(bench.session.id, "f", "repaired", "cpu", datetime.now(UTC))
        self.run(experiments)
        return list(bench.experiments())

    def check(self, found: list[Experiment]) -> None:
        """Everything that git knew is there under its number, and the branch is what the store says."""
        assert [e.number for e in found] == list(range(len(found)))
        assert all(e.phase is Phase.DECIDED for e in found)
        for old, new in zip(self.before, found, strict=False):
            if old.commit is not None and (old.number == 0 or (old.proposal and old.proposal.files)):
                assert new.commit == old.commit
                assert self.bench.git("rev-parse", f"refs/autoresearch/t/{old.number}") == old.commit
            if old.number and old.decision.status is Status.KEEP:
                assert new.decision.status is Status.KEEP
                assert new.decision.value == pytest.approx(old.decision.value, rel=1e-5)
        kept = [e.commit for e in found if e.decision.status is Status.KEEP and e.commit]
        branch = self.bench.git("rev-list", "--reverse", "main..autoresearch/t").split()
        assert [c for c in dict.fromkeys(kept) if c != self.bench.session.base_commit] == branch
        totals = self.bench.store.totals(self.bench.session.id)
        assert totals.experiments == len(found)
        assert totals.keeps == sum(e.decision.status is Status.KEEP for e in found)


def overwrite(path: Path, seed: int, *, pages: int, first: int = 1) -> None:
    """Overwrite whole pages, each at a place that the seed chooses."""
    source = random.Random(seed)
    size = path.stat().st_size
    count = max(1, size // 4096)
    with path.open("r+b") as stream:
        for _ in range(pages):
            stream.seek(4096 * source.randrange(min(first, count - 1), count))
            stream.write(source.randbytes(4096))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("session"), Often(), BEFORE, AFTER)


@pytest.fixture
def site(made: Site) -> Iterator[Site]:
    made.reset()
    yield made
    made.bench.close()


def test_a_sound_database_is_left_alone(site: Site) -> None:
    site.stop(checkpoint=True)
    before = site.database.read_bytes()
    assert site.repair().lines() == ["the database is sound, and knows all that git knows: nothing to repair"]
    assert site.database.read_bytes() == before


@pytest.mark.parametrize("seed", range(2))
def test_pages_overwritten_anywhere_cost_no_experiment(site: Site, seed: int) -> None:
    site.stop(checkpoint=True)
    overwrite(site.database, seed, pages=1 + seed % 6)
    damaged = site.database.read_bytes()
    report = site.repair()
    if report.kept is None:
        assert not health.faults(site.database), "the page was not in use"
    else:
        assert (report.kept / "state.db").read_bytes() == damaged, "the damaged file is kept as it was"
    found = site.go_on(AFTER + 3)
    site.check(found)
    assert len(found) == len(site.before) + 3


@pytest.mark.parametrize("seed", [0, 3])
def test_a_damaged_write_ahead_log_costs_no_experiment(site: Site, seed: int) -> None:
    """SQLite drops what follows the damage without a word; git tells what is missing."""
    site.stop(checkpoint=False)
    overwrite(site.database.with_name("state.db-wal"), seed, pages=1 + seed % 3, first=seed % 2)
    if seed % 4 == 3:
        overwrite(site.database, seed, pages=2)
    site.repair()
    found = site.go_on(AFTER + 2)
    site.check(found)
    assert len(found) == len(site.before) + 2


def test_a_session_whose_log_was_lost_is_refused_before_it_gives_a_number_out_again(site: Site) -> None:
    site.stop(checkpoint=False)
    site.database.with_name("state.db-wal").unlink()
    shutil.copyfile(backups.generations(site.bench.state / "backups")[0], site.database)
    with pytest.raises(StoreDamaged, match="older than git") as caught:
        site.go_on(AFTER + 1)
    assert "doctor --repair" in caught.value.hint
    report = site.repair()
    assert any("experiment 8" in line for line in report.lines())
    site.check(site.go_on(AFTER + 2))


def test_a_kept_experiment_that_the_database_forgot_is_no_branch_that_the_user_moved(tmp_path: Path) -> None:
    site = Site(tmp_path, ByNumber(), 2)
    site.back_up()
    with site.bench.store._db.write() as c:
        c.exec_driver_sql("UPDATE session SET incumbent = base_commit, incumbent_experiment = 0")
        c.exec_driver_sql("UPDATE experiment SET phase = 'measured', status = NULL, label = NULL WHERE number = 2")
    with pytest.raises(StoreDamaged, match="as kept"):
        site.go_on(3)
    site.bench.close()
    site.repair()
    site.check(site.go_on(3))


def test_experiments_under_way_in_several_slots_are_no_damage(tmp_path: Path) -> None:
    """Else a repair takes their runs away, which `resume` would have gone on with."""
    site = Site(tmp_path, ByNumber(), 2)
    session = site.bench.store.session("t")
    for _ in range(2):
        site.bench.store.open_experiment(session.id, parent=session.incumbent, segment=0, at=datetime.now(UTC))
    site.stop(checkpoint=True)
    assert not site.repair().faults


@pytest.mark.parametrize("keep", [0, 100, 0.5])
def test_a_truncated_file_is_refused_and_rebuilt(site: Site, keep: float) -> None:
    site.stop(checkpoint=True)
    data = site.database.read_bytes()
    site.database.write_bytes(data[: int(keep * len(data)) if 0 < keep < 1 else int(keep)])
    with pytest.raises(StoreDamaged, match=r"state\.db"), Project.at(site.bench.root).existing_store() as store:
        check_database(site.database)
        check_journal(store, site.bench.workspace(), site.bench.session)
    site.repair()
    site.check(site.go_on(AFTER + 2))


def test_a_damaged_backup_is_passed_over_for_the_one_before(site: Site) -> None:
    folder = site.bench.state / "backups"
    good = backups.generations(folder)[0]
    newest = site.back_up()
    overwrite(newest, 1, pages=20)
    site.stop(checkpoint=True)
    site.database.write_bytes(b"")
    report = site.repair()
    assert report.base == good
    assert any(newest.name in note for note in report.notes)
    site.check(site.go_on(AFTER + 1))


@pytest.mark.parametrize("readable", [False, True])
def test_a_repair_builds_on_what_is_furthest_whatever_the_clock_said(site: Site, readable: bool) -> None:
    """The name of a backup, and what is written in it, are of the clock; that may have run ahead, and was set right."""
    folder = site.bench.state / "backups"
    old, ahead = backups.generations(folder)[0], datetime.now(UTC) + timedelta(days=400)
    newest = None if readable else site.back_up()
    old.rename(old.with_name(f"{ahead:%Y%m%dT%H%M%S%f}Z.db"))
    with closing(sqlite3.connect(backups.generations(folder)[0])) as db, db:
        db.execute("UPDATE session SET heartbeat_at = started_at + started_at / 50")
    site.stop(checkpoint=True)
    if readable:
        with closing(sqlite3.connect(site.database)) as db, db:
            db.execute("UPDATE experiment SET phase = 'measured', status = NULL, label = NULL WHERE number = 10")
    else:
        site.database.write_bytes(b"")
    assert site.repair().base == newest
    site.check(site.go_on(AFTER + 1))


def test_without_database_and_backup_git_alone_gives_the_session_back(site: Site) -> None:
    shutil.rmtree(site.bench.state / "backups")
    site.stop(checkpoint=True)
    site.database.unlink()
    report = site.repair()
    assert any("git alone" in note for note in report.notes)
    found = site.go_on(AFTER + 3)
    site.check(found)
    first, again = site.before[1].proposal, found[1].proposal
    assert (dict(again.files), again.hypothesis) == (dict(first.files), first.hypothesis)
    assert found[-1].segment == 1, "what runs now is measured against a baseline of its own"


def test_a_session_that_git_cannot_give_back_holds_up_no_other(site: Site) -> None:
    """Refs of a session without a task come with a fetch from elsewhere."""
    empty = site.bench.git("commit-tree", "4b825dc642cb6eb9a060e54bf8d69288fbee4904", "-m", "nothing")
    site.bench.git("update-ref", "refs/autoresearch/old/0", empty)
    site.stop(checkpoint=True)
    site.database.write_bytes(b"nonsense" * 1000)
    assert any("session old is left out" in note for note in site.repair().notes)
    site.check(site.go_on(AFTER + 3))


def test_a_repair_takes_itself_for_no_daemon(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds all locks, and after an upgrade told the user to kill the repair."""
    monkeypatch.setattr(health, "older_revision", lambda database: "0008")
    with SessionLock(layout.lock_path(site.bench.root, "t"), "t"):
        Project.at(site.bench.root).open_store(repairs=True).close()


def test_every_generation_of_damage_is_kept(site: Site) -> None:
    site.stop(checkpoint=True)
    for _ in range(2):
        site.database.write_bytes(b"nonsense" * 1000)
        site.repair()
    assert len(list((site.bench.state / "damaged").iterdir())) == 2


def test_a_session_that_a_daemon_holds_is_not_repaired(site: Site) -> None:
    site.stop(checkpoint=True)
    site.database.write_bytes(b"nonsense" * 1000)
    with SessionLock(layout.lock_path(site.bench.root, "t"), "t"), pytest.raises(SessionLocked) as caught:
        site.repair()
    assert caught.value.exit_code == 75
    assert site.database.read_bytes() == b"nonsense" * 1000


def test_a_session_whose_answers_a_learner_reads_is_not_repaired(site: Site) -> None:
    site.stop(checkpoint=True)
    site.database.write_bytes(b"nonsense" * 1000)
    with (
        hold_learner_lock(layout.locks_dir(site.bench.root)),
        pytest.raises(SessionLocked, match="a learner is at work") as caught,
    ):
        site.repair()
    assert caught.value.exit_code == 75
    assert site.database.read_bytes() == b"nonsense" * 1000


def test_where_nothing_ever_was_there_is_nothing_to_repair(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.close()
    shutil.rmtree(bench.state)
    bench.git("update-ref", "-d", "refs/autoresearch/t/0")
    with pytest.raises(UsageError, match="no session"):
        repair(bench.root)
    assert not bench.state.exists()


def test_a_session_created_after_the_last_backup_is_rebuilt_from_git(site: Site) -> None:
    with closing(sqlite3.connect(backups.generations(site.bench.state / "backups")[0])) as db, db:
        db.execute("PRAGMA foreign_keys=ON")
        db.execute("DELETE FROM session")
    site.stop(checkpoint=True)
    site.database.write_bytes(b"nonsense" * 1000)
    site.repair()
    site.check(site.go_on(AFTER + 3))


def test_a_session_rebuilt_from_git_ends_where_it_was_to_end(site: Site) -> None:
    """Else `resume` after a repair would go on for ever where `--max-experiments` was given."""
    shutil.rmtree(site.bench.state / "backups")
    site.stop(checkpoint=True)
    site.database.unlink()
    log = layout.daemon_log(site.bench.root)
    log.parent.mkdir(exist_ok=True)
    log.write_text("2026-11-22 10:00:00Z t session_started x; ends after experiments=20\n")
    site.repair()
    with SqlStore.open(f"sqlite:///{site.database}") as store:
        assert store.session("t").limits == Limits(max_experiments=20)


def test_what_a_daemon_says_as_it_begins_is_what_a_repair_reads(site: Site) -> None:
    project, log = Project.at(site.bench.root), layout.daemon_log(site.bench.root)
    log.unlink(missing_ok=True)
    assert plan_session(project, "t", seed=0)[0].limits == Limits()
    for policy, limits in (
        ("search", Limits(123456789, 0.125, 12.5)),
        ("search", Limits(max_usd=1e-05)),
        ("command:echo; ends after usd=3 x", Limits(max_experiments=7)),
        ("search", Limits()),
    ):
        text = f"session t on b: toy, score (minimize), policy {policy}{ends_after(limits)}"
        with closing(FileSink(log, "t")) as sink, closing(FileSink(log, "u")) as other:
            sink.emit(Event(EventKind.SESSION_STARTED, datetime.now(UTC), text))
            other.emit(Event(EventKind.SESSION_RESUMED, datetime.now(UTC), f"s{ends_after(Limits(9))}"))
        assert plan_session(project, "t", seed=0)[0].limits == limits, "the latest one's of this session"
