"""The triton-kernel task: a result that is compared with float64 every time, and a clock out of the kernel's reach."""

from __future__ import annotations

import re
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from autoresearchd.resources import bundled
from tests.templates.programs import load_programs, run_together, shortened

FOLDER = bundled("templates") / "triton-kernel"
run = partial(run_together, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
problem, kernel_cpu = load_programs(FOLDER, "problem", "kernel_cpu")


def copy(folder: Path, more: str = "", changes: tuple[tuple[str, str], ...] = ()) -> Path:
    """The task's files, with a shorter evaluation and an edited kernel."""
    shortened(FOLDER, folder, "CALLS = 16", "CALLS = 6")
    text = (folder / "kernel_cpu.py").read_text()
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "kernel_cpu.py").write_text(text + more)
    return folder


def test_the_truth_is_what_the_formula_says() -> None:
    inputs = problem.draw(np.random.default_rng(1), 3, 5)
    for row, said in enumerate(problem.truth(inputs)):
        z = [float(v) + float(b) for v, b in zip(inputs.x[row], inputs.bias, strict=True)]
        gelu = [v / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3))) for v in z]
        h = [float(r) + g for r, g in zip(inputs.residual[row], gelu, strict=True)]
        scale = np.sqrt(sum(v * v for v in h) / 5 + 1e-6)
        assert said == pytest.approx([v / scale * float(w) for v, w in zip(h, inputs.weight, strict=True)])


@pytest.mark.parametrize("sigmoid", ["tanh", "exp"])
@pytest.mark.parametrize("squares", ["mean", "einsum", "norm"])
def test_every_choice_that_the_kernel_offers_is_right(
    monkeypatch: pytest.MonkeyPatch, sigmoid: str, squares: str
) -> None:
    for name, value in (("SIGMOID", sigmoid), ("SQUARES", squares), ("BLOCK", 3000)):
        monkeypatch.setattr(kernel_cpu, name, value)
    for rows, columns in ((37, 768), (5, 4096)):
        inputs = problem.draw(np.random.default_rng(rows), rows, columns)
        out = np.full((rows, columns), np.nan, np.float32)
        kernel_cpu.fused(*inputs.parts(), out)
        assert problem.error(out, problem.truth(inputs)) < 0.5


def test_the_yardstick_is_right_and_asks_for_no_memory_whose_cost_would_be_in_every_score() -> None:
    for rows, columns in problem.SHAPES:
        inputs = problem.draw(np.random.default_rng(rows), rows, columns)
        out, z, u = (np.full((rows, columns), np.nan, np.float32) for _ in range(3))
        tracemalloc.start()
        problem.yardstick(inputs, out, z, u)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert problem.error(out, problem.truth(inputs)) < 0.5
        assert peak < out.nbytes / 8


def test_the_kernel_as_it_comes_is_scored(tmp_path: Path) -> None:
    folder = copy(tmp_path / "task")
    (rehearsed,) = run(folder, "rehearse.py")
    assert rehearsed.returncode == 0, rehearsed.stdout + rehearsed.stderr
    scored, served = run(folder, "evaluate.py", "serve.py")
    found = re.search(r"METRIC relative_latency=([\d.]+)", scored.stdout)
    assert found is not None and served.returncode == 0, scored.stderr + served.stderr
    assert 0.5 < float(found[1]) < 8


@pytest.mark.parametrize(
    ("more", "label"),
    [
        ("def fused(x, residual, bias, weight, out):\n    out[:] = 0\n", "gate_miss"),
        ("def fused(x, residual, bias, weight, out):\n    pass\n", "gate_miss"),
        ("BEFORE = fused\ndef fused(*given):\n    BEFORE(*given)\n    given[-1][-1, -1] += 1e-3\n", "gate_miss"),
        ("import threading\nthreading.Thread(target=print).start()\n", None),
        ("import os\nos.fork()\n", None),
    ],
)
def test_a_kernel_that_does_not_do_its_work_alone_gets_no_score(tmp_path: Path, more: str, label: str | None) -> None:
    scored, _ = run(copy(tmp_path / "task", more), "evaluate.py", "serve.py")
    assert scored.returncode == (3 if label else 1) and "relative_latency" not in scored.stdout
    assert label is None or f"LABEL {label}" in scored.stdout


@pytest.mark.slow
def test_the_triton_kernel_and_its_scorer_work_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    folder = copy(tmp_path / "task")
    values = {"TRITON_INTERPRET": "1", "KERNEL_DEVICE": "cpu", "AUTORESEARCHD_PROFILE": "cuda"}
    (rehearsed,) = run(folder, "rehearse.py --interpret", **values)
    assert rehearsed.returncode == 0, rehearsed.stdout + rehearsed.stderr
    scored, served = run(folder, "evaluate_cuda.py", "serve_cuda.py", **values)
    assert scored.returncode == served.returncode == 0, scored.stderr + served.stderr
    assert "METRIC relative_latency=" in scored.stdout
    wrong = (folder / "kernel.py").read_text() + "\ndef fused(x, residual, bias, weight, out):\n    out.zero_()\n"
    (folder / "kernel.py").write_text(wrong)
    scored, _ = run(folder, "evaluate_cuda.py", "serve_cuda.py", **values)
    assert scored.returncode == 3 and "LABEL gate_miss" in scored.stdout
