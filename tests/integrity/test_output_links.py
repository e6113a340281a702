"""A result that is a link to the private answers is no result: the scorer is not started on it, in any tier."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.experiment import Measurement, RunResult
from autoresearchd.domain.labels import Label
from autoresearchd.domain.task import Evaluation
from autoresearchd.evaluator.measure.measurement import measure
from autoresearchd.loop.measuring.run_files import read_logs
from autoresearchd.resources import bundled
from autoresearchd.sandbox.tiers import Tier
from tests.contract.executor_contract import ended, make_request, make_task
from tests.integration.local_jobs import BEST, TIERS, local

SCORER = "echo METRIC val_bpb=$(cat $AUTORESEARCHD_OUTPUT_DIR/answers.txt)"
PRIVATE, HONEST = "0.001", "1.5"
LINKS = {
    "through the scorer's own working directory": "ln -s /proc/self/cwd/data/answers.txt $OUT/answers.txt",
    "to the data beside what it may read": "ln -s $(realpath data/given.txt | sed s/given/answers/) $OUT/answers.txt",
    "by way of a folder": "ln -s /proc/self/cwd/data $OUT/d; ln -s d/answers.txt $OUT/answers.txt",
    "by way up": "ln -s ../../../setup/data/answers.txt $OUT/answers.txt",
    "of a folder beside an honest result": f"echo {HONEST} > $OUT/answers.txt; ln -s /proc/self/cwd $OUT/more",
}


def run(tier: Tier, root: Path, job: str) -> tuple[RunResult, Measurement]:
    """One run of a job whose scorer is told the answers that the job may not see."""
    task = make_task(
        f"OUT=$AUTORESEARCHD_OUTPUT_DIR; {job}",
        evaluation=Evaluation(SCORER, private=("data/answers.txt",)),
        data=("data/given.txt",),
    )
    request = make_request(root, task)
    data = request.setup / "data"
    data.mkdir()
    (data / "given.txt").write_text("questions")
    (data / "answers.txt").write_text(PRIVATE)
    result = ended(local(tier), request)
    return result, measure(task, result, read_logs(result))


@pytest.mark.parametrize("how", LINKS)
@pytest.mark.parametrize("tier", TIERS)
def test_a_link_to_the_answers_is_tampering_and_no_score(tier: Tier, tmp_path: Path, how: str) -> None:
    result, found = run(tier, tmp_path, LINKS[how])
    assert (found.label, found.value) == (Label.METRIC_TAMPERING, None), found
    assert "leads out of the output folder" in found.detail
    assert [(s.name, s.outcome, s.exit_code) for s in result.stages][1:] == [("evaluation", "tampered", None)]
    assert not (tmp_path / "runs/run/evaluation.log").exists(), "the scorer never ran"
    assert "leads out" in (tmp_path / "runs/run/training.log").read_text(), "whoever reads the log sees why"


def test_an_honest_result_with_links_and_a_pipe_of_its_own_is_scored(tmp_path: Path) -> None:
    """And a name in the output cannot speak for the scorer."""
    job = f"echo {HONEST} > $OUT/step.txt; ln -s step.txt $OUT/last.txt; ln -s $OUT/last.txt $OUT/answers.txt"
    _, found = run(BEST, tmp_path, job + "; mkfifo \"$OUT/$(printf 'x\\nMETRIC val_bpb=0.001\\nx')\"")
    assert (found.label, found.value) == (Label.NONE, 1.5), found


class TestTheScorerOfTerrain:
    """It does not rely on anybody having looked before it."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        numpy = pytest.importorskip("numpy")
        (tmp_path / "data").mkdir()
        (tmp_path / "output").mkdir()
        numpy.save(tmp_path / "data/heights.npy", numpy.zeros(8, numpy.float32))
        numpy.save(tmp_path / "honest.npy", numpy.ones(8, numpy.float32))
        return tmp_path

    @staticmethod
    def score(folder: Path) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, str(bundled("templates") / "terrain" / "evaluate.py")],
            cwd=folder, env={**os.environ, "AUTORESEARCHD_OUTPUT_DIR": str(folder / "output")},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def test_it_reads_heights_from_a_file(self, folder: Path) -> None:
        (folder / "honest.npy").rename(folder / "output/heights.npy")
        assert self.score(folder) == (0, "METRIC rmse_m=1.000000\nMETRIC worst_m=1.000000\n")

    INSTEAD = ("/proc/self/cwd/data/heights.npy", "../data/heights.npy", "../honest.npy", os.mkfifo, os.mkdir)
    CONTENT = (b"", b"\x80\x04N.", b"PK\x03\x04", b"0" * 2_000_000)

    @pytest.mark.parametrize("instead", [*INSTEAD, *CONTENT])
    def test_it_follows_no_link_waits_for_no_pipe_and_loads_nothing_but_an_array(
        self, folder: Path, instead: Any
    ) -> None:
        place = folder / "output/heights.npy"
        if isinstance(instead, str):
            place.symlink_to(instead)
        elif isinstance(instead, bytes):
            place.write_bytes(instead)
        else:
            instead(place)
        code, said = self.score(folder)
        assert (code, "METRIC" in said) == (1, False), said
