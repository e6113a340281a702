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
from tests.unit.config.test_load import HERE, MINIMAL


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
        "task.yaml:1 name",
        "task.yaml:3 workspace.target_fil",
        "task.yaml:4 workspace.protected[0]",
        "task.yaml:7 execution.budget",
        "task.yaml:8 execution.env.AUTORESEARCHD_SEED",
        "task.yaml:8 execution.env.9x",
        "task.yaml:9 execution.memory_mb",
        "task.yaml:11 scoring.metric",
        "task.yaml:12 scoring.direction",
        "task.yaml:13 scoring.constraints[0]",
        "task.yaml:14 scoring.pattern",
        "task.yaml:15 on",
        "task.yaml:17 profiles.cpu.execution.budgt",
        "task.yaml:18 profiles.gpu",
    ]
    assert (error.line, error.key) == (1, "name")
    assert str(error).count("→") == len(told)


@pytest.mark.parametrize(
    ("section", "addition", "key", "words", "hint"),
    [
        ("", "scorin: {}", "scorin", "no such key", "'scoring'"),
        ("", "Checks: []", "Checks", "no such key", "'checks'"),
        ("execution", "startup-grace: 3", "execution.startup-grace", "no such key", "'startup_grace'"),
        ("execution", "zzz: 3", "execution.zzz", "no such key", "known here: run_command, budget"),
        ("execution", "budget: 0", "execution.budget", "no duration", "5m"),
        ("execution", "budget: -5", "execution.budget", "no duration", "5m"),
        ("execution", "budget: true", "execution.budget", "no duration", "5m"),
        ("execution", "budget: .nan", "execution.budget", "no duration", "5m"),
        ("execution", "budget: [1]", "execution.budget", "no duration", "5m"),
        ("execution", "{budget: 300, timeout: 100}", "execution", "mapping", ""),
        ("execution", "timeout: 3 weeks", "execution.timeout", "no duration", "5m"),
        ("execution", "network: 1", "execution.network", "true or false", "write true or false"),
        ("execution", "needs_gpu: maybe", "execution.needs_gpu", "true or false", "true or false"),
        ("execution", "memory_mb: 1.5", "execution.memory_mb", "whole number", "8192"),
        ("execution", "memory_mb: 0", "execution.memory_mb", "0 is too small", "more than 0"),
        (
            "execution",
            "memory_mb: abc",
            "execution.memory_mb",
            "a whole number is needed, found the text 'abc'",
            "8192",
        ),
        (
            "",
            "search: {ranges: {LR: 1..0.1}}",
            "search.ranges.LR",
            "lower end, 1, is not below the upper",
            "1e-5..1e-1",
        ),
        ("", "search: {ranges: {LR: [3, 3]}}", "search.ranges.LR", "not below", "1e-5..1e-1"),
        ("", "search: {ranges: {LR: 0.1}}", "search.ranges.LR", "0.1 is no range", "1e-5..1e-1"),
        ("", "search: {ranges: {LR: low..high}}", "search.ranges.LR", "no range", "1e-5..1e-1"),
        ("", "search: {ranges: [LR]}", "search.ranges", "a mapping", ""),
        ("", "search: {choices: {OPT: adam}}", "search.choices.OPT", "no list of two or more", "[adam, sgd]"),
        ("", "search: {choices: {OPT: [adam]}}", "search.choices.OPT", "no list of two or more", ""),
        ("", "search: {choices: {OPT: [adam, [b]]}}", "search.choices.OPT", "no number and no text", ""),
        ("", """search: {choices: {OPT: [adam, "b'"]}}""", "search.choices.OPT", "cannot be put in quotes", ""),
        ("", "search: {fixed: LR}", "search.fixed", "a list", "[LR]"),
        ("", "search: {fixed: [LR], ranges: {LR: 0..1}}", "search.ranges.LR", "named in search.fixed, too", "one"),
        ("", "search: {range: {LR: 0..1}}", "search.range", "no such key", "'ranges'"),
        ("", "proposing: {group: 65}", "proposing.group", "65 is too large", "at most 64"),
        ("execution", "setup_commands: make", "execution.setup_commands", "a list", "[make]"),
        ("execution", "setup_commands: [make, 3]", "execution.setup_commands[1]", "number 3", '"3"'),
        ("execution", "setup_commands: ['  ']", "execution.setup_commands[0]", "empty command", ""),
        ("execution", "env: [A]", "execution.env", "a mapping", "{KEY: value}"),
        ("execution", "env: {FLAG: true}", "execution.env.FLAG", "found true", "quotes"),
        ("execution", "env: {EMPTY: }", "execution.env.EMPTY", "found nothing", "quotes"),
        ("execution", "env: {A.B: x}", "execution.env.A.B", "no name of a variable", "letters"),
        ("scoring", "parse_mode: regex", "scoring.parse_mode", "no pattern", "pattern"),
        ("scoring", "{}", "scoring", "", ""),
        ("scoring", "parse_mode: xml", "scoring.parse_mode", "'xml' is not among", "→ write one of them"),
        (
            "scoring",
            "metric_source: Std-out",
            "scoring.metric_source",
            "'Std-out' is not among",
            "did you mean 'stdout'?",
        ),
        ("scoring", "parse_mode: jsn", "scoring.parse_mode", "'jsn' is not among", "'json'"),
        ("scoring", "pattern: 'loss'", "scoring.pattern", "no group", "brackets"),
        ("scoring", "metric_source: evaluator", "scoring.metric_source", "no evaluation.command", "evaluation:"),
        ("scoring", "baseline: .inf", "scoring.baseline", "finite", ""),
        ("scoring", "baseline: low", "scoring.baseline", "a number", ""),
        ("scoring", "degradation_threshold: -1", "scoring.degradation_threshold", "-1 is too small", "at least 0"),
        ("scoring", "min_delta: -0.1", "scoring.min_delta", "-0.1 is too small", "at least 0"),
        ("scoring", "min_delta: a little", "scoring.min_delta", "a number", "0.05"),
        ("scoring", "min_delta: .inf", "scoring.min_delta", "finite", ""),
        ("scoring", "constraints: [{metric: a, max: 1, min: 2}]", "scoring.constraints[0].max", "less than min", ""),
        ("scoring", "constraints: [{max: 1}]", "scoring.constraints[0].metric", "missing", "metric: peak_vram_mb"),
        ("scoring", "constraints: {a: 1}", "scoring.constraints", "a list", ""),
        ("scoring", "cacheable_crash_patterns: ['(']", "scoring.cacheable_crash_patterns[0]", "not a regular", ""),
        ("scoring", "metrics: [~]", "scoring.metrics[0]", "found nothing", ""),
        ("workspace", "protected: [/etc/passwd]", "workspace.protected[0]", "not inside", "relative"),
        ("workspace", "protected: [a/../../b]", "workspace.protected[0]", "'..'", ""),
        ("workspace", "protected: [.git/config]", "workspace.protected[0]", ".git", ""),
        ("workspace", "protected: ['a\\b']", "workspace.protected[0]", "POSIX", "/"),
        ("workspace", 'protected: ["a\\0b"]', "workspace.protected[0]", "characters", ""),
        ("workspace", "protected: [train.py]", "workspace.protected", "covers the editable", "one"),
        ("workspace", "protected: [.]", "workspace.protected", "covers the editable", ""),
        ("workspace", "data: [/]", "workspace.data[0]", "everything", "folder"),
        ("workspace", "data: ['~']", "workspace.data[0]", "home", ""),
        ("workspace", "data: ['~root/x']", "workspace.data[0]", "home", ""),
        ("workspace", "data: [../x]", "workspace.data[0]", "'..'", ""),
        ("workspace", "source_dir: ../elsewhere", "workspace.source_dir", "'..'", ""),
        ("", "evaluation: {private: [a]}", "evaluation.command", "missing", "command: python evaluate.py"),
        ("", "evaluation: {command: a, private: [train.py]}", "evaluation.private", "covers the editable", ""),
        ("", "evaluation: {command: a, hide: ['{home}/x']}", "evaluation.hide[0]", "not known", "{purelib}"),
        ("", "evaluation: python evaluate.py", "evaluation", "a mapping", ""),
        ("", "checks: [pytest]", "checks[0]", "a mapping", ""),
        ("", "checks: [{command: pytest, timeout: soon}]", "checks[0].timeout", "no duration", ""),
        ("", "curve: {pattern: 'x ([0-9]+)'}", "curve.pattern", "no group named loss", "(?P<loss>"),
        ("", "curve: {abort: perhaps}", "curve.abort", "true or false", ""),
        ("", "history: squash", "history", "'squash' is not among refs, revert", ""),
        ("", "feedback: {sucess: well done}", "feedback.sucess", "no such key", "'success'"),
        ("", "roles: [{name: a}, {name: a}]", "roles", "two roles", ""),
        ("", "fleet: {slots: [{host: a}, {host: a}]}", "fleet.slots", "two slots", ""),
        ("", "fleet: {slots: [{host: -oProxyCommand=x}]}", "fleet.slots[0].host", "no host name", ""),
        ("", "fleet: {slots: [{gpu_id: 0}]}", "fleet.slots[0].host", "missing", "host: gpu-box-1"),
        ("", "profiles: [cpu]", "profiles", "a mapping", ""),
        ("", "profiles: {cpu: fast}", "profiles.cpu", "a mapping", ""),
        ("", "name: again", "name", "given twice, first in line 1", "one"),
        ("", "on: push", "on", "no such key", ""),
        ("", "2026-01-01: x", "2026-01-01", "no such key", ""),
        ("", "<<: {name: b}", "<<", "no such key", ""),
        ("", "? [a, b]\n: c", "", "no text", ""),
        ("", "roles: !!python/object:os.system []", "roles", "tag", "plain values"),
        ("", "history: !secret x", "history", "tag", "plain values"),
        ("", 'prompt: {system: "\\ud800"}', "prompt.system", "surrogate", ""),
        ("", '"\\ud800": x', "\\ud800", "no such key", ""),
        ("", "evaluation: {command: a, hide: [data]}", "evaluation.hide[0]", "file of the task", "evaluation.private"),
        ("", "history: !!int refs", "history", "no usable value", ""),
    ],
)
def test_a_mistake_is_told_with_its_key_and_its_remedy(
    section: str, addition: str, key: str, words: str, hint: str
) -> None:
    if addition.startswith("{"):  # the whole section
        text = "".join(line + "\n" for line in MINIMAL.splitlines() if not line.startswith(section))
        text += f"{section}: {addition.replace('}', ', run_command: x}') if section == 'execution' else addition}\n"
        assert mistake(text).key.startswith(section)
        return
    error = mistake(with_line(section, addition))
    assert error.key == key
    assert words in str(error)
    assert hint in str(error)
    assert error.line is not None


