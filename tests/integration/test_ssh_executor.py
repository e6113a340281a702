"""The ssh executor against real sshds: what is refused, hosts and daemons that die, and what is left of their runs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.errors import AutoresearchdError, ConfigError, EnvironmentFailure, MissingCapability
from autoresearchd.domain.ports import Executor
from autoresearchd.domain.task import RemoteSlot
from autoresearchd.executor.remote.executor import RemoteRun
from autoresearchd.executor.remote.hosts import Times
from autoresearchd.executor.ssh.executor import SshExecutor
from tests.contract.executor_contract import HANG, SUCCEED, ended, make_request, make_task
from tests.integration.disks import memory_disk
from tests.integration.local_jobs import ESCAPE, carriers, marked, text_of, write_job
from tests.integration.remote_runs import RemoteContract, begun, ended_well, outcome
from tests.integration.ssh_hosts import (
    BUSY,
    PYTHON,
    Fleet,
    Sshd,
    ids_of_user,
    make_fleet,
    make_key,
    needs_root,
    needs_sshd,
    programs_folder,
)
from tests.timing import wait_until

pytestmark = needs_sshd
QUICK = Times(silence=3.0, lease=4.0, connect=30.0, cool=5.0, coolest=10.0)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with make_fleet() as fleet:
        yield fleet


@pytest.fixture(scope="module")
def box() -> Iterator[Sshd]:
    """A host that nothing happens to."""
    with make_fleet() as fleet:
        yield fleet.add("gpu-box-1")


@pytest.fixture(scope="module")
def steady(box: Sshd) -> Iterator[SshExecutor]:
    """An executor for it."""
    config = box.home.parents[1] / "config"
    with contextlib.closing(SshExecutor([box.slot()], config=config, times=BUSY)) as executor:
        yield executor


# -- a run -------------------------------------------------------------------------------------------------------------


class TestContract(RemoteContract):
    """What every executor promises, over a real sshd."""

    @pytest.fixture
    def executor(self, steady: SshExecutor) -> Executor:
        return steady


@pytest.mark.parametrize(
    "job",
    [
        "mkdir 'No space left on device (28)' && chmod 0 No*",
        f"for i in $(seq 30); do mkdir {'d' * 200} && cd {'d' * 200}; done; echo x > x",
        "echo x > change_dir; chmod 0 change_dir",
    ],
)
def test_a_job_that_makes_its_output_unreadable_has_ended_all_the_same(
    steady: SshExecutor, tmp_path: Path, job: str
) -> None:
    """Else one such edit is taken for a host that fails, and is run again for ever, on each host in turn."""
    request = make_request(tmp_path, make_task(f"cd $AUTORESEARCHD_OUTPUT_DIR; echo x > kept; ({job})"))
    result = ended(steady, request)
    assert (result.stages[-1].outcome, result.host) == ("ok", "gpu-box-1"), result
    assert (request.run_dir / "output" / "kept").read_text() == "x\n"


def test_a_slot_is_lent_to_one_session(fleet: Fleet, opened: Any, tmp_path: Path) -> None:
    """Else two jobs train on one GPU, and both look slow."""
    fleet.add("gpu-box-1")
    first, second = opened(fleet.executor()), opened(fleet.executor(times=replace(BUSY, cool=0.0)))
    request = make_request(tmp_path, make_task(HANG))
    handle = begun(first, request)
    other = make_request(tmp_path / "other", make_task(SUCCEED))
    with pytest.raises(EnvironmentFailure, match="in use by another session"):
        second.start(other)
    handle.kill()
    assert outcome(handle) == "killed"
    assert ended(second, other).stages[-1].outcome == "ok"


# -- hosts that fail ---------------------------------------------------------------------------------------------------


def test_a_stalled_host_is_noticed_ends_the_job_and_is_used_again(
    fleet: Fleet, opened: Any, mark: str, tmp_path: Path
) -> None:
    """Else one frozen machine stops the night's research, or two runs of one experiment go on."""
    first, second = fleet.add("gpu-box-1"), fleet.add("gpu-box-2")
    executor = opened(fleet.executor(times=QUICK))
    request = make_request(tmp_path, marked(mark, write_job(tmp_path, ESCAPE.format(rest=600))))
    handle = begun(executor, request)
    host = {"gpu-box-1": first, "gpu-box-2": second}[where(handle)]
    host.signal(signal.SIGSTOP)
    assert outcome(handle) == "lost"
    assert "no answer for" in handle.wait().stages[-1].detail
    wait_until(lambda: carriers(mark) == [])  # the lease is over, and nobody there had been told
    other = make_request(tmp_path / "other", make_task(SUCCEED))
    assert ended_well(executor, other).host != host.alias
    host.signal(signal.SIGCONT)
    alone = opened(SshExecutor([host.slot()], config=fleet.config, times=QUICK))
    assert ended_well(alone, other).host == host.alias


