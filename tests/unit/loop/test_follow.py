"""The log of a run under way, as early abort follows it: what it reads there is what the forecast sees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autoresearchd.loop.early_abort import LogFollower
from tests.unit.loop.test_early_abort import POINTS, log_lines


def test_a_log_that_is_no_file_is_an_error_and_blocks_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "training.log")
    with pytest.raises(OSError, match="is no file"):
        LogFollower(tmp_path / "training.log", "auto", 5.0).read()


@pytest.mark.parametrize("rotated", [False, True])
def test_the_log_is_followed_across_pieces_and_rotation(tmp_path: Path, rotated: bool) -> None:
    log = tmp_path / "training.log"
    lines = log_lines(2.5, 1)
    follower = LogFollower(log, "auto", 5.0)
    follower.read()
    assert follower.curve(0.5) == ([], [])
    text = "".join(lines[:20])
    log.write_text(text[:-7])
    follower.read()
    with log.open("a") as more:
        more.write(text[-7:])
    if rotated:
        log.rename(tmp_path / "training.log.1")
        log.write_text("".join(lines[20:]))
    else:
        with log.open("a") as more:
            more.write("".join(lines[20:]))
    follower.read()
    steps, losses = follower.curve(1.0)
    follower.close()
    assert len(steps) == len(losses) == POINTS
    assert steps[-1] == pytest.approx(1.0) and steps == sorted(steps)