def test_a_misspelt_key_is_told_once_and_not_as_a_missing_one_too() -> None:
    error = mistake(MINIMAL.replace("scoring:", "scorng:"))
    assert (error.key, "did you mean 'scoring'?" in str(error), "missing" in str(error)) == ("scorng", True, False)
    error = mistake(MINIMAL.replace("scoring: {metric: ", "scoring: {metrc: "))
    assert (error.key, "missing" in str(error)) == ("scoring.metrc", False)


def test_a_missing_key_is_told_where_its_section_is() -> None:
    error = mistake("name: a\nworkspace: {target_file: a.py}\nscoring:\n  direction: minimize\n")
    assert (error.key, error.line) == ("execution", 1)
    assert "task.yaml:3: scoring.metric: this key is missing\n  → add `metric: val_loss`" in str(error)


def test_a_section_without_any_values_counts_as_missing() -> None:
    assert mistake(MINIMAL.replace("scoring: {metric: val_loss, direction: minimize}", "scoring:")).key == "scoring"


def test_lines_are_those_of_the_file_also_below_a_top_key() -> None:
    text = "# a comment\ntask:\n" + "".join(f"  {line}\n" for line in with_line("execution", "budgt: 1").splitlines())
    error = mistake(text)
    assert (error.key, error.line) == ("execution.budgt", 7)