def where(handle: RemoteRun) -> str:
    return str(json.loads((handle.run_dir / "remote.json").read_text())["slot"]["host"])


def test_a_host_that_dies_is_noticed_at_once(fleet: Fleet, opened: Any, mark: str, tmp_path: Path) -> None:
    """Else its runs are waited for until their deadline."""
    host = fleet.add("gpu-box-1")
    executor = opened(fleet.executor())
    handle = begun(executor, make_request(tmp_path, marked(mark, HANG)))
    host.signal(signal.SIGKILL)
    assert outcome(handle) == "lost"
    wait_until(lambda: carriers(mark) == [])
    with pytest.raises(EnvironmentFailure, match="gpu-box-1"):
        executor.start(make_request(tmp_path / "other", make_task(SUCCEED)))


def test_what_a_lost_run_has_left_is_removed_when_its_host_is_back(fleet: Fleet, opened: Any, tmp_path: Path) -> None:
    """Else each lost run keeps the room of a checkpoint over there for two weeks, until the disk is full."""
    host = fleet.add("gpu-box-1")
    executor = opened(fleet.executor(times=replace(BUSY, cool=0.0)))
    handle = begun(executor, make_request(tmp_path, make_task(HANG)))
    host.signal(signal.SIGKILL)
    assert outcome(handle) == "lost"
    runs = host.top / "runs"
    assert list(runs.glob("*/0/training.log"))
    host.end()
    host.boot()
    host.wait()
    assert ended_well(executor, make_request(tmp_path / "other", make_task(SUCCEED))).host == host.alias
    wait_until(lambda: not list(runs.iterdir()))


def test_a_host_that_was_up_and_refuses_the_login_is_waited_for(fleet: Fleet, opened: Any, tmp_path: Path) -> None:
    """Else a fleet of one slot ends the session where its host reboots, or its name is unknown while a VPN is down."""
    host = fleet.add("gpu-box-1")
    executor = opened(fleet.executor(times=replace(BUSY, cool=0.0)))
    request = make_request(tmp_path, make_task(SUCCEED))
    assert ended_well(executor, request).host == host.alias
    keys = host.home.with_name("authorized_keys")
    known = keys.read_text()
    keys.write_text("")
    host.end()
    host.boot()
    host.wait()

    def refusal() -> bool:
        with pytest.raises(EnvironmentFailure) as caught:
            executor.start(request)
        return "it accepts none of the keys" in caught.value.what

    wait_until(refusal)
    keys.write_text(known)
    assert ended_well(executor, request).host == host.alias


@needs_root
def test_a_network_that_is_cut_ends_the_job_on_both_sides(fleet: Fleet, opened: Any, mark: str, tmp_path: Path) -> None:
    """Else the job goes on over there, unseen, while it is run again elsewhere."""
    with network(f"ard{os.getpid()}") as (prefix, address, link):
        fleet.add("gpu-box-1", prefix=prefix, address=address)
        executor = opened(fleet.executor(times=QUICK))
        handle = begun(executor, make_request(tmp_path, marked(mark, HANG)))
        ip("link", "set", link, "down")
        assert outcome(handle) == "lost"
        wait_until(lambda: carriers(mark) == [])


@contextlib.contextmanager
def network(name: str) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """A network of its own: what starts programs in it, the address there, and the link that leads to it."""
    subnet = f"10.213.{os.getpid() % 250}"
    link = f"{name[:12]}a"
    try:
        ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network can be made here: {getattr(error, 'stderr', '') or error}")
    try:
        ip("link", "add", link, "type", "veth", "peer", "name", "there", "netns", name)
        ip("address", "add", f"{subnet}.1/24", "dev", link)
        ip("link", "set", link, "up")
        for words in (f"address add {subnet}.2/24 dev there", "link set there up", "link set lo up"):
            ip("-n", name, *words.split())
        yield ("ip", "netns", "exec", name), f"{subnet}.2", link
    finally:
        subprocess.run(["ip", "link", "delete", link], capture_output=True, timeout=30)
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=30)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30)


