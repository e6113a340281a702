"""A journal rebuilt from git knows which keeps are confirmed, which are only believed, and which fell back."""

from __future__ import annotations

import shutil
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autoresearchd.app.repair import check_journal, repair
from autoresearchd.domain.errors import StoreDamaged
from autoresearchd.domain.experiment import Session
from autoresearchd.domain.labels import Status
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace.git import GitWorkspace
from autoresearchd.workspace.history import commit_message
from tests.integration.bench import TASK, Bench

WHEN = datetime(2026, 5, 6, tzinfo=UTC)
TIP = "refs/autoresearch/t/tip"


class Chain:
    """A session of which git alone tells: keeps 1, 2 and 4, each on the one before, and a discarded 3."""

    def __init__(self, folder: Path, task: str = TASK) -> None:
        self.bench = Bench(folder, task)
        self.bench.close()
        self.base = self.bench.session.base_commit
        self.database = self.bench.state / "state.db"
        self.commits = {0: self.base}

    def write(self, workspace: GitWorkspace, number: int, parent: str, *, kept: bool = True) -> str:
        trailers = {"Experiment": str(number), "Policy": "search"}
        trailers |= {"Metric": f"score={4 / number}", "Delta": "0.1"} if kept else {}
        message = commit_message(f"SCALE → {number}", "it may be better", trailers)
        files = {"train.py": f"SCALE = {number}\n"}
        self.commits[number] = workspace.commit(number=number, parent=parent, files=files, message=message, when=WHEN)
        return self.commits[number]

    def grow(self) -> None:
        with closing(self.bench.workspace()) as workspace:
            second = self.write(workspace, 2, self.write(workspace, 1, self.base))
            self.write(workspace, 3, second, kept=False)
            self.write(workspace, 4, second)

    def place(self, *, confirmed: int, tip: int | None) -> None:
        """Where the branch and the tip are; without a tip's ref, as an earlier version left it, None."""
        self.bench.git("update-ref", "refs/heads/autoresearch/t", self.commits[confirmed])
        self.bench.git("update-ref", *(("-d", TIP) if tip is None else (TIP, self.commits[tip])))

    def rebuilt(self) -> tuple[Session, dict[int, bool | None]]:
        """The session after its database is lost, and what is said of its keeps."""
        self.database.unlink()
        repair(self.bench.root)
        return self.found()

    def found(self) -> tuple[Session, dict[int, bool | None]]:
        with SqlStore.open(f"sqlite:///{self.database}") as store, closing(self.bench.workspace()) as workspace:
            session = store.session("t")
            check_journal(store, workspace, session)
            kept = (e for e in store.experiments(session.id) if e.decision and e.decision.status is Status.KEEP)
            return session, {e.number: e.confirmed for e in kept if e.number}


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    made = Chain(tmp_path)
    made.grow()
    return made


@pytest.mark.parametrize(
    ("confirmed", "tip", "expected", "incumbent"),
    [
        (1, 4, {1: True, 2: None, 4: None}, 4),
        (1, 2, {1: True, 2: None, 4: None}, 4),  # killed before the tip was moved to what was just kept
        (1, 1, {1: True, 2: False, 4: False}, 1),
        (4, 4, {1: True, 2: True, 4: True}, 4),
        (4, None, {1: True, 2: True, 4: True}, 4),
    ],
)
def test_only_what_the_branch_has_is_confirmed(
    chain: Chain, confirmed: int, tip: int | None, expected: dict[int, bool | None], incumbent: int
) -> None:
    """Else a belief would be shown as proven after a repair, or a chain that fell would come back."""
    chain.place(confirmed=confirmed, tip=tip)
    session, found = chain.rebuilt()
    assert found == expected
    assert (session.confirmed, session.confirmed_experiment) == (chain.commits[confirmed], confirmed)
    assert (session.incumbent, session.incumbent_experiment) == (chain.commits[incumbent], incumbent)


def test_a_confirmation_that_the_database_forgot_is_found_on_the_branch(chain: Chain) -> None:
    """A database put back by hand would test, and could drop, what is on the branch already."""
    chain.place(confirmed=1, tip=4)
    chain.rebuilt()
    chain.place(confirmed=4, tip=4)
    with pytest.raises(StoreDamaged, match="not confirmed"):
        chain.found()
    repair(chain.bench.root)
    session, found = chain.found()
    assert found == {1: True, 2: True, 4: True} and session.confirmed_experiment == 4


def test_a_tip_whose_ref_is_lost_does_not_undo_what_the_journal_believes(chain: Chain) -> None:
    chain.place(confirmed=1, tip=4)
    chain.rebuilt()
    chain.place(confirmed=1, tip=None)
    shutil.copyfile(chain.database, kept := chain.database.with_name("kept.db"))
    with SqlStore.open(f"sqlite:///{kept}") as store, store._db.write() as c:
        c.exec_driver_sql("DELETE FROM experiment WHERE number = 3")  # something to repair
    kept.replace(chain.database)
    repair(chain.bench.root)
    session, found = chain.found()
    assert found == {1: True, 2: None, 4: None} and session.incumbent_experiment == 4


def test_with_reverts_in_the_history_what_fell_is_told_from_what_came_after(tmp_path: Path) -> None:
    """The branch has it all then: a keep that fell, the way back, and the confirmed one after it."""
    chain = Chain(tmp_path, TASK + "history: revert\n")
    with closing(chain.bench.workspace()) as workspace:
        first = chain.write(workspace, 1, chain.base)
        second = chain.write(workspace, 2, first)
        workspace.move_tip(second)
        back = workspace.fall_back(first, 1, WHEN)
        tried = chain.write(workspace, 3, back, kept=False)
        after = workspace.record_discard(number=3, commit=tried, incumbent=back, when=WHEN)
        last = chain.write(workspace, 4, after)
        workspace.move_tip(last)
        workspace.advance(chain.base, last)
    session, found = chain.rebuilt()
    assert found == {1: True, 2: False, 4: True}
    assert (session.confirmed, session.incumbent) == (last, last)