def test_a_key_beside_the_top_key_is_not_overlooked() -> None:
    text = "task:\n" + "".join(f"  {line}\n" for line in MINIMAL.splitlines()) + "history: revert\n"
    error = mistake(text)
    assert (error.key, error.line) == ("history", 6)
    assert "below `task:`" in error.hint


def test_a_timeout_without_room_for_the_budget_is_told_with_the_sum() -> None:
    error = mistake(with_line("execution", "timeout: 100\n  budget: 60"))
    assert error.key == "execution.timeout"
    assert "120 s" in str(error)
    assert "profile" not in str(error)


@pytest.mark.parametrize("chosen", ["cpu", "cuda"])
def test_a_timeout_too_short_for_one_profile_names_it_so_that_nobody_looks_for_a_budget_of_the_other(
    chosen: str,
) -> None:
    text = with_line("execution", "timeout: 100") + (
        "profiles: {cpu: {execution: {budget: 20}}, cuda: {execution: {budget: 300}}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        read_task_text(text, profile=chosen)
    told = str(caught.value)
    assert "360 s: budget 300 s and startup_grace 60 s (the default), in the profile cuda" in told
    assert "20 s" not in told
    assert "profile cpu" not in told, "80 s fit into 100"


def test_a_timeout_of_the_profile_itself_is_named_by_its_key() -> None:
    error = mistake(with_line("execution", "budget: 60") + "profiles: {cuda: {execution: {timeout: 100}}}\n")
    assert error.key == "profiles.cuda.execution.timeout"
    assert "budget 60 s" in str(error)


@pytest.mark.parametrize(
    "target", ["[]", "[a.py, a.py]", "[a.py, ./a.py]", ".", "task.yaml", "''", "~/a.py", "/a.py", ".GIT/x"]
)
def test_a_target_that_no_policy_can_edit_is_refused(target: str) -> None:
    assert mistake(MINIMAL.replace("train.py}\n", f"{target}}}\n", 1)).key == "workspace.target_file"


def test_data_that_the_evaluation_hides_cannot_also_be_shown_to_the_job() -> None:
    text = MINIMAL.replace("train.py}\n", "train.py, data: [data/val.bin]}\n", 1)
    error = mistake(text + "evaluation: {command: a, private: [data]}\n")
    assert error.key == "evaluation.private"


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (b"", None, "empty"),
        (b"# nothing but a comment\n\n", None, "empty"),
        (b"- a\n- b\n", 1, "no mapping"),
        (b"just text\n", 1, "no mapping"),
        (b"name: a\nworkspace:\n\ttarget_file: b\n", 3, "tabs"),
        (b"name: 'a\n", None, "not YAML"),
        (b"name: a: b\n", 1, "quotes"),
        (b"name: [a\nworkspace: b\n", 2, "not YAML"),
        (b"name: a\n---\nname: b\n", 2, "---"),
        (b"name: a\nx: *nothing\n", 2, "not YAML"),
        (b"name: a\nx: b\xff\n", 2, "UTF-8"),
        (b"name: a\nx: b\x07\n", 2, "character"),
        ("name: a\n".encode("utf-16"), 1, "UTF-8"),
        (b"\x00\x01\x02", 1, "character"),
        (b"a: " + b"[" * 5000 + b"]" * 5000, None, "nested"),
        (b"a: &a [*a]\n", 1, "nested"),
        (b"name: a\n" + b"#" * 300_000, None, "256 KiB"),
        (b"a: 9" + b"9" * 5000, 1, "no usable value"),
    ],
)
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
    assert "aliases" in str(mistake("\n".join(levels)))
    scalars = ["a0: &a0 x"] + [f"a{n}: [{', '.join(['*a0'] * 5000)}]" for n in range(1, 6)]
    assert "20000 values" in str(mistake("\n".join(scalars)))


