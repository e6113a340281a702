"""What a damaged journal still holds of answers, repairs and counts is there again after it was rebuilt."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from autoresearchd.domain.experiment import Decision, Measurement
from autoresearchd.domain.labels import Label, Phase, Status
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.version import NewLearnerRun
from autoresearchd.store.migrate import open_store, upgrade
from autoresearchd.store.rebuild import Draft, is_whole
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.salvage import Salvage, salvage
from tests.contract.store_contract_answers import asked_again, new_answer
from tests.contract.store_contract_versions import named, new_version
from tests.contract.store_driver import AT, PARENT, Driver, commit_of, new_proposal, new_session


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def lab(database: Path) -> Iterator[Driver]:
    """A session with an experiment that was repaired and kept after three answers, and one of a search."""
    with open_store(f"sqlite:///{database}") as store:
        session = store.create_session(new_session(), AT)
        store.open_segment(session.id, "f0", "start", "cpu", AT)
        lab = Driver(store, session.id)
        e = lab.open()
        first = new_answer(error="no such line")
        for answer in (first, asked_again(first, {"role": "user", "content": "again"})):
            store.record_answer(lab.id, e.number, answer, AT)
        e = store.record_commit(lab.id, lab.propose(e, replace(new_proposal(0), charged=True)).number, commit_of(7))
        e = lab.run(e, Measurement(Label.ERROR, detail="NameError"))
        store.record_answer(lab.id, e.number, new_answer(attempt=1), AT)
        e = lab.propose(e, replace(new_proposal(0, attempt=1), charged=True))
        e = lab.run(store.record_commit(lab.id, e.number, commit_of(0)), Measurement(Label.NONE, 1.0))
        lab.decide(e, Decision(Status.KEEP, Label.NONE, 1.0, reward=0.5), commit_of(0))
        lab.decided(Status.DISCARD, 2.0)
        store.add_visit(lab.id, 0)
        yield lab


def rebuilt(database: Path, tmp_path: Path) -> tuple[SqlStore, Salvage]:
    """A journal made from nothing but the rows that can be read."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    found = salvage(database, scratch, None)
    with Draft(tmp_path / "new.db", None) as draft:
        draft.merge(found)
        draft.finish("repaired")
    return open_store(f"sqlite:///{tmp_path / 'new.db'}"), found


def sql(database: Path, *statements: str) -> None:
    with closing(sqlite3.connect(database)) as db, db:
        for statement in statements:
            db.execute(statement)


def test_answers_costs_counts_and_visits_are_those_of_before(lab: Driver, database: Path, tmp_path: Path) -> None:
    store = lab.store
    before = [store.answers(lab.id, 0), store.totals(lab.id), store.label_counts(lab.id), store.role_stats(lab.id),
              store.visits(lab.id), store.tree(lab.id, 0), store.experiment(lab.id, 0)]  # fmt: skip
    sql(database, "UPDATE tally SET decided = 77", "UPDATE totals SET usd = 99.0")
    new, found = rebuilt(database, tmp_path)
    with new as store:
        assert (found.unreadable, found.rejected) == (0, 0)
        assert before == [
            store.answers(lab.id, 0), store.totals(lab.id), store.label_counts(lab.id), store.role_stats(lab.id),
            store.visits(lab.id), store.tree(lab.id, 0), store.experiment(lab.id, 0),
        ]  # fmt: skip


def test_answers_without_an_experiment_or_their_words_do_no_harm(lab: Driver, database: Path, tmp_path: Path) -> None:
    sql(database, "DELETE FROM answer_body WHERE answer_index = 0", "INSERT INTO answer SELECT session_id, 55, "
        "answer_index, attempt, at, usd, tokens_in, tokens_out, seconds, model, form, finish, model_hash, "
        "tokenizer_hash, template_hash, adapter, sampling, error FROM answer WHERE number = 0")  # fmt: skip
    new, _ = rebuilt(database, tmp_path)
    with new as store:
        first, second, third = store.answers(lab.id, 0)
        assert (first.generation.messages, first.generation.completion) == ((), "")
        assert second.generation.messages[-1]["content"] == "again"
        assert third.cost.usd == 0.5
        assert store.totals(lab.id).usd == 1.75
        store.record_answer(lab.id, 0, new_answer(), AT)
        assert store.answers(lab.id, 0)[-1] == new_answer()


