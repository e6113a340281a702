"""Metrics are read as people and programs print them, and no text brings the reader down."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.errors import ConfigError
from autoresearchd.evaluator.measure.log_text import example_pattern, parse_metrics
from tests.unit.evaluator.builders import scoring

KARPATHY = (
    "\rstep 00012 (0.3%) | loss: 6.123456 | lrm: 1.00 | dt: 300ms | tok/sec: 1,700,000 | mfu: 39.8% | epoch: 1 "
    "| remaining: 297s    \n---\nval_bpb:          0.997900\ntraining_seconds: 300.1\npeak_vram_mb:     45060.2\n"
)


def test_the_summary_of_karpathys_train_py_is_read() -> None:
    assert parse_metrics(KARPATHY, scoring()) == {"val_bpb": 0.9979, "peak_vram_mb": 45060.2}


@pytest.mark.parametrize(
    ("printed", "value"),
    [
        ("0.5", 0.5), ("1.23 ms", 1.23), ("1.23ms", 1.23), ("45,060.2 MB", 45060.2), ("1_000_000", 1e6),
        ("87%", 87.0), ("87 %", 87.0), ("-1e-3", -1e-3), ("+.5", 0.5), ("5.", 5.0), ("1.7 tok/sec", 1.7),
        ("0.9 (best 0.8)", 0.9), ("0.9, really", 0.9), ("0.9 | lr 3", 0.9), ("12µs", 12.0), ("1E+400", math.inf),
        ("-inf", -math.inf),
    ],
)  # fmt: skip
def test_a_number_is_read_with_its_unit_and_separators(printed: str, value: float) -> None:
    for line in (f"val_bpb: {printed}", f"METRIC val_bpb={printed}", f"  METRIC val_bpb = {printed}\r"):
        assert parse_metrics(line, scoring()) == {"val_bpb": value}


@pytest.mark.parametrize("name", ["acc%", "f1(macro)", "pass+1", "a|b", "loss,val"])
def test_every_name_that_task_yaml_takes_is_read(name: str) -> None:
    for line in (f"METRIC {name}=0.5", f"{name}: 0.5", f'{{"{name}": 0.5}}'):
        assert parse_metrics(f"METRIC {name}2=3\n{line}", scoring(metric=name))[name] == 0.5


@pytest.mark.parametrize(
    "printed", ["1.2.3", "3/10", "12:30", "0,98", "0,987", "0x10", "1,23,4", "abc", "", "9" * 5000, "- 1"]
)
def test_what_is_no_number_is_not_half_read_as_one(printed: str) -> None:
    assert parse_metrics(f"val_bpb: {printed}\nMETRIC val_bpb={printed}", scoring()) == {}


@pytest.mark.parametrize("printed", ["nan", "NaN", "-nan", "None", "null"])
def test_not_a_number_is_reported_as_such_and_not_hidden_by_an_earlier_good_value(printed: str) -> None:
    found = parse_metrics(f"val_bpb: 0.5\nval_bpb: {printed}\n", scoring())
    assert math.isnan(found["val_bpb"])


def test_the_last_value_wins_whatever_the_form() -> None:
    text = 'METRIC val_bpb=3\nval_bpb: 2\n{"val_bpb": 1}\n'
    lines = text.splitlines()
    assert parse_metrics(text, scoring()) == {"val_bpb": 1.0}
    assert parse_metrics("\n".join(reversed(lines)), scoring()) == {"val_bpb": 3.0}
    assert parse_metrics("\n".join([lines[0], lines[2], lines[1]]), scoring()) == {"val_bpb": 2.0}


def test_progress_bars_and_colours_do_not_hide_a_metric() -> None:
    text = "  5%|█   | 1/20\r 10%|██  | 2/20\r\x1b[32mval_bpb: 0.9\x1b[0m\r\n"
    assert parse_metrics(text, scoring()) == {"val_bpb": 0.9}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("rmse=1.14923", "rmse"), ("  rmse = 1.14923", "rmse"), ("val_loss = 1.14923", "val_loss"),
        ("Validation RMSE: 1.14923", "rmse"), ("RMSE: 1.14923", "rmse"), ("Final test rmse = 1.14923", "rmse"),
        ("Val loss: 1.14923", "val_loss"), ("test accuracy: 1.14923%", "accuracy"),
    ],
)  # fmt: skip
def test_a_metric_is_read_as_people_print_it(line: str, name: str) -> None:
    """Else the first run of a program that is in order ends as one without a metric."""
    assert parse_metrics(f"begin\n{line}\nend\n", scoring(name))[name] == 1.14923
    if "=" in line:
        assert name not in parse_metrics(line, scoring(name, parse_mode="key_value"))


@pytest.mark.parametrize(
    "text",
    [
        "best rmse: 0.1", "train RMSE: 0.1", "Epoch 3 rmse: 0.1", "rmse of 3", "rmses: 2", "a rmse=1", "rmse == 3",
        "rmse: see below", "RMSE", "my_rmse=3", "rmse_std=0.1", "rmse=1.2.3", "rmse=lambda: 3", "lr=0.1 rmse=0.2",
        "Validation RMSE: 1\nTest RMSE: 2",
    ],
)  # fmt: skip
def test_what_only_looks_like_the_metric_is_not_taken_for_it(text: str) -> None:
    assert "rmse" not in parse_metrics(text + "\n", scoring("rmse"))


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("Epoch 3 | rmse -> 1.5 | lr 3", r"rmse\s+\->\s*(\S+)"),
        ("the best RMSE is 1.5", r"best\s+RMSE\s+is\s*(\S+)"),
        ("[eval] rmse (lower is better): 1.5", r"rmse\s+\(lower\s+is\s+better\):\s*(\S+)"),
        ("==> valid RMSE    1.500 m", r"valid\s+RMSE\s*(\S+)"),
        ("nothing of the kind", ""),
        ("rmse: none yet", ""),
    ],
)
def test_the_hint_for_a_metric_that_is_not_found_is_a_pattern_that_finds_it(line: str, pattern: str) -> None:
    made = example_pattern(f"x\n{line}\ny\n", "rmse")
    assert made == pattern
    if made:
        assert parse_metrics(line, scoring("rmse", parse_mode="regex", pattern=made))["rmse"] == 1.5


def test_a_result_file_wins_over_the_log() -> None:
    assert parse_metrics("val_bpb: 2", scoring(), result_file='{\n "val_bpb": 1\n}')["val_bpb"] == 1.0
    assert parse_metrics("", scoring(), result_file='[{"val_bpb": 3}, {"val_bpb": 1}]')["val_bpb"] == 1.0
    assert parse_metrics("", scoring(), result_file="val_bpb: 4\n")["val_bpb"] == 4.0
    assert parse_metrics("val_bpb: 2", scoring(), result_file="[[[broken") == {"val_bpb": 2.0}


def test_a_tasks_pattern_decides_alone_on_its_metric() -> None:
    score = scoring(parse_mode="regex", pattern=r"score is ([\d.]+)")
    text = "score is 0.4\nscore is 0.3!\nval_bpb: 9\npeak_vram_mb: 5\nscore is ...\n"
    assert parse_metrics(text, score) == {"val_bpb": 0.3, "peak_vram_mb": 5.0}
    named = scoring(parse_mode="regex", pattern=r"A=(?P<value>\S+) B=(?P<b>\S+)")
    assert parse_metrics("A=1 B=2\nA=3% B=4\n", named) == {"val_bpb": 3.0, "b": 4.0}


@pytest.mark.parametrize("pattern", ["(", "a", ""])
def test_a_pattern_that_cannot_be_used_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"scoring\.pattern") as caught:
        parse_metrics("a" * 100, scoring(parse_mode="regex", pattern=pattern))
    assert caught.value.hint


SLOW = r"(a+)+b", r"(a|a)*b", r"([a-z]+)*=(\d+)", r".*.*.*.*=(\d+)", r"a.*a.*a(\d+)", r"(?:\w*\s*){5}[=:]\s*([\d.]+)"


@pytest.mark.parametrize("pattern", SLOW)
def test_a_slow_pattern_on_hostile_lines_gives_up_instead_of_holding_the_night_up(pattern: str) -> None:
    began = time.process_time()
    assert parse_metrics(("a" * 2000 + "\n") * 5000, scoring(parse_mode="regex", pattern=pattern)) == {}
    assert time.process_time() - began < 20


pieces = ["METRIC val_bpb=", "val_bpb: ", '{"val_bpb":', "{", "}", "1.5", "nan", "1e999", "\n", "\r"]
pieces += ["\x1b[31m", "\0", "\ud800"]
text_like_a_log = st.lists(st.text(max_size=30) | st.sampled_from(pieces), max_size=40).map("".join)


@given(text_like_a_log, st.sampled_from(("auto", "metric", "key_value", "json", "regex")), st.none() | text_like_a_log)
def test_no_text_makes_the_reader_raise(text: str, mode: str, result_file: str | None) -> None:
    score = scoring(parse_mode=mode, pattern=r"val_bpb\W+(\S+)")
    found = parse_metrics(text, score, result_file=result_file)
    assert all(isinstance(v, float) for v in found.values())