def test_a_missing_file_and_one_of_another_suffix_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_task(tmp_path)
    (tmp_path / "task.yml").write_text(MINIMAL)
    with pytest.raises(ConfigError, match=r"rename task\.yml"):
        load_task(tmp_path)


def test_a_folder_or_a_pipe_in_place_of_the_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "task.yaml")
    with pytest.raises(ConfigError, match="not a regular file"):
        load_task(tmp_path)
    (tmp_path / "task.yaml").unlink()
    (tmp_path / "task.yaml").mkdir()
    with pytest.raises(ConfigError, match="not a regular file"):
        load_task(tmp_path)


def test_a_profile_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="no profile 'tpu'"):
        read_task_text(MINIMAL, profile="tpu")


def test_a_key_missing_beside_a_profile_is_not_blamed_on_the_profile() -> None:
    text = (
        MINIMAL.replace("{run_command: python train.py}", "{network: true}")
        + "profiles: {cuda: {execution: {budget: 9}}}\n"
    )
    error = mistake(text)
    assert (error.key, error.line) == ("execution.run_command", 3)
    assert "profiles" not in str(error)


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
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["auto", "5m", "../x", "/", "(", "[]"]),
    st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=3)), max_size=3),
    st.dictionaries(st.text(max_size=3), st.one_of(st.none(), st.integers(), st.booleans()), max_size=3),
)


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
