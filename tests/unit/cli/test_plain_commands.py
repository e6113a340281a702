"""The short way of the commands that scripts poll gives what the long way gives, and leaves the rest to it."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoresearchd import __main__ as program
from tests.unit.cli.conftest import Command


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["status", "--json", "--session", "mar8"],
        ["status", "--watch"],
        ["status", "--dir", "elsewhere", "--json"],
        ["experiments", "--json"],
        ["experiments", "--status", "keep", "--json", "--last=3", "--session=mar8"],
    ],
)
def test_plain_forms_go_the_short_way(arguments: list[str]) -> None:
    assert program._plain(arguments) is not None


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["--help"], ["status", "--help"], ["status", "--json", "--watch"], ["status", "--session"],
        ["status", "--session", "--json"], ["status", "--json=yes"],
        ["status", "more"], ["show", "status"], ["experiments"], ["experiments", "--json", "x"],
        ["experiments", "--json", "--last", "0"], ["experiments", "--json", "--last", "many"],
        ["experiments", "--json", "--last", "9" * 30], ["experiments", "--json", "--status", "kept"], ["show", "1"],
    ],
)  # fmt: skip
def test_anything_else_is_left_to_the_command_line_library(arguments: list[str]) -> None:
    assert program._plain(arguments) is None


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize("more", [[], ["--status", "discard"], ["--last", "2"], ["--session=mar8", "--last=1"]])
def test_both_ways_give_the_same_list(
    command: Command, more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long_way = command("experiments", "--json", *more)
    monkeypatch.setattr(sys, "argv", ["autoresearchd", "experiments", "--json", *more])
    assert program.main() == 0
    short_way = capsys.readouterr()
    assert short_way.out == long_way.out
    assert json.loads(short_way.out)
    assert short_way.err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["experiments", "--json"], ["export"]])
def test_output_that_finds_no_room_is_an_error_in_words(repository: Path, arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "autoresearchd", *arguments], cwd=repository, stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 1
    assert b"the output cannot be written: No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
