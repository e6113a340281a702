"""Repositories and machines that keep their sessions in one PostgreSQL: nothing is done twice, and nothing lost."""

from __future__ import annotations

import os
import shutil
import socket
import uuid
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest

from autoresearchd.domain.errors import EnvironmentFailure, SessionLocked
from autoresearchd.store import shared
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from tests.e2e.conftest import PROGRAM, TASK, Project
from tests.postgresql import PASSWORD, Server, needs_postgresql, serving
from tests.timing import wait_until

pytestmark = needs_postgresql


def use(project: Project, url: str, patch: pytest.MonkeyPatch) -> Project:
    """Have the commands of a project, and this process, keep journals there."""
    project.environment[shared.VARIABLE] = url
    patch.setenv(shared.VARIABLE, url)
    patch.setenv("AUTORESEARCHD_CONFIG", os.devnull)
    return project


@pytest.fixture
def stored(project: Project, postgresql: Server, monkeypatch: pytest.MonkeyPatch) -> Project:
    return use(project, postgresql.url, monkeypatch)


def file_of(project: Project) -> Path:
    return layout.database_path(project.root)


def elsewhere(project: Project) -> Project:
    """The repository as another machine has it."""
    copy = Project(project.root.with_name(f"copy-{uuid.uuid4().hex[:6]}"), project.environment)
    shutil.copytree(project.root, copy.root, symlinks=True)
    shutil.rmtree(layout.locks_dir(copy.root))  # a lock file tells of the processes of this machine
    return copy


def test_repositories_share_a_server_and_each_sees_its_own(stored: Project, tmp_path: Path) -> None:
    other = Project(tmp_path / "other", stored.environment).begin({"train.py": PROGRAM, "task.yaml": TASK})
    stored.session("random", 2)
    other.session("random", 1)  # with the same tag
    for project, experiments in ((stored, 2), (other, 1)):
        assert project.json("status", "--json")["session"]["experiments"] == experiments
        assert not file_of(project).exists()
    for words in ("status", "sessions list", "experiments", "show 1", "plot -o p.png", "note hello",
                  "export --format jsonl -o log.jsonl"):  # fmt: skip
        stored.done(*words.split())
    assert "PostgreSQL" in stored.done("doctor").stdout
    assert "which is not repaired from here" in stored.cli("doctor", "--repair").stderr
    assert len((stored.root / "log.jsonl").read_text().splitlines()) == 4
    stored.done("sessions", "remove", "t", "--yes")
    assert "there is no session" in stored.cli("status").stderr
    assert other.json("status", "--json")["session"]["experiments"] == 1


def test_a_session_has_one_daemon_wherever_its_repository_is(stored: Project) -> None:
    never = ("--confirm-every", "1000000")  # a confirmation stays under way in a pause
    with stored.daemon("start", "--foreground", "--tag", "t", "--policy", "random", *never) as daemon:
        wait_until(lambda: stored.latest_run() >= 2)
        stored.done("pause")
        wait_until(lambda: stored.status("t")["session"]["state"] == "paused" and not stored.status("t")["under_way"])
        there = elsewhere(stored)
        for command in (("resume", "t"), ("sessions", "remove", "t", "--yes")):
            refused = there.cli(*command)
            assert refused.returncode == 75, refused
            assert f"process {daemon.pid} on {socket.gethostname()[:20]}" in refused.stderr
        session = there.json("status", "--json")["session"]
        assert (session["state"], session["pid"]) == ("paused", daemon.pid)
        assert session["host"] == socket.gethostname()[: len(session["host"])]
        assert "stops at once" in there.done("stop", "--now").stderr
        assert daemon.wait() == 0
    assert there.status("t")["session"]["state"] == "stopped"
    more = stored.status("t")["session"]["experiments"] + 2
    there.done("resume", "t", "--foreground", "--max-experiments", str(more))
    found = [e["experiment"] for e in stored.experiments()]
    assert found == list(range(more + 1)), "both see what was done in either place"


