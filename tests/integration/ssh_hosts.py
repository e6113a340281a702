"""Hosts for tests of the ssh executor: real sshds on this machine, with keys, users and known hosts of their own."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.task import RemoteSlot
from autoresearchd.executor.remote.hosts import Times
from autoresearchd.executor.ssh.executor import SshExecutor
from autoresearchd.sandbox.process_tree import descendants, read
from tests.timing import wait_until

PROGRAMS = ("sshd", "ssh-keygen", "rsync", "ssh")
BUSY = Times(silence=90.0, lease=100.0, connect=90.0)
"""For a machine that does other things too."""
USER = "researcher"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _suits(python: str | None) -> bool:
    code = "import sys; sys.exit(sys.version_info < (3, 11))"
    return python is not None and subprocess.run([python, "-c", code], capture_output=True).returncode == 0


AS_ANOTHER = os.geteuid() == 0 and _suits(shutil.which("python3", path=_PATH))
"""Whether the hosts have a user of their own: where root tests, and that user has a Python."""
if not AS_ANOTHER and not _suits(shutil.which("python3", path=_PATH)):
    _PATH = f"{sys.base_prefix}/bin:{_PATH}"
PYTHON = shutil.which("python3", path=_PATH) or sys.executable


def missing_programs() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]


needs_sshd = pytest.mark.skipif(
    bool(missing_programs()) and "AUTORESEARCHD_TESTS_NEED_SSHD" not in os.environ,
    reason=f"not installed: {', '.join(missing_programs())} (apt install openssh-server rsync iproute2)",
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make networks and disks to break")


@dataclass
class Sshd:
    """One host. port, address: where it listens; alias: its name in the configuration of ssh; home: of its user."""

    alias: str
    address: str
    port: int
    home: Path
    command: tuple[str, ...]

    def boot(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stderr=log)

    def wait(self) -> None:
        """Until it listens."""
        wait_until(lambda: self.process.poll() is not None or answers(self.address, self.port))
        assert self.process.poll() is None, self.log.read_text()

    @property
    def log(self) -> Path:
        return self.home.with_name("sshd.log")

    def slot(self, name: str = "", gpu: str = "0") -> RemoteSlot:
        return RemoteSlot(self.alias, gpu, name or self.alias, str(self.home))

    @property
    def top(self) -> Path:
        return self.home / ".autoresearchd"

    def signal(self, number: int) -> None:
        """To all sshds of this host, and to nothing that they have started."""
        for pid in (*descendants(self.process.pid), self.process.pid):
            if read(f"/proc/{pid}/comm").startswith(b"sshd"):
                os.kill(pid, number)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGCONT)
        for pid in descendants(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


@dataclass
class Fleet:
    """Hosts with one key and one configuration. folder: readable by the user of the hosts."""

    folder: Path
    hosts: list[Sshd] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.folder / "config"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def add(
        self, alias: str, *, path: str = _PATH, prefix: tuple[str, ...] = (), address: str = "127.0.0.1",
        known: bool = True, trusted: bool = True,
    ) -> Sshd:  # fmt: skip
        """Start one. path: PATH of its logins; prefix: what starts its sshd; known: its key is; trusted: ours is."""
        own = self.folder / alias
        home = own / "home"
        home.mkdir(parents=True)
        host_key = own / "host_key"
        make_key(host_key)
        authorized = own / "authorized_keys"
        authorized.write_text((self.folder / "key.pub").read_text() if trusted else "")
        port = free_port()
        lines = [
            f"Port {port}", f"ListenAddress {address}", f"HostKey {host_key}", f"AuthorizedKeysFile {authorized}",
            "PidFile none", "UsePAM no", "StrictModes no", "PasswordAuthentication no", "LogLevel ERROR",
            "KbdInteractiveAuthentication no", f'SetEnv "PATH={path}"', "UseDNS no", "MaxStartups 100",
        ]  # fmt: skip
        (own / "sshd_config").write_text("\n".join(lines) + "\n")
        command = [shutil.which("sshd", path=_PATH) or "sshd", "-D", "-e", "-f", str(own / "sshd_config")]
        if os.geteuid() == 0:
            os.chown(home, *ids_of_user())
            command = ["unshare", "-m", "/bin/sh", "-c", _AS_ANOTHER, "sh", str(self._accounts()), *command]
        host = Sshd(alias, address, port, home, (*prefix, *command))
        host.boot()
        self.hosts.append(host)
        user = USER if AS_ANOTHER else getpass.getuser()
        with self.config.open("a") as config:
            config.write(f"Host {alias}\n  HostName {address}\n  Port {port}\n  User {user}\n")
            config.write(f"  IdentityFile {self.folder / 'key'}\n  IdentitiesOnly yes\n")
            config.write(f"  UserKnownHostsFile {self.known_hosts}\n")
        if known:
            self.know(host, (own / "host_key.pub").read_text())
        if not prefix or address == "127.0.0.1":
            host.wait()
        return host

    def know(self, host: Sshd, key: str) -> None:
        with self.known_hosts.open("a") as known:
            known.write(f"[{host.address}]:{host.port} {' '.join(key.split()[:2])}\n")

    def _accounts(self) -> Path:
        """Files of accounts with one more user, which sshd alone sees: this machine's own stay as they are."""
        accounts = self.folder / "accounts"
        if not accounts.exists():
            accounts.mkdir()
            uid, gid = ids_of_user()
            account = f"{USER}:x:{uid}:{gid}::{self.folder}:/bin/sh\n"
            known = Path("/etc/passwd").read_text()
            privileged = "" if "\nsshd:" in known else "sshd:x:63334:65534::/run/sshd:/bin/false\n"
            (accounts / "passwd").write_text(known + privileged + account)
            (accounts / "shadow").write_text(f"root:*:19000::::::\n{USER}:*:19000::::::\n")
        return accounts

    def executor(self, *hosts: Sshd, times: Times = BUSY, **more: Any) -> SshExecutor:
        slots = [host.slot() for host in hosts or self.hosts]
        return SshExecutor(more.pop("slots", slots), config=self.config, times=times, **more)


_AS_ANOTHER = (
    'mount --bind "$1/passwd" /etc/passwd && mount --bind "$1/shadow" /etc/shadow && mount -t tmpfs tmpfs /run &&'
    ' mkdir -m 755 /run/sshd && shift && exec "$@"'
)


def ids_of_user() -> tuple[int, int]:
    return (63333, 65534) if AS_ANOTHER else (os.geteuid(), os.getegid())


def make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=30)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=1) as connection:
            return connection.recv(4).startswith(b"SSH")
    except OSError:
        return False


@contextlib.contextmanager
def make_fleet() -> Iterator[Fleet]:
    folder = Path(tempfile.mkdtemp(prefix="autoresearchd-fleet-"))
    folder.chmod(0o755)
    fleet = Fleet(folder)
    make_key(folder / "key")
    fleet.config.touch()
    fleet.known_hosts.touch()
    try:
        yield fleet
    finally:
        for host in fleet.hosts:
            host.end()
        shutil.rmtree(folder, ignore_errors=True)


def programs_folder(at: Path, programs: Mapping[str, str]) -> str:
    """A folder with links to programs, as a PATH."""
    at.mkdir()
    for name, target in programs.items():
        (at / name).symlink_to(target)
    return str(at)
