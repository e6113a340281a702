"""A version is not examined on what those that it comes from have learned, whatever the session is called by then."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from autoresearchd.learner.data.learned_from import identities, lesson, seen
from autoresearchd.learner.data.read_sessions import Reading, filters_for, material, read_sessions
from autoresearchd.learner.data.trajectories import Split
from tests.unit.learner.sessions import ONE_EACH, add_session, make_root


def split_of(reading: Reading) -> Split:
    found = material(reading, filters_for("replay")).parts
    assert found is not None
    return found


def test_what_a_parent_learned_from_is_known_again_and_what_came_after_it_is_new(tmp_path: Path) -> None:
    root = make_root(tmp_path / "a")
    add_session(root, outcomes=ONE_EACH * 2)
    reading = read_sessions([root])
    parts = split_of(reading)
    known = seen([lesson(parts.train, reading.sessions)], reading.sessions)
    assert all(known.holds(each) for each in parts.train)
    assert not any(known.holds(each) for each in parts.held_out), "the later part of the session is still unknown to it"


def test_a_session_is_known_again_beside_others_and_after_its_repository_was_moved(tmp_path: Path) -> None:
    root = make_root(tmp_path / "a")
    add_session(root, seed=1)
    reading = read_sessions([root])
    assert reading.sessions[0].name == "mar8"
    data = lesson(split_of(reading).train, reading.sessions)
    moved, other = tmp_path / "elsewhere", make_root(tmp_path / "b")
    shutil.move(root, moved)
    add_session(other, seed=2)
    together = read_sessions([moved, other])
    assert [each.name for each in together.sessions] == ["elsewhere/mar8", "b/mar8"]
    known = seen([data], together.sessions)
    assert set(known.last) == {"elsewhere/mar8"}, "the other began on the same day from the same commit"


def test_what_all_ancestors_learned_from_counts(tmp_path: Path) -> None:
    root = make_root(tmp_path / "a")
    add_session(root)
    sessions = read_sessions([root]).sessions
    [identity] = identities(sessions).values()
    lessons: list[dict[str, Any]] = [{"trained_on": {identity: number}} for number in (3, 5, 4)]
    assert seen(lessons, sessions).last == {"mar8": 5}
    assert seen([], sessions).last == {}


def test_of_a_version_that_named_its_sessions_alone_the_whole_of_them_was_seen(tmp_path: Path) -> None:
    root = make_root(tmp_path / "a")
    for number, tag in enumerate(("mar8", "mar9")):
        add_session(root, tag, days=number)
    reading = read_sessions([root])
    known = seen([{"sessions": ["here/mar8"], "train": 6}, {"trained_on": {}}], reading.sessions)
    assert known.last == {"mar8": None}
    assert {each.session for each in split_of(reading).train if known.holds(each)} <= {"mar8"}