def test_a_journal_of_the_version_before_keeps_its_runs(database: Path, tmp_path: Path) -> None:
    upgrade(f"sqlite:///{database}", head="0003")
    sql(
        database,
        "INSERT INTO session VALUES (1, 't', 'autoresearch/t', '.', 'stopped', '', NULL, 'search', 'local', 'a', 'a', "
        "0, 7, 1, NULL, 0, NULL, NULL, NULL, '{}')",
        "INSERT INTO totals VALUES (1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0)",
        "INSERT INTO segment VALUES (1, 0, 0, 'f', 'start', '', 1)",
        "INSERT INTO experiment (session_id, number, segment, phase, status, label, value, gpu_s, started_at, parent, "
        "commit_sha) VALUES (1, 0, 0, 'decided', 'keep', '', 1.0, 0, 1, 'a', 'a')",
        "INSERT INTO run (session_id, number, run_index, seed, started_at, finished_at, label, value, duration_s, "
        "tier, host, device, detail) VALUES (1, 0, 0, 5, 1, 2, '', 1.0, 3, '', '', 'cpu', '')",
    )
    new, found = rebuilt(database, tmp_path)
    with new as store:
        assert found.rejected == 0
        assert [r.value for r in store.experiment(1, 0).good_runs] == [1.0]
        assert store.label_counts(1) == {"": 1}


def test_a_proposal_that_takes_the_place_of_a_lost_one_has_its_runs(
    lab: Driver, database: Path, tmp_path: Path
) -> None:
    lab.store.close()
    sql(database, "DELETE FROM proposal", "DELETE FROM proposal_body")
    with Draft(tmp_path / "new.db", database) as draft:
        assert draft.ensure_experiment(lab.id, 0, PARENT, AT).proposal is None
        e = draft.add_proposal(lab.id, 0, Proposal({"train.py": "x = 1\n"}, "", "search"), diff="", code_hash="h")
        assert ([r.value for r in e.good_runs], len(e.runs)) == ([1.0], 2)
        assert draft.without_runs(lab.id) == []


def test_a_repair_that_is_lost_is_not_gone_on_with(lab: Driver, database: Path, tmp_path: Path) -> None:
    e = lab.store.record_commit(lab.id, lab.propose(lab.open()).number, commit_of(2))
    e = lab.propose(lab.run(e, Measurement(Label.ERROR)), new_proposal(9, attempt=1))
    lab.run(lab.store.record_commit(lab.id, e.number, commit_of(3)), Measurement(Label.NONE, 0.5))
    lab.store.close()
    sql(database, f"DELETE FROM proposal_body WHERE number = {e.number} AND attempt = 1")
    with Draft(tmp_path / "new.db", database) as draft:
        left = draft.ensure_experiment(lab.id, e.number, PARENT, AT)
        assert (left.phase, left.attempt, left.commit, is_whole(left)) == (Phase.MEASURED, 0, None, False)
        decided = draft.ensure_experiment(lab.id, 0, PARENT, AT)
        assert (decided.commit, decided.attempt) == (commit_of(0), 1)


def test_a_lost_repair_may_be_made_again(lab: Driver, database: Path, tmp_path: Path) -> None:
    e = lab.store.record_commit(lab.id, lab.propose(lab.open()).number, commit_of(2))
    lab.propose(lab.run(e, Measurement(Label.ERROR)), new_proposal(9, attempt=1))
    lab.store.close()
    sql(database, f"DELETE FROM proposal_body WHERE number = {e.number} AND attempt = 1")
    with Draft(tmp_path / "new.db", database) as draft:
        left = draft.ensure_experiment(lab.id, e.number, PARENT, AT)
        assert (left.phase, left.attempt, is_whole(left)) == (Phase.PROPOSED, 0, True)
        again = Driver(draft.store, lab.id)
        left = again.run(draft.store.record_commit(lab.id, e.number, commit_of(2)), Measurement(Label.ERROR))
        assert again.propose(left, new_proposal(9, attempt=1)).attempt == 1


def test_a_version_in_use_stays_so_where_its_parent_and_its_learner_run_are_lost(
    lab: Driver, database: Path, tmp_path: Path
) -> None:
    run = lab.store.open_learner_run(NewLearnerRun("grpo", "replay", 3), AT)
    lab.store.add_version(new_version(1), AT)
    lab.store.add_version(replace(new_version(2, parent=named(1)), learner_run_id=run.id), AT)
    lab.store.add_version(new_version(3, parent=named(2)), AT)
    lab.store.promote_version(named(2), AT, reason="better")
    before = lab.store.versions()
    sql(
        database,
        "PRAGMA foreign_keys=OFF",
        f"UPDATE policy_version SET status = 'torn' WHERE version = '{named(1)}'",
        "DELETE FROM learner_run",
    )
    new, found = rebuilt(database, tmp_path)
    with new as store:
        assert found.rejected == 1
        assert list(store.versions()) == [replace(before[1], parent=None, learner_run_id=None, algo=""), before[2]]
        assert [version.version for version in store.promoted_versions()] == [named(2)]
