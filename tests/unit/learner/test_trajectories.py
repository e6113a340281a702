"""What is learned from is what it says: nothing unjudged, cheated or of another model, and nothing that leaks."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.labels import Label
from autoresearchd.learner.data.trajectories import (
    Filters,
    Reason,
    Record,
    Trajectory,
    dataset,
    grouped,
    split,
)
from tests.unit.learner.records import SAMPLING, START, record

BASE = Filters(model_hash="m", tokenizer_hash="t", template_hash="c")


def kept(*records: Record) -> tuple[Trajectory, ...]:
    return dataset(records, BASE).trajectories


def test_a_trajectory_holds_what_the_policy_saw_said_and_earned() -> None:
    (found,) = kept(record(3, reward=1.5, label=Label.NONE, adapter="v2"))
    assert (found.session, found.number, found.attempt, found.group, found.state_id) == ("one", 3, 0, "one/3", "one/3")
    assert (found.policy_version, found.completion, found.reward) == ("v2", "lr = 0.1", 1.5)
    assert (found.token_ids, found.logprobs, found.temperature) == ((5, 6, 7), (-0.1, -0.2, -0.3), 0.8)
    assert found.at == START + timedelta(minutes=3)
    assert found.feedback == "This was not kept."
    assert not found.censored


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"label": None, "reward": None}, Reason.UNDECIDED),
        ({"label": Label.INTERRUPTED, "reward": None}, Reason.INTERRUPTED),
        ({"label": Label.HOST_LOST, "reward": 3.0}, Reason.INTERRUPTED),
        ({"label": Label.DISK_FULL}, Reason.INTERRUPTED),
        ({"label": Label.STALE_PARENT, "reward": None}, Reason.NO_REWARD),
        ({"label": Label.METRIC_TAMPERING, "reward": 5.0}, Reason.TAMPERED),
        ({"label": Label.NOT_CAUSAL, "reward": 0.1}, Reason.TAMPERED),
        ({"completion": ""}, Reason.NO_TEXT),
        ({"completion": " \n"}, Reason.NO_TEXT),
        ({"messages": ()}, Reason.NO_TEXT),
        ({"reward": math.nan}, Reason.BAD_REWARD),
        ({"reward": math.inf}, Reason.BAD_REWARD),
        ({"reward": 1e308}, Reason.BAD_REWARD),
        ({"reward": -101.0}, Reason.BAD_REWARD),
        ({"token_ids": None}, Reason.NO_TOKENS),
        ({"logprobs": None}, Reason.NO_TOKENS),
        ({"token_ids": ()}, Reason.NO_TOKENS),
        ({"logprobs": (-0.1, -0.2)}, Reason.BAD_TOKENS),
        ({"logprobs": (-0.1, -0.2, math.nan)}, Reason.BAD_TOKENS),
        ({"logprobs": (-0.1, -0.2, 0.5)}, Reason.BAD_TOKENS),
        ({"sampling": {**SAMPLING, "temperature": 0.0}}, Reason.UNKNOWN_LOGPROBS),
        ({"sampling": {**SAMPLING, "top_p": 0.9}}, Reason.UNKNOWN_LOGPROBS),
        ({"sampling": {**SAMPLING, "top_k": 40}}, Reason.UNKNOWN_LOGPROBS),
        ({"sampling": {"temperature": 0.8, "logprobs_of": "server"}}, Reason.UNKNOWN_LOGPROBS),
        ({"sampling": {"logprobs_of": "server"}}, Reason.UNKNOWN_LOGPROBS),
        ({"model_hash": "other"}, Reason.OTHER_MODEL),
        ({"model_hash": None, "tokenizer_hash": None, "template_hash": None}, Reason.UNKNOWN_MODEL),
        ({"tokenizer_hash": "other"}, Reason.OTHER_TOKENIZER),
        ({"tokenizer_hash": None}, Reason.OTHER_TOKENIZER),
        ({"template_hash": "other"}, Reason.OTHER_TEMPLATE),
    ],
)
def test_what_cannot_be_learned_from_is_left_out_and_counted(changed: dict[str, Any], reason: Reason) -> None:
    found = dataset([record(1, **changed), record(2)], BASE)
    assert [each.number for each in found.trajectories] == [2]
    assert found.dropped == {reason: 1}
    assert found.read == 2


def test_a_cheat_is_learned_from_for_its_penalty_and_never_for_a_gain() -> None:
    records = [record(1, label=Label.METRIC_TAMPERING, reward=-5.0), record(2, label=Label.NOT_CAUSAL, reward=4.0)]
    found = dataset(records, BASE)
    assert [each.number for each in found.trajectories] == [1]
    assert found.dropped == {Reason.TAMPERED: 1}


def test_where_text_is_enough_the_answers_of_any_model_are() -> None:
    strange = record(token_ids=None, logprobs=None, tokenizer_hash=None, model_hash="other", sampling={})
    found = dataset([strange], replace(BASE, tokens=False))
    assert len(found.trajectories) == 1


def test_an_answer_that_is_read_twice_counts_once() -> None:
    found = dataset([record(1), record(1), record(1, session="two"), record(1, index=1)], BASE)
    assert len(found.trajectories) == 3
    assert found.dropped == {Reason.DUPLICATE: 1}


# ------------------------------------------------------------------ groups
def test_a_group_is_a_round_of_one_session() -> None:
    found = grouped(
        kept(
            record(1, round_id="r"),
            record(2, round_id="r"),
            record(3, round_id="q"),
            record(1, session="two", round_id="r"),
        )
    )
    assert {key: [t.number for t in members] for key, members in found.items()} == {
        ("one", "r"): [1, 2],
        ("one", "q"): [3],
        ("two", "r"): [1],
    }


def test_the_number_of_the_experiment_in_its_prompt_makes_no_other_state() -> None:
    def asked(number: int, about: str) -> Record:
        return record(
            number, messages=({"role": "user", "content": f"# Experiment {number}: {about}; best: experiment 7"},)
        )

    one, other, third = kept(asked(1, "x"), asked(12, "x"), asked(13, "y"))
    assert one.prompt_hash == other.prompt_hash != third.prompt_hash


# ------------------------------------------------------------------ held out
def many(session: str, count: int, start: int = 0, size: int = 1) -> list[Record]:
    return [
        record(n + 1, session, minutes=start + n, round_id=f"{session}/{n // size}", state_id=f"{session}/{n // size}")
        for n in range(count)
    ]


def test_the_latest_sessions_are_held_out_as_a_whole() -> None:
    found = split(kept(*many("new", 20, start=500), *many("old", 40), *many("middle", 20, start=200)), 0.25)
    assert {t.session for t in found.held_out} == {"new"}
    assert {t.session for t in found.train} == {"old", "middle"}
    assert (found.by, found.leaked) == ("session", 0)


def test_where_the_last_session_is_too_large_its_later_part_is_held_out_and_never_an_earlier_session() -> None:
    found = split(kept(*many("old", 20), *many("new", 60, start=500)), 0.25)
    assert found.by == "time"
    assert [t.number for t in found.held_out] == list(range(41, 61))
    assert {t.session for t in found.held_out} == {"new"}
    assert max(t.at for t in found.train) < min(t.at for t in found.held_out)


def test_sessions_that_are_not_split_are_trained_on_whenever_they_were_made() -> None:
    found = split(kept(*many("own", 40), *many("foreign", 40, start=500)), 0.25, {"own"})
    assert ({t.session for t in found.held_out}, len(found.held_out), len(found.train)) == ({"own"}, 10, 70)


def test_a_prompt_that_is_held_out_is_taken_out_of_training() -> None:
    """Sessions of one task begin with the same state."""
    first = ({"role": "user", "content": "the baseline"},)
    records = [*many("old", 30), *many("new", 10, start=500)]
    alike = [
        replace(r, answer=record(r.experiment.number, r.session, messages=first).answer)
        if r.experiment.number == 1
        else r
        for r in records
    ]
    found = split(kept(*alike), 0.25)
    assert found.leaked == 1
    assert len(found.train) == 29
    assert len(found.held_out) == 10


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 200)), min_size=4, max_size=40), st.data()
)
def test_nothing_of_the_held_out_part_is_seen_in_training(
    rows: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    records = [
        record(n, f"s{s}", minutes=at, round_id=f"s{s}/{g}", state_id=f"s{s}/{g}") for n, (s, g, at) in enumerate(rows)
    ]
    share = data.draw(st.floats(0.05, 0.5))
    everything = kept(*records)
    try:
        found = split(everything, share)
    except UsageError:
        return  # too few
    train, held = found.train, found.held_out
    assert train
    assert held
    assert {t.key for t in train}.isdisjoint({t.key for t in held})
    assert {t.prompt_hash for t in train}.isdisjoint({t.prompt_hash for t in held})
    assert {(t.session, t.group) for t in train}.isdisjoint({(t.session, t.group) for t in held})
    assert len(train) + len(held) + found.leaked == len(everything)
    if found.by == "time":
        assert max(t.at for t in train) < min(t.at for t in held)
        assert len(held) >= share * len(everything)
    else:
        assert {t.session for t in train}.isdisjoint({t.session for t in held})
        assert min(t.at for t in train) <= min(t.at for t in held)
        assert len(held) * 2 >= share * len(everything)


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_to_split_is_refused_with_a_way_out(count: int) -> None:
    with pytest.raises(UsageError, match="cannot be split") as caught:
        split(kept(*many("one", count)))
    assert caught.value.hint
