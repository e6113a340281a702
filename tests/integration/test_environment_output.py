"""A job that prints without end: its run ends as any other, its metric is found, and its log stays within the cap."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autoresearchd.domain.labels import Status
from autoresearchd.executor.devices import Devices
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.sandbox.launch import LOG_LIMIT
from tests.integration.bench import Bench

MUCH = 12 * LOG_LIMIT
PROGRAM = f"""\
import os

SCALE = 1.0
line = b"step 17 loss 2.5 and whatever a progress bar might print beside it\\r"
piece = line * (2**18 // len(line))
if SCALE == 4.0:
    written = 0
    while written < {MUCH}:
        written += os.write(1, piece)
    os.write(1, b"\\n")
print(f"score: {{(SCALE - 2.0) ** 2}}")
"""
TASK = """\
name: loud
workspace: {target_file: train.py}
execution: {run_command: python train.py, budget: 100, startup_grace: 20, training_time: budget}
scoring: {metric: score, direction: minimize, metric_source: stdout}
"""


def test_far_more_output_than_a_log_may_hold_is_a_run_like_any_other(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task=TASK, program=PROGRAM)
    lab = replace(bench.laboratory(), executor=LocalExecutor(devices=Devices()))
    bench.loop(1, lab).run()
    loud = bench.experiment(1)
    assert (loud.decision.status, loud.decision.value) == (Status.DISCARD, 4.0)
    logs = list(lab.site.run_dir(1, 0).glob("training.log*"))
    assert len(logs) == 2
    assert sum(path.stat().st_size for path in logs) < 2 * LOG_LIMIT + 2**19
    bench.close()
