"""check.yaml: what a task is held to is read as strictly as the task itself, so that no cheat is lost by a slip."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoresearchd.config.load_task import CHECK_FILE, load_check
from autoresearchd.domain.errors import ConfigError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.task import Replacement

WHOLE = """\
baseline:
  cpu: {value: 73.40, sigma: 1.9, budget: 1.5s, within: 0.15}
budget: 1s
edits:
  - name: half the rate
    change: [{search: "RATE = 0.001", replace: "RATE = 0.0005"}]
cheats:
  - name: reads the answers
    change: [{file: train.py, search: "import os\\n", after: "open('@PRIVATE@')\\n"}, {append: "# end\\n"}]
    expect: error
  - name: prints the metric
    change: [{prepend: "print('METRIC loss=0')\\n"}]
  - name: does both
    change: [{text: "print(1)\\n"}]
    expect: [error, metric_missing]
"""


def load(folder: Path, text: str) -> object:
    (folder / CHECK_FILE).write_text(text)
    return load_check(folder)


def test_a_task_without_one_is_held_to_nothing(tmp_path: Path) -> None:
    assert load_check(tmp_path) is None


def test_the_whole_of_it_is_read(tmp_path: Path) -> None:
    (tmp_path / CHECK_FILE).write_text(WHOLE)
    check = load_check(tmp_path)
    assert check is not None
    figures = check.baseline["cpu"]
    assert (figures.value, figures.sigma, figures.budget, figures.within) == (73.4, 1.9, 1.5, 0.15)
    assert figures.text == "73.40 ± 1.9", "as it is written, for it stands so in the README"
    assert check.budget == 1
    assert check.edits[0].change == (Replacement("replace", "RATE = 0.0005", "RATE = 0.001"),)
    first, second, third = check.cheats
    assert first.change == (
        Replacement("after", "open('@PRIVATE@')\n", "import os\n", "train.py"),
        Replacement("append", "# end\n"),
    )
    assert first.expected == {Label.ERROR}
    assert second.expected == {Label.NO_GAIN}, "unless it says otherwise, a cheat is worthless"
    assert third.expected == {Label.ERROR, Label.METRIC_MISSING}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("baselines: {}\n", "did you mean 'baseline'"),
        ("baseline: {gpu: {value: 1, sigma: 0}}\n", "there is no such profile"),
        ("cheats: [{name: a, change: [{search: x}]}]\n", "give one of replace"),
        ("cheats: [{name: a, change: [{search: x, replace: y, append: z}]}]\n", "replace and append"),
        ("cheats: [{name: a, change: [{replace: y}]}]\n", "replace needs it"),
        ("cheats: [{name: a, change: []}]\n", "at least 1 item"),
        ("cheats: [{name: a, change: [{append: x}], expect: wrong}]\n", "'wrong' is not an outcome's label"),
        ("edits: [{name: a, change: [{append: x}]}]\ncheats: [{name: a, change: [{append: y}]}]\n", "named 'a'"),
        ("edits: [{name: a, change: [{append: x}], expect: error}]\n", "there is no such key"),
    ],
)
def test_a_slip_is_told_with_what_would_be_right(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, text)
    assert words in str(raised.value)
    assert f"{CHECK_FILE}:" in raised.value.what
