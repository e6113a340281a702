"""A dry run says what would be learned from and what not, and why; an export is whole or not there."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest

from autoresearchd.domain.errors import MissingCapability
from autoresearchd.domain.labels import Label
from autoresearchd.learner.data.data_summary import describe, rows, summarise, write_parquet
from autoresearchd.learner.data.trajectories import Dataset, Filters, dataset, split
from tests.unit.learner.records import record


def data() -> Dataset:
    records = [
        record(n, round_id=f"one/{n // 2}", reward=0.5 * (n % 4), adapter="v1" if n > 4 else None) for n in range(8)
    ]
    records += [record(20, label=Label.ABORTED_EARLY, reward=-1.0, feedback=""), record(21, reward=math.nan)]
    records += [record(22, completion=""), record(23, completion="")]
    return dataset(records, Filters())


def test_a_dry_run_tells_what_is_there_what_is_left_out_and_what_gives_no_signal() -> None:
    found = data()
    text = describe(summarise(found, split(found.trajectories)))
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
    assert describe(summarise(Dataset(()))) == "0 of 0 answers can be learned from; sessions: 0"
    only = dataset([record(label=None)], Filters())
    assert describe(summarise(only)).splitlines()[-1].endswith("its experiment has not been decided")


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
