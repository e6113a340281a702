"""Where data is found and shown, which interpreter runs, which devices are used."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from autoresearchd.domain.errors import BaselineError, DataMissing, MissingCapability
from autoresearchd.domain.task import Evaluation
from autoresearchd.executor.environment import MARKER, Interpreter, inspect, resolve_python, run_setup
from autoresearchd.executor.visible_files import DataEntry, find_data, hidden_places, place_links
from tests.contract.executor_contract import make_task


def fill(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_folder_of_the_commit_is_filled_up_with_what_setup_made(tmp_path: Path) -> None:
    made = fill(tmp_path / "setup", data__README="old", data__train="tokens")
    work = fill(tmp_path / "work", data__README="committed")
    place_links(work, find_data(["data"], [made], "workspace.data"))
    assert (work / "data" / "README").read_text() == "committed"
    assert (work / "data" / "train").readlink() == made / "data" / "train"


def test_a_link_of_an_earlier_run_is_replaced_and_what_it_names_left_alone(tmp_path: Path) -> None:
    old, new, work = fill(tmp_path / "old", t="old"), fill(tmp_path / "new", t="new"), fill(tmp_path / "work", x="")
    for place in (old, new):
        place_links(work, [DataEntry("t", place / "t")])
    assert ((work / "t").read_text(), (old / "t").read_text()) == ("new", "old")


def test_a_link_on_the_way_is_not_followed_out_of_the_worktree(tmp_path: Path) -> None:
    outside, made = fill(tmp_path / "outside", x="x"), fill(tmp_path / "made", d__t="t")
    work = fill(tmp_path / "work", x="")
    (work / "d").symlink_to(outside)
    place_links(work, [DataEntry("d/t", made / "d" / "t")])
    assert [p.name for p in outside.iterdir()] == ["x"] and (work / "d" / "t").read_text() == "t"


def test_an_empty_folder_is_where_a_disk_is_not_mounted(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(DataMissing, match="'data' is empty"):
        find_data(["data"], [tmp_path], "workspace.data")
    with pytest.raises(DataMissing, match="'other' is not there"):
        find_data(["other"], [tmp_path], "workspace.data")


def test_data_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="leaves the task's folder"):
        find_data(["../x"], [tmp_path], "workspace.data")


def test_the_interpreter_is_the_named_one_else_setups_else_the_daemons(tmp_path: Path) -> None:
    assert resolve_python(make_task(), tmp_path) == Path(sys.executable)
    made = tmp_path / ".venv" / "bin" / "python"
    made.parent.mkdir(parents=True)
    made.symlink_to(sys.executable)
    assert resolve_python(make_task(), tmp_path) == made
    named = make_task(execution={"python": ".venv/bin/python"})
    assert resolve_python(named, tmp_path) == made
    assert resolve_python(make_task(execution={"python": sys.executable}), tmp_path) == Path(sys.executable)


@pytest.mark.parametrize("named", ["python99", "/nowhere/python", "bin/python", "~/nowhere/python"])
def test_an_interpreter_that_is_not_there_is_named(named: str, tmp_path: Path) -> None:
    with pytest.raises(MissingCapability, match=r"execution\.python"):
        resolve_python(make_task(execution={"python": named}), tmp_path)


def test_an_interpreter_that_does_not_run_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(MissingCapability, match=str(broken)):
        inspect(broken)


def test_what_an_interrupted_setup_left_is_removed(tmp_path: Path) -> None:
    pristine = fill(tmp_path / "pristine", prepare="", data__x="x")
    (pristine / "stale").symlink_to(tmp_path / "elsewhere")
    fill(pristine, **{".git": "gitdir: x"})
    setup = fill(tmp_path / "setup", half="written")
    task = make_task(execution={"setup_commands": ("python -c 'print(1)'; echo $AUTORESEARCHD_PROFILE > made",)})
    run_setup(task, pristine, setup, tmp_path / "setup.log", threading.Event(), {"PATH": "/usr/bin:/bin"})
    assert sorted(p.name for p in setup.iterdir()) == [MARKER, "data", "made", "prepare"]
    assert (setup / "made").read_text() == "cpu\n"
    assert not (tmp_path / "setup.run").exists()


def test_what_is_hidden_in_a_conda_is_hidden_in_its_package_cache_and_other_environments(tmp_path: Path) -> None:
    base = tmp_path / "conda"
    for name in ("conda-meta", "bin", "pkgs/secret-1", "envs/other", "envs/own/bin"):
        (base / name).mkdir(parents=True)
    own = base / "envs" / "own"
    lib = base / "lib" / "python3.11"
    task = make_task(evaluation=Evaluation("true", hide=("{purelib}/secret",)))
    for executable in (base / "bin" / "python", own / "bin" / "python"):
        python = Interpreter(executable, "3.11.2", (base, own), (), lib / "site-packages", lib)
        assert hidden_places(task, python) == [base / "pkgs", base / "envs" / "other"]
    python = Interpreter(base / "bin" / "python", "3.11.2", (base,), (), lib / "site-packages", lib)
    assert set(hidden_places(task, python)) == {base / "pkgs", own, base / "envs" / "other"}
    assert hidden_places(make_task(), python) == []
