"""A session on another machine, from task.yaml and ~/.ssh/config to the branch."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.e2e.conftest import PROGRAM, TASK, Project
from tests.integration.ssh_hosts import make_fleet, needs_sshd

DATA = "scale.txt"


@needs_sshd
def test_a_session_runs_on_the_machine_that_its_task_names(project: Project) -> None:
    """Else a user with GPUs elsewhere has nothing: set-up there, data from there, and the result on the branch here."""
    with make_fleet() as fleet:
        host = fleet.add("gpu-box-1")
        ssh = Path(project.environment["HOME"]) / ".ssh"
        ssh.mkdir(mode=0o700, parents=True)
        shutil.copy(fleet.config, ssh / "config")
        slot = f"{{host: gpu-box-1, name: first, remote_dir: {host.home}}}"
        execution = f'{{setup_commands: ["echo 1 > {DATA}"], run_command: "cat {DATA}; python -S train.py", '
        task = TASK.replace("{run_command: python -S train.py, ", execution)
        task = task.replace("{target_file: train.py}", f"{{target_file: train.py, data: [{DATA}]}}")
        project.put({"train.py": PROGRAM, "task.yaml": f"{task}fleet: {{slots: [{slot}]}}\n"})
        project.session("random", 0, "--executor", "ssh")
        project.done("resume", "t", "--foreground", "--max-experiments", "1")
        runs = [run for e in project.json("experiments", "--json") for run in e["runs"]]
        assert len(runs) >= 4
        assert {run["label"] for run in runs} == {""}
        assert not (host.top / "work" / "slot-first.lock").read_text()
        assert len(list((host.top / "setup").glob(f"*/{DATA}"))) == 1, "set-up runs once"
        found = project.json("doctor", "--json")
        [tested] = [finding for finding in found if finding["name"] == "gpu-box-1"]
        assert tested["status"] in ("ok", "warning")
        assert "Python 3." in tested["value"]
