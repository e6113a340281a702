"""What is learned from is what it says: nothing unjudged, cheated or of another model, and nothing that leaks."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.domain.errors import MissingCapability, UsageError
from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import Label, Phase
from autoresearchd.domain.policy_versions import BaseModel
from autoresearchd.domain.proposal import Answer, Cost, Generation
from autoresearchd.learner.data.data_summary import cold_start, describe, lacking, outlook, rows, signal, write_parquet
from autoresearchd.learner.data.trajectories import Dataset, Reason, Record, Trajectory, dataset, split
from autoresearchd.learner.data.trajectories import record as record_of

START = datetime(2026, 11, 1, tzinfo=UTC)
SAMPLING: Mapping[str, Any] = {"temperature": 0.8, "top_p": 1.0, "top_k": 0, "logprobs_of": "sampling distribution"}
BASE = BaseModel("m", "m", "t", "c")


def record(
    number: int = 1,
    session: str = "one",
    *,
    minutes: int | None = None,
    label: Label | None = Label.NO_GAIN,
    reward: float | None = -0.5,
    error: str = "",
    feedback: str = "This was not kept.",
    index: int = 0,
    round_id: str = "",
    **generation: Any,
) -> Record:
    """An answer of a local model that was tried and brought nothing, with what is changed."""
    usual = Generation(
        ({"role": "system", "content": "You do research."}, {"role": "user", "content": f"{session} {number}"}),
        "lr = 0.1", (5, 6, 7), (-0.1, -0.2, -0.3), SAMPLING, "m", "t", "c",
    )  # fmt: skip
    answer = Answer("model", Cost(), replace(usual, **generation), error)
    at = START + timedelta(minutes=number if minutes is None else minutes)
    e = Experiment(1, number, 0, Phase.DECIDED, "0" * 40, at)
    return record_of(session, e, answer, label, reward, feedback, index, round_id, round_id)


def kept(*records: Record) -> tuple[Trajectory, ...]:
    return dataset(records, BASE).trajectories


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"label": None, "reward": None}, Reason.UNDECIDED),
        ({"label": Label.HOST_LOST, "reward": 3.0}, Reason.INTERRUPTED),
        ({"label": Label.STALE_PARENT, "reward": None}, Reason.NO_REWARD),
        ({"label": Label.METRIC_TAMPERING, "reward": 5.0}, Reason.TAMPERED),
        ({"label": Label.NOT_CAUSAL, "reward": 0.1}, Reason.TAMPERED),
        ({"completion": " \n"}, Reason.NO_TEXT),
        ({"messages": ()}, Reason.NO_TEXT),
        *(({"reward": reward}, Reason.BAD_REWARD) for reward in (math.nan, math.inf, 1e308, -101.0)),
        *((changed, Reason.NO_TOKENS) for changed in ({"token_ids": None}, {"logprobs": None}, {"token_ids": ()})),
        *(({"logprobs": (-0.1, *rest)}, Reason.BAD_TOKENS) for rest in ((-0.2,), (-0.2, math.nan), (-0.2, 0.5))),
        *(
            ({"sampling": {**SAMPLING, **changed}}, Reason.UNKNOWN_LOGPROBS)
            for changed in ({"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 40}, {"logprobs_of": "server"})
        ),
        ({"sampling": {"logprobs_of": "server"}}, Reason.UNKNOWN_LOGPROBS),
        ({"model_hash": "other"}, Reason.OTHER_MODEL),
        ({"model_hash": None, "tokenizer_hash": None, "template_hash": None}, Reason.UNKNOWN_MODEL),
        ({"tokenizer_hash": None}, Reason.OTHER_TOKENIZER),
        ({"template_hash": "other"}, Reason.OTHER_TEMPLATE),
    ],
)
def test_what_cannot_be_learned_from_is_left_out_and_counted(changed: dict[str, Any], reason: Reason) -> None:
    found = dataset([record(1, **changed), record(2)], BASE)
    assert [each.number for each in found.trajectories] == [2]
    assert found.dropped == {reason: 1}
    assert found.read == 2


def test_a_cheat_is_learned_from_for_its_penalty() -> None:
    assert [each.reward for each in kept(record(label=Label.METRIC_TAMPERING, reward=-5.0))] == [-5.0]


def test_an_answer_that_is_read_twice_counts_once() -> None:
    found = dataset([record(1), record(1), record(1, session="two"), record(1, index=1)], BASE)
    assert len(found.trajectories) == 3
    assert found.dropped == {Reason.DUPLICATE: 1}


# ------------------------------------------------------------------ held out
def many(session: str, count: int, start: int = 0) -> list[Record]:
    return [record(n + 1, session, minutes=start + n, round_id=f"{session}/{n}") for n in range(count)]


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
    records = [*many("old", 30)[1:], *many("new", 10, start=500)[1:]]
    alike = [record(1, "old", minutes=0, messages=first), record(1, "new", minutes=500, messages=first)]
    found = split(kept(*records, *alike), 0.25)
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
    records = [record(n, f"s{s}", minutes=at, round_id=f"s{s}/{g}") for n, (s, g, at) in enumerate(rows)]
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


# ---------------------------------------------------------------------- signal
def made(*rewards: float, **more: Any) -> list[Trajectory]:
    """One trajectory for each reward, of one round where it is named."""
    return [record(n, reward=reward, **more).trajectory for n, reward in enumerate(rewards, 1)]


def test_a_round_with_different_rewards_is_what_grpo_learns_from() -> None:
    found = signal(made(1.0, -1.0, round_id="r"))
    assert (found.groups, found.informative, found.singles) == (1, 1, 0)
    assert lacking(found, "grpo") == ""


def test_rounds_of_equal_rewards_teach_grpo_nothing_and_so_it_starts_cold() -> None:
    found = signal([*made(-2.0, -2.0, round_id="r"), *made(-2.0, session="two")])
    assert (found.groups, found.informative, found.singles, found.comparable) == (1, 0, 1, 0)
    assert "in no group do rewards differ" in cold_start(found, "grpo")
    assert cold_start(found, "ppo") == "all rewards are equal"
    (_, line) = outlook(found, "grpo")
    assert line.startswith("nothing can be learned: ")


def test_single_answers_are_compared_with_others_of_their_session() -> None:
    found = signal([*made(1.0, -1.0), *made(0.5, session="two")])
    assert (found.singles, found.comparable) == (3, 2)
    assert "2 of 3 single answers with their neighbours, which is an approximation" in outlook(found, "grpo")[0]


def test_a_policy_that_can_hardly_write_an_edit_is_first_shown_how() -> None:
    bad = made(*[-2.0] * 9, label=Label.MALFORMED_ANSWER, error="no edit")
    good = record(20, reward=2.0, label=Label.NONE).trajectory
    found = signal([*bad, good])
    assert (found.usable, found.good) == (1, 1)
    assert cold_start(found, "grpo") == "only 1 of 10 answers held an edit that could be used"
    assert "for its first steps it imitates the 1 kept answer" in outlook(found, "grpo")[-1]
    assert cold_start(found, "grpo", least=0.05) == ""


def test_feedback_is_what_sdpo_learns_from_whatever_the_rewards_are() -> None:
    found = signal([*made(-2.0, -2.0), *made(-2.0, session="two", feedback=" ")])
    assert found.taught == 2
    assert lacking(found, "sdpo") == ""
    assert cold_start(found, "sdpo") == ""
    assert outlook(found, "sdpo") == ["SDPO is taught by the feedback on 2 of 3 answers"]
    silent = signal(made(-2.0, 1.0, feedback=""))
    assert outlook(silent, "sdpo")[-1] == "nothing can be learned: no answer has feedback"


# ---------------------------------------------------------------------- summary
def data() -> Dataset:
    records = [
        record(n, round_id=f"one/{n // 2}", reward=0.5 * (n % 4), adapter="v1" if n > 4 else None) for n in range(8)
    ]
    records += [record(20, label=Label.ABORTED_EARLY, reward=-1.0, feedback=""), record(21, reward=math.nan)]
    records += [record(22, completion=""), record(23, completion="")]
    return dataset(records)


def test_a_dry_run_tells_what_is_there_what_is_left_out_and_what_gives_no_signal() -> None:
    found = data()
    text = describe(found, split(found.trajectories))
    assert text.splitlines() == [
        "9 of 12 answers can be learned from; sessions: 1, 2026-11-01 00:00 to 2026-11-01 00:20 UTC",
        "left out:",
        "       2  there is no text, or no prompt",
        "       1  its reward is none that the formula gives",
        "groups: 5; of one answer: 1; of several: 4, with equal rewards (no signal): 0",
        "rewards: mean 0.556, standard deviation 0.808, from -1 to 1.5; resting on a forecast: 1",
        "outcomes: no_gain 8, aborted_early 1",
        "answered by: base model 6, v1 3",
        "stored tokens: 27; answers with feedback: 8",
        "training: 6; held out: 3 (what was made last); left out of both, since their prompt is held out: 0",
    ]


def test_an_empty_dataset_is_described_too() -> None:
    assert describe(Dataset(())) == "0 of 0 answers can be learned from; sessions: 0"
    only = dataset([record(label=None)])
    assert describe(only).splitlines()[-1].endswith("its experiment has not been decided")


def test_an_export_comes_back_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "trajectories.parquet"
    if importlib.util.find_spec("pyarrow") is None:
        with pytest.raises(MissingCapability, match="pyarrow") as caught:
            write_parquet(data().trajectories, target)
        assert caught.value.hint == "pip install pyarrow"
        assert not target.exists()
        return
    import pyarrow.parquet

    write_parquet(data().trajectories, target)
    assert pyarrow.parquet.read_table(target).to_pylist() == rows(data().trajectories)
    assert [each.name for each in tmp_path.iterdir()] == [target.name]
