"""The daemon under a service manager, and the commands that install it."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.e2e.conftest import Project


def test_the_daemon_tells_its_manager_that_it_is_ready_and_the_service_comes_and_goes(project: Project) -> None:
    project.session("random", 1)
    folder = Path(project.environment["HOME"], ".config/systemd/user")
    said = project.done("service", "install").stdout
    [unit] = folder.iterdir()
    assert str(unit) in said and "enable-linger" in said and "service uninstall" in said
    assert project.json("service", "status", "--json")["file"] == str(unit)
    project.done("service", "uninstall")
    assert list(folder.iterdir()) == []
    assert "service install" in project.cli("service", "uninstall").stderr

    path = str(project.root.parent / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(120)
        told = []
        with project.daemon("resume", "--foreground", "--quiet", "--max-experiments", "2", env={"NOTIFY_SOCKET": path}):
            while not any("STOPPING=1" in one for one in told):
                told.append(manager.recv(4096).decode())
        assert "READY=1" in told and any(one.startswith("STATUS=#2 ") for one in told)
        assert told.index("READY=1") < next(i for i, one in enumerate(told) if one.startswith("STATUS=#2 "))
        # One that is at its limit starts nothing, which a manager must not take for a failure.
        project.done("resume", "--foreground", env={"NOTIFY_SOCKET": path})
        assert manager.recv(4096).decode().startswith("READY=1")


def test_a_paused_session_stays_paused_when_its_service_is_stopped_and_started(project: Project) -> None:
    project.session("random", 0)
    path = str(project.root.parent / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(120)
        for pauses in (True, False):
            arguments = ("resume", "--foreground", "--quiet", "--max-experiments", "1000")
            with project.daemon(*arguments, env={"NOTIFY_SOCKET": path}) as daemon:
                told = ""
                while "STATUS=paused" not in told:
                    told = manager.recv(4096).decode()
                    if pauses and told == "READY=1":
                        project.done("pause")
                daemon.terminate()  # as at a reboot
                while "STOPPING=1" not in told:
                    told = manager.recv(4096).decode()
                daemon.wait(60)
    tried = project.latest_run()
    project.done("resume", "--foreground", "--max-experiments", str(tried + 1))
    assert project.latest_run() == tried + 1, "goes on where it is resumed by hand"
