"""Sessions on other machines, from task.yaml and ~/.ssh/config to the branch."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import PROGRAM, TASK, Project
from tests.e2e.test_several_slots import require_replay, require_whole
from tests.integration.local_jobs import carriers
from tests.integration.ssh_hosts import Fleet, Sshd, make_fleet, needs_sshd
from tests.timing import wait_until

pytestmark = needs_sshd
DATA = "scale.txt"
BRIEF = PROGRAM.replace("print(f", "import time\ntime.sleep(1)\nprint(f")


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with make_fleet() as fleet:
        yield fleet


def task_on(project: Project, fleet: Fleet, *slots: tuple[str, Sshd]) -> str:
    """A task with these slots, whose hosts the user of the project can log in to."""
    ssh = Path(project.environment["HOME"]) / ".ssh"
    ssh.mkdir(mode=0o700, parents=True)
    shutil.copy(fleet.config, ssh / "config")
    listed = ", ".join(f"{{host: {host.alias}, name: {name}, remote_dir: {host.home}}}" for name, host in slots)
    return f"{TASK}fleet: {{slots: [{listed}]}}\n"


def test_a_session_runs_on_the_machine_that_its_task_names(project: Project, fleet: Fleet) -> None:
    """Else a user with GPUs elsewhere has nothing: set-up there, data from there, and the result on the branch here."""
    host = fleet.add("gpu-box-1")
    execution = f'{{setup_commands: ["echo 1 > {DATA}"], run_command: "cat {DATA}; python -S train.py", '
    task = task_on(project, fleet, ("first", host)).replace("{run_command: python -S train.py, ", execution)
    task = task.replace("{target_file: train.py}", f"{{target_file: train.py, data: [{DATA}]}}")
    project.put({"train.py": PROGRAM, "task.yaml": task})
    project.session("random", 0, "--executor", "ssh")
    project.done("resume", "t", "--foreground", "--max-experiments", "1")
    runs = [run for e in project.json("experiments", "--json") for run in e["runs"]]
    assert len(runs) >= 4
    assert {(run["label"], run["host"]) for run in runs} == {("", "gpu-box-1")}
    assert not (host.top / "work" / "slot-first.lock").read_text()
    assert len(list((host.top / "setup").glob(f"*/{DATA}"))) == 1, "set-up runs once"
    found = project.json("doctor", "--json")
    [tested] = [finding for finding in found if finding["name"] == "gpu-box-1"]
    assert tested["status"] in ("ok", "warning")
    assert "Python 3." in tested["value"]


def test_a_session_goes_on_on_the_machines_that_its_file_names_now(project: Project, fleet: Fleet) -> None:
    """Else the end of a machine is the end of its sessions: what the user wrote instead was not even read."""
    gone, other = fleet.add("gpu-box-1"), fleet.add("gpu-box-2")
    project.put({"train.py": PROGRAM, "task.yaml": task_on(project, fleet, ("first", gone))})
    project.session("random", 1, "--executor", "ssh")
    gone.end()
    file = project.root / "task.yaml"
    file.write_text(file.read_text().replace("gpu-box-1", "gpu-box-2").replace(str(gone.home), str(other.home)))
    said = project.done("resume", "t", "--foreground", "--max-experiments", "2").stderr
    assert "first on gpu-box-2" in said
    assert [run["host"] for run in project.experiments()[-1]["runs"]] == ["gpu-box-2"]


@pytest.mark.parametrize("least", [18, pytest.param(30, marks=pytest.mark.nightly)])
def test_hosts_and_daemons_may_die_in_a_session_of_four_slots(project: Project, fleet: Fleet, least: int) -> None:
    """Else a night over a fleet ends with its first reboot, or with experiments that are counted twice."""
    steady, rebooted, mark = fleet.add("gpu-box-1"), fleet.add("gpu-box-2"), uuid.uuid4().hex
    slots = [(f"{host.alias}-{gpu}", host) for host in (steady, rebooted) for gpu in (0, 1)]
    task = task_on(project, fleet, *slots).replace("budget: 20", f"budget: 20, env: {{MARK: {mark}}}")
    project.put({"train.py": BRIEF, "task.yaml": task})

    def hosts() -> dict[str, dict[str, int]]:
        return {host["host"]: host for host in project.status("t")["slots"]["hosts"]}

    def in_flight() -> int:
        runs = (project.root / ".autoresearchd/runs/t").glob("*/*/remote.json")
        return sum(not path.with_name("result.json").exists() for path in runs)

    with project.daemon("start", "--foreground", "--tag", "t", "--policy", "search", "--executor", "ssh") as daemon:
        wait_until(lambda: project.latest_run() >= 4 and hosts().get("gpu-box-2"))
        rebooted.end()
        latest = project.latest_run()
        wait_until(lambda: project.latest_run() >= latest + 2)  # without it
        rebooted.boot()
        rebooted.wait()
        wait_until(lambda: in_flight() == 4)
        daemon.kill()
        daemon.wait()
    wait_until(lambda: not carriers(mark))
    before = project.experiments()
    count = max(least, before[-1]["experiment"] + 4)
    project.done("resume", "--foreground", "--max-experiments", str(count))
    after = require_whole(project, count)
    decided = [e["experiment"] for e in before if e["status"]]
    assert [after[n]["runs"] for n in decided] == [before[n]["runs"] for n in decided], "none is made again"
    require_replay(project, after)
    found = project.status("t")["slots"]
    assert found["count"] == 4 and 0.0 < found["utilisation"] <= 1.0
    assert all(hosts()[host.alias]["runs"] >= 3 for host in (steady, rebooted))
    [line] = [line for line in project.done("status").stdout.splitlines() if line.startswith("  slots ")]
    assert "4 on 2 hosts" in line and "% of the time" in line
