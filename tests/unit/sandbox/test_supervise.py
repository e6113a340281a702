"""The supervisor starts fast, and reads what its processes tell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoresearchd.sandbox import process_tree, supervise


@pytest.mark.parametrize(
    ("status", "code"),
    [(0, 0), (3 << 8, 3), (255 << 8, 255), (9, -9), (11, -11), (139 << 8, -11), (137 << 8, -9), (128 << 8, 128)],
)
def test_a_shell_that_reports_a_signal_is_read_as_that_signal(status: int, code: int) -> None:
    assert supervise.exit_code_of(status) == code


@pytest.mark.parametrize("module", ["supervise", "isolation.confine"])
def test_it_starts_without_the_modules_that_would_double_its_start_up_time(module: str) -> None:
    folder = Path(supervise.__file__).parents[2]
    code = f"import sys; sys.path.append({str(folder)!r}); import autoresearchd.sandbox.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert not {"json", "signal", "enum", "re", "subprocess", "ctypes", "pathlib", "typing"} & set(done.stdout.split())


@pytest.mark.parametrize("find", [process_tree.children, process_tree.children_by_parent])
def test_children_are_found_on_every_kernel(find: object) -> None:
    child = subprocess.Popen(["sleep", "600"])
    assert child.pid in find(os.getpid())  # type: ignore[operator]
    child.kill()
    child.wait()
    assert find(child.pid) == []  # type: ignore[operator]
