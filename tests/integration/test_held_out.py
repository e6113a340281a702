"""Held-out states are what they were: the code that was edited, and what had been tried by then, not later."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autoresearchd.app.project import Project
from autoresearchd.domain import outlook
from autoresearchd.domain.errors import EnvironmentFailure
from autoresearchd.domain.labels import Label
from autoresearchd.learner.gate.held_out_states import HeldOut
from autoresearchd.learner.gate.held_out_states import opened as open_sessions
from autoresearchd.learner.gate.judge_answers import CheckingJudge, examine
from autoresearchd.models.client import estimate_tokens
from autoresearchd.policy.prompt import brief, sections
from tests.fakes.policies import make_state
from tests.integration.bench import Bench
from tests.integration.held_out import block, older, opened, session, trajectory, without_wal
from tests.unit.loop.test_turns import GROUP
from tests.unit.loop.test_turns import Endless as InTurn


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """SCALE 1 (baseline); 4, 2.5 (kept), 2 (kept), 0, 1.9, and 4 again, which is a duplicate."""
    found = Bench(tmp_path_factory.mktemp("held-out"))
    found.policy.values = (1.0, 4.0, 2.5, 2.0, 0.0, 1.9, 4.0)
    found.run(6)
    yield found
    found.close()


@pytest.fixture
def held_out(bench: Bench) -> Iterator[HeldOut]:
    with opened(bench) as found:
        yield found


def test_a_state_has_the_code_that_its_proposal_was_made_on(held_out: HeldOut) -> None:
    found = held_out.states([trajectory(n) for n in (1, 3, 4)]).states
    assert [s.code["train.py"] for s in found] == ["SCALE = 1.0\n", "SCALE = 2.5\n", "SCALE = 2.0\n"]
    assert [s.key for s in found] == ["t/t/1", "t/t/3", "t/t/4"]
    assert found[0].messages[0]["content"] == "Propose experiment 1."


def test_what_was_tried_later_is_not_known_at_a_state(held_out: HeldOut) -> None:
    first, fourth = held_out.states([trajectory(1), trajectory(4)]).states
    assert first.earlier == ()
    assert [("+SCALE = 4.0" in diff, "+SCALE = 2.5" in diff) for diff in fourth.earlier[:2]] == [
        (True, False),
        (False, True),
    ]
    assert len(fourth.earlier) == 3
    assert examine(first, block("SCALE = 1.0", "SCALE = 2.5"), held_out).label is Label.NONE
    assert examine(fourth, block("SCALE = 2.0", "SCALE = 2.5"), held_out).label is Label.DUPLICATE
    assert examine(fourth, block("SCALE = 2.0", "SCALE = 0.0"), held_out).label is Label.NONE, "its own experiment"
    assert examine(first, block("SCALE = 1.0", "SCALE = ("), held_out).label is Label.ILLEGAL_EDIT, "as before a run"


def test_who_passes_where_that_is_offered_is_neither_at_fault_nor_paid(held_out: HeldOut) -> None:
    [state] = held_out.states([trajectory(1)]).states
    known = outlook.Outlook((outlook.Prospect("train.py:SCALE", 1.0, "float", 0.0, 9.0, (2.0, 3.0), 2.0, 0.1, 0.1),))
    beside = make_state(state.code, outlook=replace(known, proposal={"train.py:SCALE": 3.0}))
    small = {"budget": 9_000, "count": estimate_tokens}
    offering = [brief.messages(beside, **small), brief.messages(beside, **small, structured=True)]
    offering.append(sections.messages(beside, forms="", **small))
    for asked in offering:
        seen = examine(replace(state, messages=asked), "PASS", held_out)
        assert (seen.valid, seen.label, seen.reward) == (False, Label.NO_OP, None)
    for asked in (brief.messages(replace(beside, outlook=known), **small), state.messages):
        assert examine(replace(state, messages=asked), "PASS", held_out).label is Label.MALFORMED_ANSWER


def test_questions_that_follow_from_an_answer_are_not_asked_again(held_out: HeldOut) -> None:
    repair = trajectory(2, attempt=1, group="t/2#2.1.1")
    again = trajectory(2, index=1, group="t/2#2.0.1")
    lost, stranger = trajectory(99), trajectory(1, session="other")
    found = held_out.states([repair, again, lost, stranger])
    assert found.states == ()
    assert sum(found.left_out.values()) == 4
    assert found.left_out["it asks to fix or to repeat an answer"] == 2


def test_a_sample_of_the_states_spans_the_session(held_out: HeldOut) -> None:
    found = held_out.states([trajectory(n) for n in range(1, 7)], most=3)
    assert [s.number for s in found.states] == [1, 3, 5]
    assert found.left_out == {"enough others are asked about": 3}


def test_members_of_a_round_are_one_state_before_all_of_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task=GROUP)
    bench.policy = InTurn(4.0, 2.5, 2.0)
    bench.run(3)
    with opened(bench) as held_out:
        members = [trajectory(n, group="t/1") for n in (2, 3)]  # the first of the round was not learned from
        (state,) = held_out.states(members).states
    assert state.earlier == (), "the other members were not there yet"
    bench.close()


def test_a_session_that_cannot_be_used_is_left_out_by_name_and_the_others_are_asked_about(
    bench: Bench, tmp_path: Path
) -> None:
    """Its repository was removed, its database or a row damaged, its commits lost, or the session deleted meanwhile."""
    copies = {name: tmp_path / name for name in ("gone", "damaged", "row", "empty", "deleted")}
    for name in ("damaged", "row", "empty", "deleted"):
        shutil.copytree(bench.root, copies[name])
    (copies["damaged"] / ".git/autoresearchd/state.db").write_bytes(b"no database" * 1000)
    for left in copies["damaged"].glob(".git/autoresearchd/state.db-*"):
        left.unlink()
    with closing(sqlite3.connect(copies["row"] / ".git/autoresearchd/state.db")) as db, db:
        db.execute("UPDATE experiment SET metrics = '{' WHERE number = 2")
    shutil.rmtree(copies["empty"] / ".git/objects")
    (copies["empty"] / ".git/objects").mkdir()
    shutil.rmtree(copies["empty"] / ".git/autoresearchd/pristine")
    read = [session("here/t", bench.root)]
    read += [session(f"{name}/t", root, "other" if name == "deleted" else "t") for name, root in copies.items()]
    asked = [trajectory(n, each.name) for each in read for n in (1, 3)]
    with open_sessions(read, [each.name for each in read]) as held_out:
        found = held_out.states(asked)
        assert {*held_out.lost, "row/t"} == {f"{name}/t" for name in copies}
    assert [(state.session, state.code["train.py"]) for state in found.states] == [
        ("here/t", "SCALE = 1.0\n"),
        ("here/t", "SCALE = 2.5\n"),
    ]
    assert sum(found.left_out.values()) == 10
    for name in copies:
        [count] = [count for why, count in found.left_out.items() if f"session {name}/t " in why]
        assert count == 2, name


def test_the_database_of_another_repository_is_judged_by_as_it_is(bench: Bench, tmp_path: Path) -> None:
    shutil.copytree(bench.root, tmp_path / "copy")
    database = tmp_path / "copy/.git/autoresearchd/state.db"
    before = without_wal(database)
    read = [session("copy/t", tmp_path / "copy", foreign=True)]
    with open_sessions(read, ["copy/t"]) as held_out:
        found = held_out.states([trajectory(n, "copy/t") for n in range(1, 7)]).states
        judge = CheckingJudge(held_out)
        outcomes = judge.judge_all([(state, block("SCALE = ", "SCALE = 1.5 + ")) for state in found])
        assert len(outcomes) == 6
        with pytest.raises(EnvironmentFailure):
            held_out.ground("copy/t").store.heartbeat(1, datetime.now(UTC), 1.0)
    assert database.read_bytes() == before
    Project.at(tmp_path / "copy").existing_store().close()
    assert database.read_bytes() != before, "as a repository's own commands would change it"


def test_the_database_of_another_repository_is_not_brought_to_this_version(bench: Bench, tmp_path: Path) -> None:
    shutil.copytree(bench.root, tmp_path / "copy")
    before = older(tmp_path / "copy/.git/autoresearchd/state.db")
    read = [session("copy/t", tmp_path / "copy", foreign=True)]
    with open_sessions(read, ["copy/t"]) as held_out:
        assert "was written by an older version" in held_out.lost["copy/t"]
    assert (tmp_path / "copy/.git/autoresearchd/state.db").read_bytes() == before
    assert not list((tmp_path / "copy/.git/autoresearchd").glob("state.db.backup-*"))
