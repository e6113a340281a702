"""A power cut: everything dies at one instant, and what was not flushed is gone, empty or torn.

Simulated on the files that a session leaves, by what each of them is promised: the journal keeps every transaction that
was committed with a flush, and may lose the last one that was not (how long an experiment's bookkeeping took), its
shared-memory index, and may carry a torn tail; git's loose objects were flushed, but their names may be missing or
their files empty, as on a file system that flushes names and contents in any order; refs of experiments and of the tip
may be missing or empty, the branch may be empty; worktrees, exports, logs and results of runs were never flushed. What
is not simulated: sectors that are written in another order within one flushed file, and a disk that lies about
flushing.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from autoresearchd.domain.experiment import Experiment
from autoresearchd.loop.messages import is_keep
from autoresearchd.workspace.objects import is_commit_id
from tests.chaos.harness import SEED, SHORT, Harness
from tests.chaos.invariants import Journal
from tests.chaos.world import World
from tests.timing import wait_until

CUTS = 8
LIVELY = 4
"""Seed of a session whose first keep falls and whose second one is confirmed."""
UNDER_WAY = 8  # transactions: a session has begun and is not over
MOST_CUTS = 20  # on a busy machine the first cuts come before there is anything to lose, so the waits grow


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (2, 3, 4))])
def test_after_power_cuts_a_session_ends_as_if_there_had_been_none(harness: Harness, seed: int) -> None:
    world = harness.world("world", LIVELY, SHORT)
    users = world.users_files()
    stream = random.Random(seed)
    lost: list[str] = []
    for cut in range(MOST_CUTS):
        if cut >= CUTS and lost:
            break
        pid = harness.start(world, composed=True)
        if harness.nursery.wait(pid, stream.uniform(0.1, 0.8) * (1 + cut / CUTS)) is not None:
            break
        harness.cut(world, pid)
        lost += lose_what_was_not_flushed(world, stream)
    where = f"seed {seed}, lost {lost}"
    harness.ends_as_undisturbed(world, seed=LIVELY, where=where, users=users, composed=True)
    assert lost, "nothing was lost, and the test shows nothing"


def test_a_tip_that_is_lost_together_with_the_branch_at_it_is_written_again(harness: Harness) -> None:
    experiments = 2 * SHORT
    world = harness.world("world", SEED, experiments)
    pid = harness.start(world, composed=True)
    kept = wait_until(lambda: [e for e in Journal.read(world).experiments if e.number and is_keep(e)])[-1]
    harness.cut(world, pid)
    (world.root / f".git/objects/{kept.commit[:2]}/{kept.commit[2:]}").unlink()
    (world.root / ".git/refs/heads/autoresearch/night").write_bytes(b"")
    harness.ends_as_undisturbed(world, experiments, composed=True)


def lose_what_was_not_flushed(world: World, stream: random.Random) -> list[str]:
    """Take away, empty or tear at random; names of what was hit."""
    git = world.root / ".git"
    now = Journal.peek(world, world.root.parent / "aside")
    lost = tear_journal(world, now.experiments[-1] if now.experiments else None, stream)
    ours = [e for e in now.experiments if e.commit and e.number][-4:]
    for e in ours:
        below = world.git("rev-parse", f"{e.commit}^{{tree}}", f"{e.commit}:train.py", check=False)
        names = [e.commit, *(name for name in below.split() if is_commit_id(name))]  # an earlier cut may have hit them
        places = [git / "objects" / name[:2] / name[2:] for name in names]
        places += [git / "refs/autoresearch/night" / name for name in (str(e.number), "tip")]
        lost += [str(place) for place in places if hit(place, stream, 0.3)]
    branch = git / "refs/heads/autoresearch/night"
    if stream.random() < 0.4 and branch.exists():
        branch.write_bytes(b"")
        lost.append(str(branch))
    for lock in (git / "refs").rglob("*.lock"):
        os.utime(lock, (0, 0))  # a machine takes longer to come back than a lock takes to be known as stale
    never_flushed = (world.state / "worktrees", world.state / "pristine", world.state / "git", world.runs)
    places = [place for folder in never_flushed for place in sorted(folder.rglob("*"))]
    lost += [str(p) for p in places if p.is_file() and not p.is_symlink() and hit(p, stream, 0.3)]
    return lost


def hit(place: Path, stream: random.Random, chance: float) -> bool:
    """Remove a file or leave it empty or torn."""
    if stream.random() >= chance or not place.exists():
        return False
    mode, content = place.stat().st_mode, place.read_bytes()
    place.unlink()
    how = stream.choice(("gone", "empty", "torn"))
    if how != "gone" and not ("objects" in place.parts and how == "torn") and "refs" not in place.parts:
        place.write_bytes(content[: len(content) // 2] if how == "torn" else b"")
        place.chmod(mode)
    elif "refs" in place.parts and how == "empty":
        place.touch()
    return True


def tear_journal(world: World, latest: Experiment | None, stream: random.Random) -> list[str]:
    """The end of the write-ahead log: a torn tail, and without what was committed last, if that was not flushed."""
    wal = world.state / "state.db-wal"
    (world.state / "state.db-shm").unlink(missing_ok=True)
    if not wal.exists() or wal.stat().st_size == 0:
        return []
    lost, keep, ends = [], wal.stat().st_size, commits(wal)
    if len(ends) > 1 and latest is not None and latest.overhead_ms is not None:
        keep = ends[-2]  # that an experiment is settled is written down without a flush
        lost.append("the time that the last experiment took")
    torn = bytes(stream.randrange(256) for _ in range(stream.choice((0, 24, 1000, 6000))))
    wal.write_bytes(wal.read_bytes()[:keep] + torn)
    return lost


def commits(wal: Path) -> list[int]:
    """Ends of the transactions in a write-ahead log (https://www.sqlite.org/fileformat2.html#the_write_ahead_log)."""
    content = wal.read_bytes()
    size, salt = int.from_bytes(content[8:12], "big"), content[16:24]
    found = []
    for at in range(32, len(content) - size - 23, size + 24):
        if content[at + 8 : at + 16] != salt:
            break
        if int.from_bytes(content[at + 4 : at + 8], "big"):
            found.append(at + 24 + size)
    return found


def test_a_journal_that_ends_in_a_torn_transaction_is_read_up_to_the_one_before(harness: Harness, world: World) -> None:
    pid = harness.start(world, composed=True)
    wal, aside = world.state / "state.db-wal", world.root.parent / "aside"
    while not (wal.exists() and len(commits(wal)) > UNDER_WAY):
        assert harness.nursery.wait(pid, 0.02) is None
    harness.cut(world, pid)
    whole, ends = Journal.peek(world, aside), commits(wal)
    for end in reversed(ends):  # the last ones may hold what is no part of an experiment, such as a heartbeat
        os.truncate(wal, end - 100)
        (world.state / "state.db-shm").unlink(missing_ok=True)
        if Journal.peek(world, aside) != whole:
            break
    else:
        pytest.fail("no transaction is missing, and the test shows nothing")
    harness.ends_as_undisturbed(world, composed=True)