@needs_root
def test_a_full_disk_over_there_is_told_and_the_next_run_goes_elsewhere(
    fleet: Fleet, opened: Any, tmp_path: Path
) -> None:
    """Else a run that was fine counts as a crash of the edit."""
    with memory_disk(fleet.folder / "disk") as disk:
        os.chown(disk.at, *ids_of_user())
        first, second = fleet.add("gpu-box-1"), fleet.add("gpu-box-2")
        slots = [RemoteSlot(first.alias, "0", "small", str(disk.at)), second.slot()]
        executor = opened(fleet.executor(slots=slots))
        task = make_task(
            "echo begun; until [ -e $AUTORESEARCHD_OUTPUT_DIR/go ]; do sleep 0.05; done;"
            " head -c 50000000 /dev/zero > $AUTORESEARCHD_OUTPUT_DIR/model"
        )
        handle = begun(executor, make_request(tmp_path, task))
        assert where(handle) == "gpu-box-1"
        disk.fill(spare=1 << 20)
        [output] = (disk.at / ".autoresearchd" / "runs").glob("run-*/output")
        (output / "go").touch()
        assert outcome(handle) == "disk_full"
        assert ended(executor, make_request(tmp_path / "other", make_task(SUCCEED))).host == "gpu-box-2"


# -- daemons that fail -------------------------------------------------------------------------------------------------
DRIVER = """
import sys, time
from pathlib import Path
from autoresearchd.domain.ports import Executor
from autoresearchd.domain.task import RemoteSlot
from autoresearchd.executor.ssh.executor import SshExecutor
from tests.contract.executor_contract import make_request
from tests.integration.local_jobs import marked
from tests.integration.ssh_hosts import BUSY
config, host, folder, root, mark, command = sys.argv[1:]
executor = SshExecutor([RemoteSlot(host, "0", host, folder)], config=Path(config), times=BUSY)
handle = executor.start(make_request(Path(root), marked(mark, command)))
print("started", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def driven(fleet: Fleet, host: Sshd, root: Path, mark: str, command: str) -> Iterator[subprocess.Popen[str]]:
    """A daemon of its own that has started a run; killed at the end."""
    words = [str(fleet.config), host.alias, str(host.home), str(root), mark, command]
    with subprocess.Popen([sys.executable, "-c", DRIVER, *words], stdout=subprocess.PIPE, text=True) as daemon:
        try:
            assert daemon.stdout is not None
            assert daemon.stdout.readline() == "started\n"
            yield daemon
        finally:
            daemon.kill()


def test_a_killed_daemon_leaves_nothing_over_there(fleet: Fleet, opened: Any, mark: str, tmp_path: Path) -> None:
    """Else the GPU is taken when the session is resumed."""
    host, run_dir = fleet.add("gpu-box-1"), tmp_path / "runs" / "run"
    with driven(fleet, host, tmp_path, mark, write_job(tmp_path, ESCAPE.format(rest=600))):
        wait_until(lambda: "escaped" in text_of(run_dir / "training.log"))
    wait_until(lambda: len(carriers(mark)) == 0)
    assert opened(fleet.executor()).recover(run_dir) is None
    assert not list((host.top / "runs").glob("*/0"))


def test_a_run_that_ended_while_its_daemon_was_dead_is_fetched(
    fleet: Fleet, opened: Any, mark: str, tmp_path: Path
) -> None:
    """Else hours of training are thrown away with a daemon that lived a second too short."""
    host, run_dir = fleet.add("gpu-box-1"), tmp_path / "runs" / "run"
    command = "echo begun; echo model > $AUTORESEARCHD_OUTPUT_DIR/model; sleep 1; echo val_bpb: 1.5"
    with driven(fleet, host, tmp_path, mark, command) as daemon:
        wait_until(lambda: "begun" in text_of(run_dir / "training.log"))
        daemon.send_signal(signal.SIGSTOP)
        wait_until(lambda: list((host.top / "runs").glob("*/0/result.json")) or (run_dir / "result.json").exists())
    executor = opened(fleet.executor())
    result = executor.recover(run_dir)
    assert [stage.outcome for stage in result.stages] == ["ok"]
    assert (run_dir / "training.log").read_text() == "begun\nval_bpb: 1.5\n"
    assert (run_dir / "output" / "model").read_text() == "model\n"
    assert executor.recover(run_dir) == result


# -- what is refused, and how it is said -------------------------------------------------------------------------------


def refused(fleet: Fleet, *slots: RemoteSlot) -> AutoresearchdError:
    executor = SshExecutor(slots, config=fleet.config, times=BUSY)
    with contextlib.closing(executor), pytest.raises((MissingCapability, EnvironmentFailure)) as caught:
        executor.describe()
    assert caught.value.hint
    return caught.value


def test_a_host_whose_key_is_not_known_is_not_talked_to(fleet: Fleet, tmp_path: Path) -> None:
    """Else whoever listens between gets the data and gives the results."""
    unknown = fleet.add("unknown", known=False)
    assert "its key is in no file of known hosts" in refused(fleet, unknown.slot()).what
    changed = fleet.add("changed", known=False)
    make_key(tmp_path / "other")
    fleet.know(changed, (tmp_path / "other.pub").read_text())
    error = refused(fleet, changed.slot())
    assert "its key is not the one that" in error.what
    assert f"ssh-keygen -R '[127.0.0.1]:{changed.port}'" in error.hint


def test_a_configuration_that_trusts_every_host_is_not_followed(fleet: Fleet) -> None:
    """Else a line that somebody once copied into ~/.ssh/config opens the fleet to whoever listens."""
    unknown = fleet.add("unknown", known=False)
    text = fleet.config.read_text().replace(f"UserKnownHostsFile {fleet.known_hosts}", "UserKnownHostsFile none")
    fleet.config.write_text(f"StrictHostKeyChecking no\n{text}")
    assert "its key is" in refused(fleet, unknown.slot()).what


def test_a_host_that_lacks_something_says_what(fleet: Fleet) -> None:
    """Else the user reads a traceback of ssh's."""
    assert "accepts none of the keys" in refused(fleet, fleet.add("locked", trusted=False).slot()).what
    bare = fleet.add("bare", path=programs_folder(fleet.folder / "nothing", {}))
    assert "no Python 3.11" in refused(fleet, bare.slot()).what
    some = fleet.add("some", path=programs_folder(fleet.folder / "python", {"python3": PYTHON}))
    assert "there is no rsync" in refused(fleet, some.slot()).what
    (script := fleet.folder / "talking").write_text(f'#!/bin/sh\necho Welcome\nexec {shutil.which("rsync")} "$@"\n')
    script.chmod(0o755)
    programs = {"python3": PYTHON, "rsync": str(script)}
    talks = fleet.add("talks", path=programs_folder(fleet.folder / "talks-path", programs))
    assert "logins print something" in refused(fleet, talks.slot()).what
    off = fleet.add("off")
    off.end()
    assert "cannot be reached" in refused(fleet, off.slot()).what
    nobody = RemoteSlot("nobody.invalid", "0", "nobody", "~")
    assert "nobody.invalid: " in refused(fleet, nobody).what


