"""Logging in to a host through asyncssh, and starting the remote supervisor there. The one user of asyncssh."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib
import json
import shlex
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autoresearchd.domain import errors
from autoresearchd.domain.cleaning import clean
from autoresearchd.executor.remote.link import Hello, HostLost
from autoresearchd.executor.remote.remote_supervisor import BOOT

if TYPE_CHECKING:
    import asyncssh

_GLOBAL_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")
_READ_AT_ONCE = 4000
_NO_PYTHON = "no-python"
# Any Python may be asked for its version; the first that is new enough goes on with what the argument holds.
_FIND_PYTHON = (
    "for p in python3 python3.14 python3.13 python3.12 python3.11; do"
    ' if "$p" -c "import sys; sys.exit(sys.version_info < (3, 11))" >/dev/null 2>&1; then'
    ' exec "$p" -I -S -c "import base64, sys; exec(base64.b64decode(sys.argv[1]))" "$0" "$1"; fi; done;'
    f" echo {_NO_PYTHON} >&2; exit 127"
)


@dataclass(frozen=True, slots=True)
class Address:
    """A host as task.yaml names it: ``[user@]name``, where the name is one for ssh's own configuration."""

    text: str

    @property
    def user(self) -> str:
        return self.text.rpartition("@")[0]

    @property
    def name(self) -> str:
        return self.text.rpartition("@")[2].strip("[]")


def require_asyncssh() -> None:
    """MissingCapability where it is not installed."""
    try:
        importlib.import_module("asyncssh")
    except ImportError as error:
        what = f"--executor ssh needs the package asyncssh: {error}"
        raise errors.MissingCapability(what, hint="pip install 'autoresearchd[ssh]'") from error


async def connect(address: Address, config: Path | None, patience: float) -> asyncssh.SSHClientConnection:
    """Log in with the user's ssh configuration, keys and known hosts; nothing is forwarded.

    Raises HostLost: it cannot be reached; MissingCapability: its key or ours is not accepted, or it does not exist.
    """
    import asyncssh

    host, known = address.name, _known_hosts(address, config)
    try:
        return await asyncio.wait_for(
            asyncssh.connect(
                host, config=[str(config)] if config else (), username=address.user or (), known_hosts=known,
                agent_forwarding=False, x509_trusted_certs=None, gss_auth=False, password_auth=False, kbdint_auth=False,
                keepalive_interval=0,
            ),
            patience,
        )  # fmt: skip
    except asyncssh.HostKeyNotVerifiable as error:
        raise _bad_host_key(address, known, str(error), config) from error
    except asyncssh.KeyExchangeFailed as error:
        what = f"{address.text}: no kind of key or cipher that both sides know: {clean(str(error), 200)}"
        raise errors.MissingCapability(what, hint=f"`ssh {address.text}` shows what is wrong") from error
    except asyncssh.PermissionDenied as error:
        raise errors.MissingCapability(
            f"{address.text}: it accepts none of the keys here ({clean(str(error), 200)})",
            hint=f"`ssh-copy-id {address.text}`; a key with a passphrase has to be in ssh-agent, for the daemon's "
            "SSH_AUTH_SOCK; `user@host` or User in ~/.ssh/config names another user",
        ) from error
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            raise HostLost(f"{address.text}: its name cannot be looked up now") from error
        what = f"{address.text}: there is no host of that name ({clean(error.strerror, 100)})"
        raise errors.MissingCapability(
            what, hint="correct fleet.slots, or give it a HostName in ~/.ssh/config"
        ) from error
    except (asyncssh.KeyImportError, asyncssh.ConfigParseError) as error:
        what = f"{address.text}: a key or the configuration of ssh cannot be read: {clean(str(error), 200)}"
        raise errors.MissingCapability(what, hint=f"`ssh {address.text}` shows what is wrong") from error
    except TimeoutError as error:
        raise HostLost(f"{address.text}: no answer within {patience:g} s") from error
    except (OSError, asyncssh.Error) as error:
        raise HostLost(f"{address.text}: cannot be reached: {clean(str(error), 200)}") from error