def test_a_server_that_goes_away_is_waited_for_and_nothing_is_lost(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as server:
        use(project, server.url, monkeypatch)
        with project.daemon("start", "--foreground", "--tag", "t", "--policy", "random") as daemon:
            wait_until(lambda: project.latest_run() >= 2)
            server.stop()
            wait_until(lambda: "backing off: waiting" in project.said.read_text())
            last = project.latest_run()
            away = project.cli("status")
            assert away.returncode == 1 and "see that the server runs" in away.stderr, away
            server.start()
            wait_until(lambda: project.latest_run() >= last + 2)
            project.done("stop")
            assert daemon.wait() == 0
        found = project.experiments()
        assert [e["experiment"] for e in found] == list(range(len(found)))
        assert len(found) > last and all(e["status"] for e in found)
        said = project.said.read_text()
        assert said.count("housekeeping:") <= 10, "a failure that goes on is told once"
        with project.daemon("resume", "t", "--foreground", "--max-experiments", "100000") as daemon:
            wait_until(lambda: project.latest_run() > len(found))
            server.stop()
            wait_until(lambda: "backing off: waiting" in project.said.read_text())
            assert "sent a signal" in project.done("stop").stderr
            assert daemon.wait() != 0


def test_a_daemon_that_was_replaced_writes_nothing_more_and_ends(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(store: SqlStore, stack: ExitStack) -> bool:
        server.stop()
        server.start()
        for _ in range(3):
            try:
                stack.enter_context(store.leased("t"))
                return True
            except SessionLocked:  # the daemon was quicker
                break
            except EnvironmentFailure:  # a connection of before
                continue
        return False

    with serving() as server:
        use(project, server.url, monkeypatch)
        with (
            project.daemon("start", "--foreground", "--tag", "t", "--policy", "random") as daemon,
            ExitStack() as stack,
        ):
            wait_until(lambda: project.latest_run() >= 2)
            store = stack.enter_context(SqlStore.open(shared.where(file_of(project))))
            wait_until(lambda: take(store, stack))
            before = store.latest(store.session("t").id)
            assert daemon.wait() == 75
            assert store.latest(store.session("t").id) == before
        assert f"held by process {os.getpid()} on" in project.said.read_text()


def test_what_is_no_store_is_refused_and_leaves_nothing_behind(project: Project, postgresql: Server) -> None:
    urls = {
        "mysql://me@host/db": (2, "postgresql://USER@HOST:5432/DATABASE"),
        postgresql.url_of("postgres", "nowhere"): (1, "createdb"),
        postgresql.url_of("locked", password="wrong" + PASSWORD): (1, "~/.pgpass"),
    }
    for url, (code, hint) in urls.items():
        done = project.cli("start", "--policy", "random", env={shared.VARIABLE: url})
        assert (done.returncode, hint in done.stderr) == (code, True), done
        assert PASSWORD not in done.stderr and quote(PASSWORD, safe="") not in done.stderr
        assert project.cli("status", env={shared.VARIABLE: url}).stderr.count("there is no session") == 1
    assert not file_of(project).exists()
    doctor = project.cli("doctor", env={shared.VARIABLE: postgresql.url_of("postgres", "nowhere")})
    assert doctor.returncode == 0 and "does not exist" in doctor.stdout


def test_sessions_that_began_in_a_file_go_on_there(project: Project, postgresql: Server) -> None:
    project.session("random", 1)
    project.environment[shared.VARIABLE] = postgresql.url
    done = project.done("resume", "t", "--foreground", "--max-experiments", "2")
    assert project.json("status", "--json")["session"]["experiments"] == 2, done
    assert "not in the store that is set" in project.cli("doctor").stdout
    started = project.session("random", 1, tag="u")
    assert "where they began, not in the store that is set" in started.stderr


def test_the_settings_name_a_store_and_a_password_in_them_is_refused(project: Project, postgresql: Server) -> None:
    settings = Path(project.environment["HOME"]) / ".config/autoresearchd/config.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"store: {postgresql.url_of('locked', password=PASSWORD)}\n")
    refused = project.cli("start", "--policy", "random")
    assert refused.returncode == 2 and "PGPASSWORD" in refused.stderr and quote(PASSWORD, safe="") not in refused.stderr
    settings.write_text(f"store: {postgresql.url_of('locked')}\n")
    project.environment["PGPASSWORD"] = PASSWORD
    project.session("random", 1)
    assert not file_of(project).exists()
    settings.unlink()
    gone = project.cli("status")
    assert gone.returncode == 2 and "in a shared store" in gone.stderr and shared.VARIABLE in gone.stderr
