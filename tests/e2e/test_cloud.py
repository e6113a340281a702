"""A session on a rented machine: SkyPilot's stand-in rents out a real sshd of this one."""

from __future__ import annotations

import getpass
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import PROGRAM, TASK, Project
from tests.fakes.rental import FAKE_SDK
from tests.integration.ssh_hosts import AS_ANOTHER, USER, make_fleet, needs_sshd
from tests.timing import wait_until

pytestmark = needs_sshd
START = ("start", "--foreground", "--tag", "t", "--policy", "random", "--executor", "cloud")


@dataclass
class Cloud:
    """folder: where the stand-in keeps its machines."""

    project: Project
    folder: Path

    @property
    def rented(self) -> list[str]:
        return [path.stem for path in self.folder.glob("*.json")]

    def asked(self, verb: str) -> list[list[str]]:
        lines = (self.folder / "asked").read_text().splitlines()
        return [words for words in map(json.loads, lines) if words[0] == verb and words[1:3] != ["", ""]]

    @property
    def launches(self) -> list[str]:
        return [name for _, name, dry, *_ in self.asked("launch") if dry == "False"]


@pytest.fixture
def cloud(project: Project) -> Iterator[Cloud]:
    with make_fleet() as fleet:
        host = fleet.add("gpu-box-1", known=False)
        folder = fleet.folder / "sky"
        folder.mkdir()
        user = USER if AS_ANOTHER else getpass.getuser()
        lines = (
            f"HostName {host.address}",
            f"User {user}",
            f"IdentityFile {fleet.folder / 'key'}",
            f"Port {host.port}",
        )
        (folder / "ssh").write_text("".join(f"  {line}\n" for line in lines))
        project.environment |= {"PYTHONPATH": str(FAKE_SDK), "FAKE_SKY": str(folder)}
        task = TASK.replace("{target_file: train.py}", f"{{target_file: train.py, remote_dir: {host.home}}}")
        project.put({"train.py": PROGRAM, "task.yaml": f"{task}fleet: {{cloud: {{max_hourly_cost: 40}}}}\n"})
        yield Cloud(project, folder)


def cost(project: Project) -> float:
    status: Any = project.status("t")
    return float(status["cost"]["usd"])


def test_a_session_rents_a_machine_pays_for_it_and_ends_it(cloud: Cloud) -> None:
    """Else a user without a GPU has nothing, or pays for a night that nobody used."""
    project = cloud.project
    project.done(*START, "--max-experiments", "1", "--max-cost", "50")
    [name] = cloud.launches
    assert name.startswith("autoresearchd-t-")
    assert (cloud.rented, cloud.asked("down")[-1]) == ([], ["down", name])
    runs = [run for e in project.json("experiments", "--json") for run in e["runs"]]
    assert len(runs) >= 4 and {run["label"] for run in runs} == {""}
    assert 0 < cost(project) < 10
    [known] = (project.root / ".git/autoresearchd/cloud").glob("*/known_hosts")
    assert known.read_text().startswith(f"{name}-")
    [found] = [one for one in project.json("doctor", "--json") if one["name"] == "cloud"]
    assert (found["status"], "SkyPilot 0.14.1" in found["value"]) == ("ok", True)
    assert "host key was taken as it came" in (project.root / ".autoresearchd/daemon.log").read_text()


def test_a_cap_that_does_not_pay_for_an_hour_is_refused(cloud: Cloud) -> None:
    refused = cloud.project.cli(*START, "--max-cost", "30")
    assert refused.returncode == 2 and "$40.00 an hour" in refused.stderr
    assert not (cloud.folder / "asked").exists()


def test_what_a_killed_daemon_has_rented_is_used_by_the_next_or_ended_by_hand(cloud: Cloud) -> None:
    """Else each crash costs a launch, or a machine that nobody knows of."""
    project = cloud.project
    for once in (True, False):
        words = START if once else ("resume", "t", "--foreground", "--max-experiments", "50")
        with project.daemon(*words) as daemon:
            wait_until(lambda: project.latest_run() >= 0 and cloud.rented)
            os.kill(daemon.pid, signal.SIGKILL)
            daemon.wait()
        [name] = cloud.rented
        if once:
            project.done("resume", "t", "--foreground", "--max-experiments", "1")
            assert (set(cloud.launches), cloud.rented) == ({name}, [])
    [listed] = project.json("cloud", "list", "--json")
    assert (listed["name"], listed["session"], listed["usd_per_hour"]) == (name, "t", 36.0)
    refused = project.cli("cloud", "down")
    assert refused.returncode == 2 and "--yes" in refused.stderr
    project.done("cloud", "down", "--yes")
    assert cloud.rented == []
