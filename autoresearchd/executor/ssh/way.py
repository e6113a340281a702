"""How one host is reached by ssh, and files by rsync over the system's ssh, which checks the host's key as we do."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pwd
import re
import shutil
import signal
import sys
from pathlib import Path

from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.errors import EnvironmentFailure, MissingCapability
from autoresearchd.executor.remote.link import Hello, HostFull, HostLost, Like
from autoresearchd.executor.remote.trees import Tree
from autoresearchd.executor.ssh.connection import Address, SshChannel, no_python

_DYING = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
"""Starts a program that ends with the daemon (prctl(2), PR_SET_PDEATHSIG): it would go on sending for hours."""
_LOST = {10, 12, 30, 35, 255}
"""rsync's exit codes for sockets, streams and time, and ssh's own."""
_PATIENCE_S = 60
_FULL = re.compile(rb"No space left on device \(28\)\s*$", re.M)
_UNREADABLE = re.compile(
    rb"rsync: (\[sender\] (?!change_dir ).*|(send_files|opendir|readlink_stat)\b.*)"
    rb"(Permission denied \(13\)|File name too long \(36\))"
    rb"|file has vanished: .*|rsync (error|warning): .*|IO error encountered.*|\s*"
)
"""Of rsync's complaints, in which a job's file names stand, too: a full disk; what the other side could not read."""
_IN_PART = (23, 24)
"""rsync's exit codes where files could not be read or are gone."""
_SSH = (
    "ssh", "-a", "-x", "-T", "-oBatchMode=yes", "-oStrictHostKeyChecking=yes", "-oUpdateHostKeys=no",
    "-oControlPath=none", "-oClearAllForwardings=yes", "-oPermitLocalCommand=no", "-oForwardAgent=no",
    "-oRemoteCommand=none",
)  # fmt: skip


def require_programs() -> None:
    """MissingCapability where rsync or ssh is not installed here."""
    for program, package in (("rsync", "rsync"), ("ssh", "openssh-client")):
        if shutil.which(program) is None:
            what = f"--executor ssh needs the program {program} on this machine"
            raise MissingCapability(what, hint=f"apt install {package}")


class SshWay:
    """A `Way` to one host. Who waits for a transfer also watches the connection, and ends it with that."""

    where_folder = "remote_dir in task.yaml"

    def __init__(self, address: Address, config: Path | None) -> None:
        self._address, self._config = address, config
        home = Path.home()
        known: tuple[str, ...] = ()
        if config is None and home != Path(pwd.getpwuid(os.getuid()).pw_dir):  # ssh goes by the latter, asyncssh not
            config = home / ".ssh" / "config"
            config = config if config.is_file() else None
            known = (f"-oUserKnownHostsFile={home}/.ssh/known_hosts",) if config is None else ()
        words = [*_SSH, f"-oConnectTimeout={_PATIENCE_S}", *known, *(("-F", str(config)) if config else ())]
        words += ["-l", address.user] if address.user else []
        self._shell = " ".join(f'"{word}"' for word in words)
        self._target = f"[{address.name}]:" if ":" in address.name else f"{address.name}:"

    @property
    def name(self) -> str:
        return self._address.text

    def ready(self) -> bool:
        return True

    async def open(self, told: Hello, patience: float) -> SshChannel:
        return await SshChannel.open(self._address, self._config, told, patience)

    def require_usable(self, hello: Hello) -> None:
        if not hello["rsync"]:
            raise MissingCapability(f"{self.name}: there is no rsync", hint="install it: apt install rsync")

    def explain(self, said: str) -> MissingCapability | None:
        return no_python(self._address, said)

    # -- files -------------------------------------------------------------------------------------------------------
    async def send(self, top: Path, tree: Tree, folder: str, *, like: Like | None = None, follow: bool = False) -> None:
        names = b"".join(os.fsencode(name) + b"\0" for name in tree.names)
        copied = [f"--copy-dest={like.folder}", "--checksum"] if like else ["--whole-file"]
        how = ["-pt", "-L" if follow else "-l", "--from0", "--files-from=-", *copied]
        await self._rsync([*how, f"{top}/", f"{self._target}{folder}/"], names, there=True)

    async def fetch(self, folder: str, target: Path, *, output: bool) -> None:
        wanted = ("/*.log", "/*.log.1", *(("/output/", "/output/**") if output else ()))
        chosen = [*(f"--include={name}" for name in wanted), "--exclude=*"]
        how = ["-rtl", "--safe-links", "--no-devices", "--no-specials", "--inplace", "--chmod=u+rwX,go-w"]
        await self._rsync([*how, *chosen, f"{self._target}{folder}/", f"{target}/"], b"", there=False)

    async def _rsync(self, arguments: list[str], said: bytes, *, there: bool) -> None:
        words = ["rsync", "-s", f"--timeout={_PATIENCE_S}", "-e", self._shell, *arguments]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", _DYING, *words,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        try:
            _, complaints = await process.communicate(said)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what writes is a child of it
                await process.wait()
        if process.returncode == 0:
            return
        full = bool(_FULL.search(complaints))
        unreadable = all(map(_UNREADABLE.fullmatch, complaints.splitlines()))
        if not there and process.returncode in _IN_PART and unreadable:
            return  # what the job has made unreadable is missed by nobody else, and would be so the next time
        lines = [line for line in complaints.decode("utf-8", "replace").splitlines() if line.strip()]
        why, host = clean("; ".join(lines[:3]), 300), self.name
        if full:
            if not there:
                raise OSError(errno.ENOSPC, "no space left", arguments[-1])
            raise HostFull(f"no space left on {host}", hint=f"free disk space on {host}")
        if b"rsync: command not found" in complaints or b"rsync: not found" in complaints:
            raise MissingCapability(f"{host}: there is no rsync", hint="install it there: apt install rsync")
        if b"is your shell clean?" in complaints:
            what = f"{host}: logins print something before the program that they are to run: {why}"
            raise MissingCapability(what, hint="have ~/.bashrc and the like say nothing where there is no terminal")
        if process.returncode in _LOST:
            raise HostLost(f"{host}: the transfer broke off: {why}")
        raise EnvironmentFailure(f"{host}: rsync failed with {process.returncode}: {why}", hint="see the message")
