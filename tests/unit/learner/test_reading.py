"""Sessions of several places are read once each, told apart, and never written to."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.policy_versions import BaseModel
from autoresearchd.learner.data.read_sessions import (
    Reading,
    filters_for,
    lesson,
    locate,
    material,
    read_sessions,
    seen,
)
from autoresearchd.learner.data.trajectories import Reason, Split, grouped
from autoresearchd.models.model_files import base_model
from tests.unit.learner.sessions import ONE_EACH, add_session, make_root

REPLAY = filters_for("replay")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "work" / "project")


# ---------------------------------------------------------------------- what is learned from
def test_a_session_becomes_groups_with_its_failures_in_them(root: Path) -> None:
    add_session(root)
    found = material(read_sessions([root]), REPLAY)
    trajectories = found.data.trajectories
    assert [t.number for t in trajectories] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [t.reward for t in trajectories] == [reward for reward, _ in ONE_EACH]
    assert [[t.number for t in group] for group in grouped(trajectories).values()] == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert found.parts is not None
    assert found.parts.by == "time"
    assert found.problem == ""
    assert found.signal.groups == 3, "of the training part"


def test_sessions_of_other_repositories_are_foreign_and_nothing_of_them_is_held_out_for_experiments(
    tmp_path: Path, root: Path
) -> None:
    other = make_root(tmp_path / "other" / "project")
    add_session(root)
    add_session(other, days=1)
    found = read_sessions([root, other], root)
    assert [session.foreign for session in found.sessions] == [False, True]
    assert [session.foreign for session in read_sessions([root, other]).sessions] == [True, True]
    parts = material(found, REPLAY, at_home=True).parts
    assert parts is not None
    assert {t.session for t in parts.held_out} == {"work/project/mar8"}
    assert {t.session for t in parts.train} == {"work/project/mar8", "other/project/mar8"}, "all are learned from"
    alone = material(read_sessions([other], root), REPLAY, at_home=True).parts
    assert alone is not None and alone.held_out, "where there is no other session, these are split"


def test_answers_of_another_base_model_are_left_out_where_it_is_known(root: Path) -> None:
    add_session(root, "one", model_hash="aa11")
    add_session(root, "two", model_hash="bb22", days=1)
    found = read_sessions([root])
    assert found.models == {"m (aa11)": 8, "m (bb22)": 8}
    base = BaseModel("m", "bb22", "t", "c")
    assert material(found, filters_for("replay", base)).data.dropped == {Reason.OTHER_MODEL: 8}
    assert material(found, filters_for("replay")).data.dropped == {}


def test_live_learning_needs_no_stored_tokens(root: Path) -> None:
    add_session(root, tokens=False)
    found = read_sessions([root])
    replay, live = material(found, filters_for("replay")), material(found, filters_for("live"))
    assert (len(replay.data.trajectories), len(live.data.trajectories)) == (0, 8)
    assert replay.problem == "none of 8 answers can be learned from"
    assert "local:DIR" in replay.hint


# ---------------------------------------------------------------------- which repositories


@pytest.mark.parametrize(
    ("name", "words"),
    [("missing", "there is no such folder"), ("file", "there is no such folder"), ("plain", "is in no git repository")],
)
def test_a_place_that_is_no_repository_is_named(root: Path, tmp_path: Path, name: str, words: str) -> None:
    add_session(root)
    (tmp_path / "plain").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=words) as caught:
        locate(root, [tmp_path / name])
    assert f"--from {tmp_path / name}" in caught.value.what


def test_sessions_in_which_no_model_was_asked_are_named_with_their_policies(root: Path) -> None:
    add_session(root, "found", outcomes=(), policy="search")
    with pytest.raises(UsageError, match=r"no model has answered .* found \(policy search\)") as caught:
        read_sessions([root])
    assert "start --policy local" in caught.value.hint


# ---------------------------------------------------------------------- the base model
def model(folder: Path, template: str = "{{ messages }}", *, own_file: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_text("{}")
    settings = {"eos_token": "</s>"} if own_file else {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if own_file:
        (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.parametrize("own_file", [True, False])
def test_a_model_on_disk_is_known_by_its_weights_tokenizer_and_template(tmp_path: Path, own_file: bool) -> None:
    found = base_model(model(tmp_path / "m", "a template\n", own_file=own_file))
    assert found.template_hash == hashlib.sha256(b"a template\n").hexdigest()
    assert found.model_hash
    assert found.tokenizer_hash


def test_a_broken_model_is_named(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", own_file=False)
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        base_model(folder)
    (tmp_path / "none").mkdir()
    with pytest.raises(UsageError, match="holds no model"):
        base_model(tmp_path / "none")


# ---------------------------------------------------------------------- seen
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
    [identity] = (session.identity for session in sessions)
    lessons: list[dict[str, Any]] = [{"trained_on": {identity: number}} for number in (3, 5, 4)]
    assert seen(lessons, sessions).last == {"mar8": 5}
    assert seen([], sessions).last == {}