def _options(address: Address, config: Path | None) -> asyncssh.SSHClientConnectionOptions:
    import asyncssh

    where = [str(config)] if config else ()
    return asyncssh.SSHClientConnectionOptions(host=address.name, config=where, client_keys=None)


def _known_hosts(address: Address, config: Path | None) -> list[str]:
    """The files of known hosts; a configuration that switches the check off is not followed."""
    import asyncssh

    try:
        named = _options(address, config).known_hosts
    except (ValueError, OSError, asyncssh.Error) as error:
        what = f"the configuration of ssh cannot be read: {clean(str(error), 200)}"
        raise errors.MissingCapability(what, hint="correct ~/.ssh/config") from error
    files = named if isinstance(named, list) and named else ["~/.ssh/known_hosts", str(_GLOBAL_KNOWN_HOSTS)]
    paths = [Path(str(name)).expanduser() for name in files]
    return [str(path) for path in paths if path.is_file()] or ["/dev/null"]


def _bad_host_key(address: Address, known: list[str], said: str, config: Path | None) -> errors.MissingCapability:
    import asyncssh

    options = _options(address, config)
    name, port = options.host_key_alias or options.host or address.name, options.port
    trusted = asyncssh.match_known_hosts(known, name, "", None if port in (0, 22) else port)
    entry = name if port in (0, 22) else f"[{name}]:{port}"
    if any(trusted[:2]):
        return errors.MissingCapability(
            f"{address.text}: its key is not the one that {', '.join(known)} has: somebody may be listening, or it was "
            "installed anew",
            hint=f"ask whoever runs it; if it is so: ssh-keygen -R '{entry}', then `ssh {address.text}` once by hand",
        )
    return errors.MissingCapability(
        f"{address.text}: its key is in no file of known hosts ({', '.join(known)}; {clean(said, 120)})",
        hint=f"`ssh {address.text}` once by hand shows its fingerprint: compare it, then accept it",
    )


class SshChannel:
    """A `Channel` through a connection of its own."""

    def __init__(self, connection: asyncssh.SSHClientConnection, process: asyncssh.SSHClientProcess[bytes]) -> None:
        self._connection, self._process = connection, process

    @classmethod
    async def open(cls, address: Address, config: Path | None, told: Hello, patience: float) -> SshChannel:
        """Connect and start the supervisor. Raises what `connect` does."""
        import asyncssh

        connection = await connect(address, config, patience)
        words = (base64.b64encode(text.encode()).decode() for text in (BOOT, json.dumps(told)))
        command = f"exec /bin/sh -c {shlex.quote(_FIND_PYTHON)} {' '.join(words)}"
        try:
            return cls(connection, await connection.create_process(command, encoding=None, request_pty=False))
        except BaseException as error:
            connection.abort()
            if isinstance(error, (OSError, asyncssh.Error)):
                what = f"{address.text}: no program can be started there: {clean(str(error), 200)}"
                raise HostLost(what) from error
            raise

    async def read_until(self, mark: bytes) -> bytes:
        with _as_os_errors():
            return await self._process.stdout.readuntil(mark)

    async def read_exactly(self, count: int) -> bytes:
        with _as_os_errors():
            return await self._process.stdout.readexactly(count)

    async def complaint(self) -> bytes:
        with _as_os_errors():
            return await self._process.stderr.read(_READ_AT_ONCE)

    def write(self, data: bytes) -> None:
        self._process.stdin.write(data)

    async def ended(self) -> None:
        await self._process.wait_closed()

    def abort(self) -> None:
        self._connection.abort()

    async def closed(self) -> None:
        await self._connection.wait_closed()


def no_python(address: Address, said: str) -> errors.MissingCapability | None:
    """The error where a host has said that it lacks a Python."""
    if _NO_PYTHON not in said:
        return None
    what = f"{address.text}: there is no Python 3.11 or later on the PATH that ssh gives there"
    hint = "install one (apt install python3), or set PATH for logins without a terminal"
    return errors.MissingCapability(what, hint=hint)


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    import asyncssh

    try:
        yield
    except asyncssh.Error as error:
        raise ConnectionError(str(error)) from error