def test_slots_that_cannot_be_told_apart_are_refused() -> None:
    slot = RemoteSlot("gpu-box-1", "0", "gpu", "~")
    with pytest.raises(ConfigError, match=r"fleet\.slots: --executor ssh needs this key"):
        SshExecutor([])
    with pytest.raises(ConfigError, match="gpu is given twice"):
        SshExecutor([slot, slot])


def test_a_program_that_is_missing_here_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingCapability, match=r"(?s)needs the program rsync.*apt install rsync"):
        SshExecutor([RemoteSlot("gpu-box-1", "0", "gpu", "~")])


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2 or not shutil.which("taskset"), reason="one processor cannot differ"
)
def test_hosts_that_differ_are_named(fleet: Fleet) -> None:
    """Else an edit wins because it ran on the faster machine."""
    core = str(min(os.sched_getaffinity(0)))
    hosts = fleet.add("gpu-box-1"), fleet.add("gpu-box-2", prefix=("taskset", "-c", core))
    error = refused(fleet, *(host.slot() for host in hosts))
    assert isinstance(error, MissingCapability)
    assert "processor" in error.what
    assert all(host.alias in error.what for host in hosts)
    with contextlib.closing(fleet.executor()) as executor:
        assert [(name, line) for name, line, _ in executor.examine()][-1] == ("fleet", "")


def test_a_clock_that_is_wrong_harms_no_run_and_is_told(fleet: Fleet, opened: Any, tmp_path: Path) -> None:
    """Else a lease ends before it begins."""
    folder = fleet.folder / "programs"
    programs_folder(folder, {name: found for name in ("rsync", "sh", "env") if (found := shutil.which(name))})
    shifted = "import time; real = time.time; time.time = lambda: real() + 3600; "
    (folder / "python3").write_text(
        f'#!/bin/sh\n[ "$1" = -I ] || exec {PYTHON} "$@"\nshift 3\ncode="$1"\nshift\n'
        f'exec {PYTHON} -I -S -c "{shifted}$code" "$@"\n'
    )
    (folder / "python3").chmod(0o755)
    fleet.add("gpu-box-1", path=str(folder))
    executor = opened(fleet.executor())
    [(host, value, problems)] = executor.examine()
    assert host == "gpu-box-1"
    assert "Python 3." in value
    assert any("ahead" in what for what, _ in problems)
    assert ended(executor, make_request(tmp_path, make_task(SUCCEED))).stages[-1].outcome == "ok"
