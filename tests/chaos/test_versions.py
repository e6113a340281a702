"""A learner that is killed while it keeps a version leaves the good one in use, and nothing half-written listed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.nightly)])
def test_killed_at_any_instant_a_learner_leaves_whole_versions_only(tmp_path: Path, step: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.registrar", str(tmp_path), str(step)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    lives = [json.loads(line) for line in done.stdout.splitlines()]
    assert [life["died"] for life in lives] == [True] * (len(lives) - 1) + [False]
    assert len(lives) > 30 / step, "few instants, and the test shows little"
    [good] = lives[0]["after"]["listed"]
    for life in lives:
        after, swept, end = life["after"], life["swept"], life["end"]
        assert after["torn"] == swept["torn"] == end["torn"] == [], "what is listed is whole"
        assert after["in_use"] in ([good], [life["again"]]), "one version is in use, and it is a whole one"
        assert swept["in_use"] == after["in_use"]
        assert swept["folders"] == swept["listed"], "nothing is left under way, nothing finished is lost"
        assert set(after["listed"]) <= set(swept["listed"]) <= {good, life["again"]}
        assert end["listed"] == [good, life["again"]], "gone on with, the learner makes its version once"
        assert end["in_use"] == [life["again"]]
        assert end["folders"] == sorted(end["listed"])
    forgotten = [life for life in lives if len(life["after"]["listed"]) < len(life["swept"]["listed"])]
    assert forgotten or step > 1, "no death fell between the rename and the row"
