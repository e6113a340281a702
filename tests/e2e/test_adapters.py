"""A version of the local policy as a user meets it: promoted, seen in the next experiment, damaged, undone."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from autoresearchd.domain.policy_versions import BaseModel
from autoresearchd.learner.versions.adapter_shelf import AdapterShelf, Made
from autoresearchd.store.repository import SqlStore
from tests.e2e.conftest import Project
from tests.e2e.test_models import configure
from tests.fakes import model_turns as turns
from tests.fakes.model_server import ScriptedServer
from tests.fakes.models import saves
from tests.timing import wait_until

pytest.importorskip("httpx", reason="pip install 'autoresearchd[local]'")


def edits(*values: float) -> list[turns.Turn]:
    return [turns.edits("train.py", "SCALE = 1.0", f"SCALE = {value}") for value in values]


def learned(project: Project) -> str:
    """Keep a version for the model ``m``, as a learner does; its name."""
    state = project.root / ".git/autoresearchd"
    with SqlStore.open(f"sqlite:///{state / 'state.db'}") as store:
        shelf = AdapterShelf(state / "adapters", store, lambda: datetime.now(UTC))
        return shelf.add(saves(), Made(BaseModel("m", "h" * 64, "t" * 64, "c" * 64), "grpo")).version


def adapters(project: Project) -> list[str | None]:
    return [record["adapter"] for record in project.experiments()[1:]]


def test_a_promoted_version_makes_the_next_experiment_and_a_rollback_undoes_it(project: Project) -> None:
    with ScriptedServer(edits(5.5, 6.5, 7.5, 8.5), model="m", lora=turns.loads()) as scripted:
        configure(project, scripted.url)
        project.session("local:m")
        assert project.json("adapters", "list", "--json") == []
        version = learned(project)
        assert project.json("adapters", "list", "--json")[0]["status"] == "candidate"
        project.done("adapters", "promote", "v1")
        project.done("resume", "--max-experiments", "2", "--foreground")
        assert project.status()["policy"] == {"name": "local:m", "adapter": version}
        assert version in project.done("status").stdout
        assert version in project.done("show", "2").stdout
        assert project.json("show", "2", "--json")["adapter"] == version
        assert version not in project.done("show", "1").stdout
        project.done("adapters", "rollback")
        project.done("resume", "--max-experiments", "3", "--foreground")
    assert adapters(project) == [None, version, None]
    assert [asked["model"] for asked in scripted.questions] == ["m", version, "m"]
    assert project.json("adapters", "list", "--json")[0]["reason"] == "rolled back by hand"


def test_what_is_promoted_while_a_daemon_runs_answers_without_a_restart(project: Project) -> None:
    with ScriptedServer(edits(*(3 + n / 100 for n in range(9999))), model="m", lora=turns.loads()) as scripted:
        configure(project, scripted.url)
        with project.daemon("start", "--policy", "local:m", "--foreground") as daemon:
            wait_until(lambda: len(scripted.questions) >= 2)
            version = learned(project)
            project.done("adapters", "promote", version)
            wait_until(lambda: scripted.questions[-1]["model"] == version)
            wait_until(lambda: project.status()["policy"]["adapter"] == version)
            daemon.terminate()
            daemon.wait()
    assert adapters(project)[0] is None, "the first was made by the plain model"
    assert version in adapters(project)
