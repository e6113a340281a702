"""A run's label and metric: facts before words, the evaluation before the job, and never a number from a failed run."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.experiment import Measurement
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.task import Check, Constraint, Scoring
from autoresearchd.evaluator.keep.decide import belief_of, decide
from autoresearchd.evaluator.measure.measurement import measure, other_set, sizes
from tests.unit.evaluator.builders import experiment, incumbent, result, run, scoring, stage, task

GOOD = "step 00001 (0.3%) | loss: 5.0 | x\r\nval_bpb: 0.5\npeak_vram_mb: 100\n"
TRACE = """Traceback (most recent call last):
  File "/run/x/train.py", line 12, in <module>
    main()
  File "/usr/lib/python3.11/site-packages/torch/nn/f.py", line 9, in f
    raise ValueError("bad shape")
ValueError: bad shape
"""


def test_a_good_run_gives_metric_figures_and_curve() -> None:
    m = measure(task(), result(stage()), {"training": GOOD})
    assert (m.label, m.value, dict(m.metrics)) == (Label.NONE, 0.5, {"val_bpb": 0.5, "peak_vram_mb": 100.0})
    assert [p.loss for p in m.curve] == [5.0]


@pytest.mark.parametrize(
    ("outcome", "label"),
    [
        ("killed", Label.INTERRUPTED), ("lost", Label.HOST_LOST), ("disk_full", Label.DISK_FULL), ("oom", Label.OOM),
        ("timeout", Label.TIMEOUT), ("budget_overrun", Label.BUDGET_OVERRUN), ("something new", Label.ERROR),
    ],
)  # fmt: skip
@pytest.mark.parametrize("exit_code", [0, 1, -9, None])
def test_what_the_executor_saw_counts_more_than_what_was_printed(
    outcome: str, label: Label, exit_code: int | None
) -> None:
    m = measure(task(), result(stage(outcome=outcome, exit_code=exit_code)), {"training": GOOD})
    expected = Label.OOM if outcome == "something new" and exit_code == -9 else label
    assert (m.label, m.value, dict(m.metrics)) == (expected, None, {})
    assert m.detail


@pytest.mark.parametrize("exit_code", [0, -9])
def test_a_run_ended_for_its_many_files_is_an_error_that_says_so_and_not_out_of_memory(exit_code: int) -> None:
    ended = stage(outcome="failed", exit_code=exit_code, detail="it made more than 10,000 files")
    m = measure(task(), result(ended), {"training": GOOD})
    assert (m.label, m.detail) == (Label.ERROR, "training was ended: it made more than 10,000 files")


@given(st.integers(-64, 255).filter(bool), st.sampled_from(["ok", "failed"]), st.text(max_size=80))
def test_a_run_that_exits_with_an_error_never_has_a_metric(exit_code: int, outcome: str, tail: str) -> None:
    for evaluated in (False, True):
        log = GOOD + "METRIC val_bpb=0.1\n" + tail
        logs, ended = {"training": log, "evaluation": log}, result(stage(outcome=outcome, exit_code=exit_code))
        m = measure(task(evaluated=evaluated), ended, logs, result_file='{"val_bpb": 0}')
        assert m.value is None and m.label is not Label.NONE and not m.metrics


@pytest.mark.parametrize(
    ("log", "exit_code", "label", "words"),
    [
        (GOOD + TRACE, 1, Label.ERROR, "ValueError: bad shape (train.py:12)"),
        ("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB\n", 1, Label.OOM, "out of memory"),
        ("torch.OutOfMemoryError: CUDA error\n", 1, Label.OOM, "OutOfMemory"),
        ("MemoryError\n", 1, Label.OOM, "MemoryError"),
        ("", 137, Label.OOM, "signal 9"),
        ("", -9, Label.OOM, "signal 9"),
        ("", -11, Label.ERROR, "segmentation fault"),
        ("step 00003 (1.0%) | loss: 120.0 | remaining: 297s    FAIL\n", 1, Label.NAN_LOSS, "loss"),
        ("iter 5: loss nan, time 3ms\nRuntimeError: stop\n", 1, Label.NAN_LOSS, "loss"),
        ("AssertionError: Loss is NaN\n", 1, Label.NAN_LOSS, "loss"),
        ("OSError: [Errno 28] No space left on device\n", 1, Label.ERROR, "No space left"),
        ("\x1b[31msome words\x1b[0m\n\n", 3, Label.ERROR, "some words"),
        ("", 2, Label.ERROR, "nothing was printed"),
    ],
)
def test_a_failed_job_is_told_why_it_failed(log: str, exit_code: int, label: Label, words: str) -> None:
    m = measure(task(), result(stage(outcome="failed", exit_code=exit_code)), {"training": log})
    assert m.label is label
    assert words in m.detail and len(m.detail) < 500 and "\n" not in m.detail and "\x1b" not in m.detail


@pytest.mark.parametrize("outcome", ["failed", "timeout", "oom"])
def test_a_failed_check_is_named_by_its_command(outcome: str) -> None:
    t = task(checks=(Check("pytest -q tests", 30),))
    stages = result(stage(), stage("check-0", outcome, 1))
    m = measure(t, stages, {"training": GOOD, "check-0": "E   AssertionError: boom\n"})
    assert m.label is Label.CHECK_FAILED and m.value is None and "pytest -q tests" in m.detail
    odd = measure(t, result(stage(), stage("check-9", outcome, 1)), {"training": GOOD})
    assert odd.label is Label.CHECK_FAILED and "check-9" in odd.detail


def evaluated(
    said: str, training: str = GOOD, exit_code: int = 0, scores: Scoring | None = None, result_file: str | None = None
) -> Measurement:
    """What a run gives whose evaluation says something."""
    stages = result(stage(), stage("evaluation", "failed" if exit_code else "ok", exit_code))
    logs = {"training": training, "evaluation": said}
    return measure(task(scores, evaluated=True), stages, logs, result_file=result_file)


class TestWithAnEvaluation:
    """The evaluator owns the metric."""

    def test_the_jobs_own_claims_never_reach_the_metric(self) -> None:
        claims = "METRIC val_bpb=0.0001\npeak_vram_mb: 7\n"
        m = evaluated("METRIC val_bpb=0.9\n", claims, result_file='{"val_bpb": 0.0002}')
        assert m.value == 0.9 and dict(m.metrics) == {"val_bpb": 0.9, "peak_vram_mb": 7.0}

    def test_without_a_metric_of_the_evaluation_the_jobs_claim_does_not_step_in(self) -> None:
        m = evaluated("done\n", result_file='{"val_bpb": 0.0002}')
        assert m.label is Label.METRIC_MISSING and m.value is None and "val_bpb" not in m.metrics
        assert "does not count" in m.detail

    def test_a_constrained_figure_of_the_evaluation_cannot_be_talked_down_by_the_job(self) -> None:
        scores = scoring(constraints=(Constraint("artifact_bytes", max=10),))
        for printed, expected in (("99", 99.0), ("nan", None)):
            said = f"METRIC val_bpb=1\nartifact_bytes: {printed}\n"
            m = evaluated(said, "METRIC artifact_bytes=1\n", scores=scores)
            assert m.metrics.get("artifact_bytes") == expected

    @pytest.mark.parametrize("name", ["not_causal", "metric_tampering", "size_blocked", "gate_miss"])
    @pytest.mark.parametrize("exit_code", [0, 1])
    def test_its_verdict_stands_whatever_its_exit_code(self, name: str, exit_code: int) -> None:
        m = evaluated(f"METRIC val_bpb=1\nLABEL {name}\r\nbye\n", "", exit_code)
        assert m.label is Label(name) and m.value is None

    def test_it_cannot_give_other_labels_and_its_words_are_kept_from_policies(self) -> None:
        m = evaluated("LABEL keep\nLABEL interrupted\nSECRET VALIDATION TEXT\nValueError: SECRET\n", exit_code=1)
        assert m.label is Label.ERROR and "evaluation failed" in m.detail and "SECRET" not in m.detail


@pytest.mark.parametrize("printed", ["nan", "inf", "-inf", "1e999", "1e200", "-1e160"])
def test_a_metric_that_is_not_finite_or_larger_than_any_can_be_is_labelled_and_never_a_value(printed: str) -> None:
    m = measure(task(), result(stage()), {"training": f"val_bpb: 1\nval_bpb: {printed}\npeak_vram_mb: inf\n"})
    assert m.label is Label.NON_FINITE and m.value is None and not m.metrics
    assert all(math.isfinite(v) for v in m.metrics.values())


@given(st.text(max_size=300), st.text(max_size=300), st.sampled_from([0, 1, 137]))
def test_no_log_makes_the_measurement_raise(training: str, evaluation: str, exit_code: int) -> None:
    stages = result(stage(), stage("evaluation", exit_code=exit_code), stage("check-0", exit_code=exit_code))
    logs = {"training": training, "evaluation": evaluation, "check-0": training}
    for t in (task(), task(evaluated=True)):
        m = measure(t, stages, logs)
        assert (m.value is not None) == (m.label is Label.NONE)


def test_a_refusal_names_the_gates_that_were_missed_and_nothing_else_of_the_evaluation() -> None:
    said = "METRIC causal=0\nMETRIC secret_text=0\nMETRIC independent=7\nMETRIC val_bpb=0\nLABEL not_causal\n"
    m = evaluated(said, exit_code=3, scores=scoring(metrics=("val_bpb", "causal", "independent")))
    assert (m.label, m.value, dict(m.metrics)) == (Label.NOT_CAUSAL, None, {"causal": 0.0})
    assert m.detail == "the evaluation says not_causal: causal"


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
        ("valid rows: 380", {}), ("n_train: 400", {}), ("val_loss: 3", {}), ("test_size=0.2", {}),
        ("val_size: 20%", {}), ("eval steps: 200", {}), ("val: 3", {}), ("interval size: 3", {}), ("n_val: 4e3", {}),
        ("n_val: -4", {}), ("x" * 600 + " n_val: 4", {}), ("", {}),
    ],
)  # fmt: skip
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
    sized = [run(v, metrics={"test_size": v}) for v in (90.0, 100.0)]
    shorter = other_set(sized[:1], sized[1:], "test_size")
    assert shorter == "", "a metric may be called like a size"


def test_a_better_number_on_another_set_is_not_kept() -> None:
    """Else the session would go on from a program whose only merit is an easier validation set."""
    before = incumbent(0.99, 1.0, 1.01, metrics={"n_val": 400.0})
    belief = belief_of(task(), before)
    found = decide(task(), experiment(run(0.1, metrics={"n_val": 730.0})), before, belief, baseline=before.runs)
    assert (found.status, found.label) == (Status.DISCARD, Label.CONSTRAINT)
    assert "another validation set: n_val 730, the baseline's 400" in found.reason
    same = decide(task(), experiment(run(0.1, metrics={"n_val": 400.0})), before, belief, baseline=before.runs)
    assert same.label is not Label.CONSTRAINT
