"""Mistakes in task.yaml: each is told with its line, its key and its remedy, and none ends in a traceback."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.config import load_task, read_task_text
from autoresearchd.domain.errors import ConfigError
from autoresearchd.domain.task import Task
from tests.unit.config.test_load_task import HERE, MINIMAL


def mistake(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read_task_text(text)
    assert caught.value.hint, "an error says how to fix it"
    assert caught.value.exit_code == 2
    return caught.value


def with_line(section: str, addition: str) -> str:
    """The minimal file in block style, with a line added to a section (line 3 of workspace, …)."""
    tree: dict[str, Any] = yaml.safe_load(MINIMAL)
    text = yaml.safe_dump(tree, sort_keys=False)
    return text.replace(f"{section}:\n", f"{section}:\n  {addition}\n") if section else text + addition + "\n"


def test_all_mistakes_of_a_file_are_told_at_once_in_the_order_of_their_lines() -> None:
    text = (HERE / "wrong.yaml").read_text()
    error = mistake(text)
    told = [line for line in str(error).splitlines() if line.startswith("task.yaml:")]
    assert [line.split(": ")[0] + " " + line.split(": ")[1] for line in told] == [
        "task.yaml:1 name", "task.yaml:3 workspace.target_fil", "task.yaml:4 workspace.protected[0]",
        "task.yaml:7 execution.budget", "task.yaml:8 execution.env.AUTORESEARCHD_SEED",
        "task.yaml:8 execution.env.9x", "task.yaml:9 execution.memory_mb", "task.yaml:11 scoring.metric",
        "task.yaml:12 scoring.direction", "task.yaml:13 scoring.constraints[0]", "task.yaml:14 scoring.pattern",
        "task.yaml:15 on", "task.yaml:17 profiles.cpu.execution.budgt", "task.yaml:18 profiles.gpu",
    ]  # fmt: skip
    assert (error.line, error.key) == (1, "name")
    assert str(error).count("→") == len(told)


@pytest.mark.parametrize(
    ("section", "addition", "key", "words", "hint"),
    [
        ("execution", "startup-grace: 3", "execution.startup-grace", "no such key", "'startup_grace'"),
        ("execution", "memory_mb: 0", "execution.memory_mb", "0 is too small", "more than 0"),
        ("execution", "memory_mb: abc", "execution.memory_mb", "whole number is needed, found the text 'abc'", "8192"),
        ("", "search: {ranges: {LR: 1..0.1}}", "search.ranges.LR", "lower end, 1, is not below", "1e-5..1e-1"),
        ("", """search: {choices: {OPT: [adam, "b'"]}}""", "search.choices.OPT", "cannot be put in quotes", ""),
        ("", "search: {ranges: {LR: 1..10 step 2}}", "search.ranges.LR", "is not a range", "1e-5..1e-1"),
        ("", "search: {fixed: [LR], ranges: {LR: 0..1}}", "search.ranges.LR", "named in search.fixed, too", "one"),
        ("execution", "env: {FLAG: true}", "execution.env.FLAG", "found true", "quotes"),
        ("execution", "env: {A.B: x}", "execution.env.A.B", "not a variable name", "letters"),
        ("scoring", "metric_source: Std-out", "scoring.metric_source", "'Std-out' is not among", "mean 'stdout'?"),
        ("scoring", "metric_source: evaluator", "scoring.metric_source", "no evaluation.command", "evaluation:"),
        ("scoring", "baseline: .inf", "scoring.baseline", "finite", ""),
        ("scoring", "min_delta: -0.1", "scoring.min_delta", "-0.1 is too small", "at least 0"),
        ("scoring", "constraints: [{max: 1}]", "scoring.constraints[0].metric", "missing", "add `metric: …`"),
        ("workspace", "protected: [/etc/passwd]", "workspace.protected[0]", "not inside", "relative"),
        ("workspace", 'protected: ["a\\0b"]', "workspace.protected[0]", "characters", ""),
        ("workspace", "protected: [train.py]", "workspace.protected", "covers the editable", "one"),
        ("", "curve: {pattern: 'x ([0-9]+)'}", "curve.pattern", "no group named loss", "(?P<loss>"),
        ("", "fleet: {slots: [{host: -oProxyCommand=x}]}", "fleet.slots[0].host", "not a host name", ""),
        ("", "fleet: {cloud: {machines: 0}}", "fleet.cloud.machines", "too small", "at least 1"),
        ("", "fleet: {cloud: {accelerators: 8xH100}}", "fleet.cloud.accelerators", "not a kind of GPU", "H100:1"),
        ("", "fleet: {cloud: {cpus: many}}", "fleet.cloud.cpus", "not an amount", "8+"),
        ("", "fleet: {cloud: {max_hourly_cost: 0}}", "fleet.cloud.max_hourly_cost", "too small", "more than 0"),
        ("", "fleet: {cloud: {acelerators: H100}}", "fleet.cloud.acelerators", "", "accelerators"),
        ("", "? [a, b]\n: c", "", "not text", ""),
        ("", "roles: !!python/object:os.system []", "roles", "tag", "plain values"),
        ("", 'prompt: {system: "\\ud800"}', "prompt.system", "surrogate", ""),
        ("", "evaluation: {command: a, hide: [data]}", "evaluation.hide[0]", "file of the task", "evaluation.private"),
    ],
)
def test_a_mistake_is_told_with_its_key_and_its_remedy(
    section: str, addition: str, key: str, words: str, hint: str
) -> None:
    error = mistake(with_line(section, addition))
    assert error.key == key
    assert words in str(error)
    assert hint in str(error)
    assert error.line is not None


BELOW = "task:\n" + "".join(f"  {line}\n" for line in MINIMAL.splitlines())


@pytest.mark.parametrize(
    ("text", "key", "line", "words"),
    [
        (MINIMAL.replace("scoring:", "scorng:"), "scorng", 4, "did you mean 'scoring'?"),
        (MINIMAL.replace("{metric: ", "{metrc: "), "scoring.metrc", 4, "did you mean 'metric'?"),
        (MINIMAL.replace("{metric: val_loss, direction: minimize}", ""), "scoring", 4, "this key is missing"),
        ("name: a\nworkspace: {target_file: a.py}\nscoring: {metric: a, direction: minimize}\n", "execution", 1, "add"),
        (
            MINIMAL.replace("run_command: python train.py", "network: true")
            + "profiles: {cuda: {execution: {budget: 9}}}\n",
            "execution.run_command",
            3,
            "add `run_command: python train.py`",
        ),
        (BELOW.replace("scoring: {", "scoring: {metrics: 1, "), "scoring.metrics", 5, "a list"),
        (BELOW + "history: revert\n", "history", 6, "below `task:`"),
        (
            with_line("execution", "budget: 60") + "profiles: {cuda: {execution: {timeout: 100}}}\n",
            "profiles.cuda.execution.timeout", 10, "less than 120 s: budget 60 s",
        ),
        (
            MINIMAL.replace("train.py}\n", "train.py, data: [data/val.bin]}\n", 1)
            + "evaluation: {command: a, private: [data]}\n",
            "evaluation.private", 5, "hides",
        ),
        *(
            (MINIMAL.replace("train.py}\n", f"{target}}}\n", 1), "workspace.target_file", 2, "")
            for target in ("[]", "[a.py, ./a.py]", ".", "task.yaml", "''", "/a.py", ".GIT/x")
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_told_where_it_is_and_nothing_else(text: str, key: str, line: int, words: str) -> None:
    error = mistake(text)
    assert (error.key.removesuffix("[0]").removesuffix("[1]"), error.line) == (key, line)
    assert words in str(error)
    assert str(error).count("task.yaml:") == 1


def test_a_file_that_is_not_there_or_is_no_file_is_told_and_does_not_hang(tmp_path: Path) -> None:
    def told() -> str:
        with pytest.raises(ConfigError) as caught:
            load_task(tmp_path)
        return str(caught.value)

    assert "no such file" in told()
    (tmp_path / "task.yml").write_text(MINIMAL)
    assert "rename task.yml" in told()
    os.mkfifo(tmp_path / "task.yaml")
    assert "not a regular file" in told()


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (b"", None, "empty"), (b"# nothing but a comment\n\n", None, "empty"), (b"- a\n- b\n", 1, "no mapping"),
        (b"name: a\nworkspace:\n\ttarget_file: b\n", 3, "tabs"), (b"name: a: b\n", 1, "quotes"),
        (b"name: a\n---\nname: b\n", 2, "---"), (b"name: a\nx: *nothing\n", 2, "not YAML"),
        (b"name: a\nx: b\xff\n", 2, "UTF-8"), (b"name: a\nx: b\x07\n", 2, "character"),
        (b"a: " + b"[" * 5000 + b"]" * 5000, None, "nested"), (b"a: &a [*a]\n", 1, "nested"),
        (b"name: a\n" + b"#" * 300_000, None, "256 KiB"), (b"a: 9" + b"9" * 5000, 1, "not a usable value"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_yaml_is_refused_with_the_place_where_it_ends(
    tmp_path: Path, data: bytes, line: int | None, words: str
) -> None:
    (tmp_path / "task.yaml").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        load_task(tmp_path)
    assert words in str(caught.value)
    assert caught.value.hint
    assert str(tmp_path / "task.yaml") in str(caught.value)
    if line is not None:
        assert caught.value.line == line


def test_a_few_lines_of_aliases_cannot_grow_into_gigabytes() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "20,000 values" in str(mistake("\n".join(levels)))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.one_of(st.text(max_size=200), st.text(alphabet="ab:-[]{}&*!#|>'\"%@`,? \n\t0~<.", max_size=60)))
def test_any_text_gives_a_task_or_an_error_that_can_be_read(text: str) -> None:
    try:
        read_task_text(text)
    except ConfigError as error:
        assert error.hint


def _places(tree: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [p for key, value in children for p in [(*place, key), *_places(value, (*place, key))]]


FULL: dict[str, Any] = yaml.safe_load((HERE / "full.yaml").read_text())
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["auto", "5m", "../x", "/", "(", "[]"]),
    st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=3)), max_size=3),
    st.dictionaries(st.text(max_size=3), st.one_of(st.none(), st.integers(), st.booleans()), max_size=3),
)  # fmt: skip


@settings(max_examples=200, deadline=None, derandomize=True)
@given(place=st.sampled_from(_places(FULL)), value=VALUES, profile=st.booleans())
def test_any_value_in_any_key_gives_a_task_or_an_error_with_a_line(
    place: tuple[Any, ...], value: Any, profile: bool
) -> None:
    tree: dict[str, Any] = yaml.safe_load(yaml.safe_dump(FULL))
    target: Any = tree
    if profile:
        tree["profiles"] = {"cuda": {}}
        target = tree["profiles"]["cuda"]
        place = place[: next((i for i, step in enumerate(place) if isinstance(step, int)), len(place))]
        for step in place[:-1]:
            target = target.setdefault(step, {})
    else:
        for step in place[:-1]:
            target = target[step]
    target[place[-1]] = value
    try:
        assert isinstance(read_task_text(yaml.safe_dump(tree, allow_unicode=True), profile="cuda"), Task)
    except ConfigError as error:
        assert error.line is not None
        assert error.hint
