"""A run that was measured on another validation set is no improvement, however good its number is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoresearchd.domain.experiment import Decision
from autoresearchd.domain.labels import Label, Status
from autoresearchd.evaluator.decide import decide, samples_of
from autoresearchd.evaluator.measure import measure, other_set, sizes
from autoresearchd.evaluator.noise_data import NoiseData
from tests.unit.evaluator.builders import experiment, incumbent, result, run, stage, task


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("n_val: 400", {"n_val": 400.0}),
        ("METRIC n_val=400", {"n_val": 400.0}),
        ("train rows: 1,300, validation rows: 120", {"validation_rows": 120.0}),
        ("loaded the data with val_size = 2_000 rows", {"val_size": 2000.0}),
        ("Number of test examples: 55", {"number_of_test_examples": 55.0}),
        ("num_val=3 n_val=4", {"num_val": 3.0, "n_val": 4.0}),
        ("n_val: 4\nn_val: 5", {"n_val": 5.0}),
        ("Val set size: 10\r\n", {"val_set_size": 10.0}),
        ("n_valid=7", {"n_valid": 7.0}),
        # not of the evaluation set, or no size
        ("valid rows: 380", {}),
        ("n_train: 400", {}),
        ("val_loss: 3", {}),
        ("test_size=0.2", {}),
        ("val_size: 20%", {}),
        ("eval steps: 200", {}),
        ("val: 3", {}),
        ("interval size: 3", {}),
        ("n_val: 4e3", {}),
        ("n_val: -4", {}),
        ("x" * 600 + " n_val: 4", {}),
        ("", {}),
    ],
)
def test_only_whole_numbers_that_clearly_are_of_the_evaluation_set_count(line: str, found: dict[str, float]) -> None:
    assert sizes(line) == found


def test_another_set_is_told_with_both_sizes_and_a_split_by_chance_says_nothing() -> None:
    baseline = [run(1.0, metrics={"n_val": 400.0, "n_test": n, "val_loss": 1.0}) for n in (7.0, 8.0)]
    assert other_set([run(0.5, metrics={"n_val": 400.0, "n_test": 9.0, "val_loss": 0.5})], baseline) == ""
    assert other_set([run(0.5, metrics={})], baseline) == ""
    assert other_set([run(0.5, metrics={"n_val": 400.0}), run(0.5, metrics={"n_val": 730.0})], baseline) == (
        "but it was measured on another validation set: n_val 730, the baseline's 400"
    )
    assert other_set([run(0.5, metrics={"n_val": 730.0})], []) == ""


def test_a_better_number_on_another_set_is_not_kept() -> None:
    """Else the session would go on from a program whose only merit is an easier validation set."""
    before = incumbent(0.99, 1.0, 1.01, metrics={"n_val": 400.0})
    runs = tuple(replace(r, experiment=0, index=k, seed=k) for k, r in enumerate(before.runs))
    before = replace(before, runs=runs)
    noise_data = NoiseData(samples_of(task(), before.runs))
    found = decide(task(), experiment(run(0.1, metrics={"n_val": 730.0})), before, noise_data, baseline=before.runs)
    assert isinstance(found, Decision), "and no further run is spent on it"
    assert (found.status, found.label) == (Status.DISCARD, Label.CONSTRAINT)
    assert "another validation set: n_val 730, the baseline's 400" in found.reason
    same = decide(task(), experiment(run(0.1, metrics={"n_val": 400.0})), before, noise_data, baseline=before.runs)
    assert not (isinstance(same, Decision) and same.label is Label.CONSTRAINT)


def test_sizes_are_read_where_the_program_computes_its_own_score_and_only_there() -> None:
    log = "validation rows: 120\nval_bpb: 0.9\n"
    assert measure(task(), result(stage()), {"training": log}).metrics == {"validation_rows": 120.0, "val_bpb": 0.9}
    logs = {"training": log, "evaluation": "METRIC val_bpb=0.9\n"}
    owned = measure(task(evaluated=True), result(stage(), stage("evaluation")), logs)
    assert "validation_rows" not in owned.metrics
