"""A library that a user develops beside the task is imported by jobs as by the user; nothing around it is seen."""

from __future__ import annotations

import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from autoresearchd.executor.environment import inspect
from autoresearchd.executor.visible_files import interpreter_folders
from autoresearchd.sandbox.tiers import PLAIN
from tests.contract.executor_contract import make_request, make_task
from tests.integration.local_jobs import BEST, local, needs_sandbox, run, training_log

FINDER = (
    "MAPPING = {{'beside': {!r}}}\nimport sys\nclass Finder:\n    @staticmethod\n    def find_spec(*_): return None\n"
)


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of an environment of the user's own."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    return tmp_path / "env" / "bin" / "python"


def install(python: Path, library: Path, name: str = "beside") -> None:
    """As ``pip install --editable`` does it: a path, and nothing is copied."""
    (library / name).mkdir(parents=True)
    (library / name / "__init__.py").write_text("word = 'GOT IT'\n")
    (packages(python) / f"{name}.pth").write_text(f"{library}\n")


def packages(python: Path) -> Path:
    home = str(python.parents[1])
    return Path(sysconfig.get_path("purelib", "venv", vars={"base": home, "platbase": home}))


@needs_sandbox
def test_a_library_that_the_user_develops_is_imported_and_its_history_is_not_seen(python: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    install(python, library)
    for place in (".git", ".autoresearchd"):
        (library / place).mkdir()
        (library / place / "answers").write_text("ANSWERS\n")
    answers = [f"{library}/{place}" for place in (".git/answers", ".autoresearchd/answers", ".env")]
    command = f"python -c 'import beside; print(beside.word)'; cat {' '.join(answers)}"
    for tier, seen in ((PLAIN, True), (BEST, False)):
        run(tier, tmp_path, make_task(f"{command}; true", execution={"python": str(python)}))
        assert "GOT IT" in training_log(tmp_path)
        assert ("ANSWERS" in training_log(tmp_path)) is seen


def test_a_package_that_a_finder_maps_is_seen_alone(python: Path, tmp_path: Path) -> None:
    """As setuptools installs a package that lies at the top of its repository."""
    package = tmp_path / "repository" / "beside"
    package.mkdir(parents=True)
    (packages(python) / "__editable___beside_finder.py").write_text(FINDER.format(str(package)))
    (packages(python) / "beside.pth").write_text("import __editable___beside_finder\n")
    assert inspect(python).imports == (package,)


def test_the_users_checkout_of_the_task_and_what_lies_around_it_are_not_shown(python: Path, tmp_path: Path) -> None:
    request = make_request(tmp_path, make_task())
    for number, library in enumerate((tmp_path, request.source, request.source / "src", tmp_path / "beside" / "it")):
        install(python, library, f"library{number}")
    home = tmp_path / "home"
    found = interpreter_folders(inspect(python), home, request.setup, (request.source, request.run_dir))
    assert tmp_path / "beside" / "it" in found
    assert not {tmp_path, request.source, request.source / "src"} & set(found)


def test_a_checkout_of_this_project_is_not_shown(python: Path, tmp_path: Path) -> None:
    """The sessions that were tried out in it have their private data there."""
    project = Path(__file__).parents[2]
    (packages(python) / "project.pth").write_text(f"{project}\n")
    asked = inspect(python)
    assert project in asked.imports
    assert project not in interpreter_folders(asked, tmp_path, tmp_path, ())


def test_a_package_of_the_tasks_own_repository_is_imported_from_the_commit_alone(python: Path, tmp_path: Path) -> None:
    """What is edited in the checkout while a session runs would change its metric, and be in no commit."""
    repository = tmp_path / "repository"
    (repository / ".git").mkdir(parents=True)
    (repository / "task").mkdir()
    install(python, repository / "src")
    found = interpreter_folders(inspect(python), tmp_path / "home", tmp_path / "setup", (repository / "task",))
    assert repository / "src" not in found


def test_a_home_that_is_a_repository_hides_no_library(python: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".git").mkdir(parents=True)
    install(python, home / "library")
    own = (home / "task", home / "other" / "run")
    assert home / "library" in interpreter_folders(inspect(python), home, tmp_path / "setup", own)


def test_what_jobs_run_with_is_the_python_that_results_are_compared_by(python: Path, tmp_path: Path) -> None:
    """An environment of another Python gives other results; that of the daemon plays no part."""
    executor = local(PLAIN)
    python.unlink()
    other = "import sys; sys.version_info = (3, 99, 1); exec(sys.argv[1])"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{other}' \"$2\"\n")
    python.chmod(0o755)
    task = make_task(execution={"python": str(python)})
    assert executor.describe(task, tmp_path)["python"] == "3.99.1"
    missing = make_task(execution={"python": "made/by/setup"})
    assert executor.describe(missing, tmp_path) == executor.describe(), "before it is there"


def test_an_environment_around_the_task_within_a_larger_repository_does_not_show_the_task(tmp_path: Path) -> None:
    """As ``python -m venv .`` makes it: its programs and packages are needed, the checkout in it is not."""
    repository = tmp_path / "repository"
    (repository / ".git").mkdir(parents=True)
    venv.create(repository / "part", with_pip=False, symlinks=True)
    (repository / "part" / "task").mkdir()
    asked = inspect(repository / "part" / "bin" / "python")
    found = interpreter_folders(asked, tmp_path / "home", tmp_path / "setup", (repository / "part" / "task",))
    assert repository / "part" not in found
    assert repository / "part" / "lib" in found
