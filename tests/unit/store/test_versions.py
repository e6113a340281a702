"""Versions of the local policy: the journal knows which is in use, and the way back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from autoresearchd.domain.errors import StoreError
from autoresearchd.domain.experiment import Decision
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.policy_versions import BaseModel, LearnerStatus, PolicyVersion, VersionStatus
from autoresearchd.store.repository import SqlStore
from tests.unit.store.driver import AT, Driver, new_proposal

BASE = BaseModel("./model", "m" * 64, "t" * 64, "c" * 64)
OTHER = BaseModel("./other", "n" * 64, "t" * 64, None)


def named(number: int) -> str:
    return f"v{number}-{number:08x}"


def add_version(store: SqlStore, number: int, base: BaseModel = BASE, at: datetime = AT, **more: Any) -> PolicyVersion:
    """Add a version with every field filled that needs no other row."""
    values = {"metrics": {"kl": 0.1 * number}, "reason": "made", **more}
    return store.add_version(named(number), f"{number:064x}", base, at, **values)


def in_use(store: SqlStore) -> list[str]:
    return [version.version for version in store.promoted_versions()]


def test_a_learner_run_comes_back_as_it_went(store: SqlStore) -> None:
    run = store.open_learner_run("grpo", "replay", 217, AT, {"steps": 40, "lr": 1e-5})
    assert (run.status, run.finished_at, run.steps) == (LearnerStatus.RUNNING, None, 0)
    going = store.record_learner_run(run.id, LearnerStatus.RUNNING, AT, steps=7)
    assert (going.steps, going.finished_at) == (7, None)
    later = AT + timedelta(hours=1)
    done = store.record_learner_run(
        run.id, LearnerStatus.DONE, later, metrics={"loss": 0.5, "nan": math.nan}, detail="all steps"
    )
    assert (done.steps, done.finished_at, done.detail) == (7, later, "all steps")
    assert done.metrics["loss"] == 0.5
    other = store.open_learner_run("grpo", "replay", 217, AT)
    assert [r.id for r in store.learner_runs()] == [run.id, other.id]
    assert store.learner_runs()[0] == done
    assert (done.algo, done.mode, done.trajectories) == ("grpo", "replay", 217)
    assert done.config == {"steps": 40, "lr": 1e-5}


def test_a_version_is_listed_as_a_candidate_with_its_lineage(store: SqlStore) -> None:
    run = store.open_learner_run("sdpo", "live", 3, AT)
    first = add_version(store, 1)
    second = add_version(store, 2, at=AT + timedelta(days=1), parent=named(1), learner_run_id=run.id)
    assert list(store.versions()) == [first, second]
    assert {v.status for v in store.versions()} == {VersionStatus.CANDIDATE}
    assert (second.parent, second.algo, second.learner_run_id) == (named(1), "sdpo", run.id)
    assert (first.parent, first.algo, first.created_at, first.promoted_at) == (None, "", AT, None)
    hashes = (first.model_hash, first.tokenizer_hash, first.template_hash)
    assert hashes == (BASE.model_hash, BASE.tokenizer_hash, BASE.template_hash)
    assert (first.folder, first.digest, first.reason) == (named(1), f"{1:064x}", "made")
    assert first.metrics == {"kl": 0.1}
    assert in_use(store) == []


def test_a_name_is_given_once(store: SqlStore) -> None:
    add_version(store, 1)
    with pytest.raises(StoreError, match=named(1)):
        add_version(store, 1)


def test_a_parent_or_a_run_that_is_lost_does_not_keep_a_version_from_being_listed(store: SqlStore) -> None:
    found = add_version(store, 4, parent="v3-lost", learner_run_id=99)
    assert (found.parent, found.learner_run_id) == (None, None)


def test_one_version_is_in_use_for_each_model(reopen: Callable[[], SqlStore]) -> None:
    store = reopen()
    for number, base in ((1, BASE), (2, BASE), (3, OTHER)):
        add_version(store, number, base)
    for minutes, number in enumerate((1, 3, 2)):
        at = AT + timedelta(minutes=minutes)
        promoted = store.promote_version(named(number), at, reason="better", metrics={"gain": 1.0})
        assert (promoted.status, promoted.promoted_at, promoted.reason) == (VersionStatus.PROMOTED, at, "better")
    again = reopen()  # the learner that promoted it is gone
    assert in_use(again) == [named(2), named(3)], "promoted last first"
    first, second, _ = again.versions()
    assert (first.status, second.metrics) == (VersionStatus.RETIRED, {"kl": 0.2, "gain": 1.0})
    assert named(2) in first.reason
    before = again.promoted_versions()
    again.promote_version(named(2), AT + timedelta(days=9), reason="once more")
    assert again.promoted_versions() == before, "it was in use already"
    again.close()
    store.close()


def test_a_rollback_leads_back_version_by_version_to_the_plain_model(store: SqlStore) -> None:
    for number in (1, 2, 3):
        add_version(store, number)
        store.promote_version(named(number), AT + timedelta(minutes=number))
    add_version(store, 9)
    restored = store.roll_back_version(named(3), reason="live reward fell")
    assert (restored.version, restored.status) == (named(2), VersionStatus.PROMOTED)
    assert restored.promoted_at == AT + timedelta(minutes=2)
    assert [v.status for v in store.versions()] == ["retired", "promoted", "refused", "candidate"]
    assert store.versions()[2].reason == "live reward fell"
    assert store.roll_back_version(named(2)) is not None
    assert store.roll_back_version(named(1)) is None
    assert in_use(store) == []


def test_what_is_not_in_use_is_not_rolled_back_and_what_is_or_was_not_refused(store: SqlStore) -> None:
    for number in (1, 2):
        add_version(store, number)
        store.promote_version(named(number), AT)
    for number in (1, 2):
        with pytest.raises(StoreError, match="rolled back"):
            store.refuse_version(named(number))
    with pytest.raises(StoreError, match="not in use"):
        store.roll_back_version(named(1))
    add_version(store, 3)
    refused = store.refuse_version(named(3), reason="no better", metrics={"gain": -1.0})
    assert (refused.status, refused.reason) == (VersionStatus.REFUSED, "no better")
    assert refused.metrics["gain"] == -1.0


def test_a_version_that_is_unknown_is_a_key_error(store: SqlStore) -> None:
    unknown: list[Callable[[], object]] = [
        lambda: store.promote_version("v1-00000000", AT),
        lambda: store.refuse_version("v1-00000000"),
        lambda: store.roll_back_version("v1-00000000"),
        lambda: store.record_learner_run(99, LearnerStatus.FAILED, AT),
    ]
    for step in unknown:
        with pytest.raises(KeyError):
            step()


def test_rewards_are_told_with_the_version_that_proposed(store: SqlStore, lab: Driver) -> None:
    for number, reward in enumerate((None, 0.5, -2.0)):
        e = lab.open()
        lab.propose(e, replace(new_proposal(number), adapter="" if number == 1 else "v3"))
        status = Status.CRASH if reward == -2.0 else Status.DISCARD
        label = Label.MALFORMED_ANSWER if reward == -2.0 else Label.NO_GAIN
        lab.decide(e, Decision(status, label, reward=reward))
    lab.open()
    found = store.rewards(lab.id)
    assert [(r.number, r.version, r.reward) for r in found] == [(1, "", 0.5), (2, "v3", -2.0)]
    assert (found[0].policy, found[0].started_at) == ("search", AT)
    assert list(store.rewards(lab.id, 1)) == [found[1]]
    assert list(store.rewards(99)) == []
