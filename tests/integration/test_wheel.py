"""What users install: the wheel, in an environment outside the repository, starts a session with its bundled parts."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.e2e.conftest import PROGRAM, TASK
from tests.fakes.repositories import make_repository

ROOT = Path(__file__).parents[2]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), "TERM": "dumb"}
    done = subprocess.run(arguments, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr + done.stdout
    return done


@pytest.mark.slow
def test_a_session_starts_from_the_installed_wheel(tmp_path: Path) -> None:
    # --no-isolation builds with the hatchling that the development environment has: nothing is fetched.
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    wheel = next(tmp_path.glob("*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    for part in (
        "skills/autoresearch/SKILL.md",
        "skills/autoresearch/scripts/log-experiment.sh",
        "templates/autoresearch/task.yaml",
        "migrations/env.py",
    ):
        assert f"autoresearchd/_bundled/{part}" in names
    assert {f"autoresearchd/report/templates/report.{form}.j2" for form in ("html", "md")} <= set(names)

    environment = tmp_path / "environment"
    venv.create(environment)
    python = str(environment / "bin" / "python")
    # The dependencies are those that the tests run with, seen through a .pth file; autoresearchd itself is the wheel's.
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "-q", "--no-deps", "--no-index", "--no-compile", str(wheel), cwd=tmp_path)
    site = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).stdout.strip()
    )
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(python, "-c", "import autoresearchd; print(autoresearchd.__file__)", cwd=tmp_path).stdout
    assert str(environment) in where, "not the repository's own code"

    command = str(environment / "bin" / "autoresearchd")
    project = tmp_path / "project"
    make_repository(project, {"train.py": PROGRAM, "task.yaml": TASK})
    run(command, "start", "--foreground", "--policy", "random", "--max-experiments", "2", cwd=project)
    assert '"experiment":2' in run(command, "experiments", "--json", cwd=project).stdout
    assert "autoresearch" in run(command, "task", "list", cwd=project).stdout
    assert run(command, "task", "init", "autoresearch", str(tmp_path / "copy"), cwd=project)
    assert (tmp_path / "copy" / "train.py").is_file()
