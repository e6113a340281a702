"""Commands that name a tool's environment run as jobs, where the tool has neither a home nor the network."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoresearchd.config.python_environments import Environment, environment_of, how_to_make, how_to_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "work" / "project"
    place.mkdir(parents=True)
    (tmp_path / ".git").mkdir()  # what lies above is nobody's workspace
    return place


def make(prefix: Path, mark: str = "pyvenv.cfg") -> Path:
    """What an environment looks like; its interpreter."""
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "python").write_text("")
    if mark == "conda-meta":
        (prefix / mark).mkdir()
    else:
        (prefix / mark).write_text("home = /usr/bin\n")
    return prefix / "bin" / "python"


def look(command: str, folder: Path, **environ: str) -> Environment | None:
    return environment_of(command, folder, environ={"HOME": str(folder.parent), **environ})


def found(command: str, folder: Path, **environ: str) -> Environment:
    env = look(command, folder, **environ)
    assert env is not None
    return env


@pytest.mark.parametrize(
    ("command", "job"),
    [
        ("uv run train.py", "python train.py"),
        ("uv run --extra gpu --python=3.12 python3 train.py", "python train.py"),
        ("uv run -m mine.train 'a b' $X", "python -m mine.train 'a b' $X"),
        ("uv run -- python -u train.py > log.txt 2>&1", "python -u train.py > log.txt 2>&1"),
        ("SEED=1 uv run train.py && echo ok", "SEED=1 python train.py && echo ok"),
        ("python train.py", "python train.py"),
    ],
)
def test_what_uv_runs_is_run_by_the_interpreter_of_its_environment(folder: Path, command: str, job: str) -> None:
    (folder / "uv.lock").write_text("")
    python = make(folder / ".venv")
    env = found(command, folder)
    assert (env.command, env.python, env.there) == (job, python, True)
    assert str(python) in env.note and (f"`{job}`" in env.note) == (job != command)


def test_an_environment_that_is_yet_to_be_made_is_told_with_its_command(folder: Path) -> None:
    (folder / "requirements.txt").write_text("numpy\n")
    assert found("uv run train.py", folder).make == "uv venv && uv pip install -r requirements.txt"
    (folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    env = found("uv run train.py", folder)
    assert (env.there, env.python) == (False, folder / ".venv/bin/python") and "`uv sync` makes it" in env.note
    (folder / "uv.lock").write_text("")
    env = found("python train.py", folder)
    assert env.python is None and not env.changed, "nobody asked for it: it is told, and not written"
    assert "`uv sync` makes it" in env.note


def test_a_member_of_a_workspace_has_the_environment_at_its_top(folder: Path) -> None:
    (folder.parent / "uv.lock").write_text("")
    (folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    python = make(folder.parent / ".venv")
    assert found("uv run train.py", folder).python == python
    (folder / ".git").mkdir()  # another repository's is not looked at
    assert found("uv run train.py", folder).python == folder / ".venv/bin/python"
    env = found("uv run train.py", folder, UV_PROJECT_ENVIRONMENT="../elsewhere")
    assert env.python == folder.parent / "elsewhere/bin/python"


@pytest.mark.parametrize("command", ["uv run --with rich train.py", "uv run --env-file .env train.py", "uv run"])
def test_what_cannot_be_had_without_uv_is_not_rewritten(folder: Path, command: str) -> None:
    make(folder / ".venv")
    (folder / "uv.lock").write_text("")
    assert look(command, folder) is None
    if command != "uv run":
        assert "execution.python" in how_to_run(command, folder)
    written = how_to_run("uv run train.py", folder)
    assert "`python train.py`" in written and str(folder / ".venv/bin/python") in written
    assert how_to_make(folder) == "uv sync"


@pytest.mark.parametrize(
    ("lock", "tool", "tells"),
    [("poetry.lock", "poetry", "poetry env info --executable"), ("Pipfile", "pipenv", "--py")],
)
def test_an_environment_that_a_tool_keeps_out_of_sight_is_told_by_the_tool(
    folder: Path, lock: str, tool: str, tells: str
) -> None:
    (folder / lock).write_text("")
    env = found(f"{tool} run python train.py", folder)
    assert (env.command, env.python, env.make) == ("python train.py", None, f"{tool} install")
    assert "execution.python" in env.note and tells in env.note
    own = make(folder / ".venv")
    assert found(f"{tool} run python train.py", folder).python == own


@pytest.mark.parametrize(
    "command", ["mamba run --no-capture-output --name=lab python3 train.py", "conda activate lab && python train.py"]
)
def test_an_environment_of_conda_is_found_by_its_name(folder: Path, command: str) -> None:
    env = found(command, folder)
    assert (env.command, env.python, env.there) == ("python train.py", None, False)
    assert env.make == "conda create -n lab python"
    python = make(folder.parent / "conda/envs/lab", "conda-meta")
    listed = folder.parent / ".conda/environments.txt"
    listed.parent.mkdir()
    listed.write_text(f"{folder.parent}/conda\n{folder.parent}/conda/envs/lab\n")
    assert found(command, folder).python == python
    listed.unlink()
    for environ in ({"CONDA_EXE": f"{folder.parent}/conda/bin/conda"}, {"CONDA_PREFIX": str(python.parent.parent)}):
        assert found(command, folder, **environ).python == python


def test_a_project_with_an_environment_file_has_the_one_that_it_names(folder: Path) -> None:
    (folder / "environment.yml").write_text("name: lab\ndependencies: [python=3.11]\n")
    env = found("python train.py", folder)
    assert env.make == "conda env create -f environment.yml" and env.python is None
    python = make(folder.parent / "conda/envs/lab", "conda-meta")
    assert found("python train.py", folder, CONDA_EXE=f"{folder.parent}/conda/bin/conda").python == python
    assert found(f"conda run -p {python.parent.parent} python train.py", folder).python == python


@pytest.mark.parametrize(
    "command",
    ["python train.py", ".venv/bin/python train.py", "./.venv/bin/python3 train.py",
     "source .venv/bin/activate && python train.py", ". .venv/bin/activate && python3 train.py", "bash run.sh"],
)  # fmt: skip
def test_the_environment_in_the_folder_is_used(folder: Path, command: str) -> None:
    """A job sees nothing that git ignores, so the path in the command leads nowhere."""
    python = make(folder / ".venv")
    (folder / ".venv/bin/python3").symlink_to("python")
    env = found(command, folder)
    assert env.python == python
    assert env.command == (command if command == "bash run.sh" else "python train.py")


def test_the_environment_that_runs_already_is_not_named(folder: Path) -> None:
    make(folder / ".venv")
    assert environment_of("python train.py", folder, environ={}, running=folder / ".venv") is None
    env = environment_of("uv run train.py", folder, environ={}, running=folder / ".venv")
    assert env is not None and (env.command, env.python) == ("python train.py", None)
    assert "execution.python" not in env.note


def test_a_project_without_an_environment_is_left_alone(folder: Path) -> None:
    for command in ("python train.py", "bash run.sh", "/usr/bin/python3 train.py", "uvicorn run", ""):
        assert look(command, folder) is None
        assert how_to_run(command, folder) == ""
    assert how_to_make(folder) == ""
