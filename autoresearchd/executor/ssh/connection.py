"""One connection to a host through asyncssh, with the remote supervisor at its other end. The one user of asyncssh."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib
import json
import pickle
import shlex
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from autoresearchd.domain import errors
from autoresearchd.domain.cleaning import clean
from autoresearchd.executor.ssh.remote_supervisor import BOOT, MAGIC, pack, unpack_lengths

if TYPE_CHECKING:
    import asyncssh

T = TypeVar("T")
Told = Callable[[str, bytes, bool], None]
"""Takes the name of a log, what it has got, and whether it was rotated before."""
_GLOBAL_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")
_MOST_HEADER, _MOST_DATA, _MOST_STDERR = 1 << 24, 1 << 24, 4000
_BEAT_S = 1.0
_CALL_S = 120.0
_KINDS = {
    kind.__name__: kind
    for kind in (errors.BaselineError, errors.MissingCapability, errors.UsageError, errors.Interrupted)
}
_NO_PYTHON = "no-python"
# Any Python may be asked for its version; the first that is new enough goes on with what the argument holds.
_FIND_PYTHON = (
    "for p in python3 python3.14 python3.13 python3.12 python3.11; do"
    ' if "$p" -c "import sys; sys.exit(sys.version_info < (3, 11))" >/dev/null 2>&1; then'
    ' exec "$p" -I -S -c "import base64, sys; exec(base64.b64decode(sys.argv[1]))" "$0" "$1"; fi; done;'
    f" echo {_NO_PYTHON} >&2; exit 127"
)


class HostLost(errors.EnvironmentFailure):
    """A host cannot be reached, does not answer, or its connection broke: what runs there ends by itself."""


class HostFull(errors.EnvironmentFailure):
    """The disk of a host is full."""


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


@dataclass(slots=True)
class Call:
    """A call under way."""

    number: int
    told: Told | None
    done: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Link:
    """A connection with its remote supervisor. Used from the loop's thread of the executor alone.

    hello: what the supervisor said of its machine; lost: why the connection has ended, empty while it stands;
    skew: how far its clock is ahead, in seconds.
    """

    def __init__(
        self, address: Address, connection: asyncssh.SSHClientConnection, process: asyncssh.SSHClientProcess[bytes],
        patience: float, silence: float,
    ) -> None:  # fmt: skip
        self.address, self.hello, self.lost, self.skew = address, dict[str, Any](), "", 0.0
        self._connection, self._process = connection, process
        self._most_silent = max(2, round(silence / _BEAT_S))
        # To begin with it reads its own code, from a disk that may be slow.
        self._silent, self._last = min(0, self._most_silent - round(patience / _BEAT_S)), 0
        self._calls: dict[int, Call] = {}
        self._said = b""
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls, address: Address, config: Path | None, told: dict[str, Any], patience: float, silence: float,
        send: Callable[[dict[str, Any]], Coroutine[Any, Any, None]],
    ) -> Link:  # fmt: skip
        """Connect and start the supervisor; ``send`` brings its code there where ``hello`` says that it is missing.

        patience, silence: how long it may say nothing in the beginning and later.
        """
        connection = await connect(address, config, patience)
        try:
            words = (base64.b64encode(text.encode()).decode() for text in (BOOT, json.dumps(told)))
            command = f"exec /bin/sh -c {shlex.quote(_FIND_PYTHON)} {' '.join(words)}"
            import asyncssh

            try:
                process = await connection.create_process(command, encoding=None, request_pty=False)
            except (OSError, asyncssh.Error) as error:
                raise HostLost(f"{address.text}: no program can be started there: {clean(str(error), 200)}") from error
            link = cls(address, connection, process, patience, silence)
            link._tasks.append(asyncio.create_task(link._listen()))
            await asyncio.wait_for(link._greet(), patience)
            if link.hello["fault"]:
                what = f"{address.text}: nothing can be written to {told['folder']}: {clean(link.hello['fault'], 200)}"
                raise errors.MissingCapability(what, hint="correct remote_dir in task.yaml")
            if not link.hello["there"]:
                await asyncio.wait_for(send(link.hello), _CALL_S)
            link._process.stdin.write(b"g")
            link._tasks += [asyncio.create_task(link._read()), asyncio.create_task(link._beat())]
            return link
        except BaseException as error:
            connection.abort()
            if isinstance(error, TimeoutError):
                raise HostLost(f"{address.text}: it answers too slowly") from error
            raise

    async def _greet(self) -> None:
        try:
            await self._process.stdout.readuntil(MAGIC)
            hello = json.loads(await self._process.stdout.readuntil(b"\n"))
            self.skew = float(hello["time"]) - time.time()
            names = ("top", "part", "fault", "platform", "there", "rsync")
            self.hello = {name: hello[name] if name in ("there", "rsync") else str(hello[name]) for name in names}
        except (asyncio.IncompleteReadError, ValueError, KeyError, TypeError) as error:
            await asyncio.wait_for(self._process.wait_closed(), 2)
            said = clean(self._said.decode("utf-8", "replace"), 300)
            if _NO_PYTHON in said:
                what = f"{self.address.text}: there is no Python 3.11 or later on the PATH that ssh gives there"
                hint = "install one (apt install python3), or set PATH for logins without a terminal"
                raise errors.MissingCapability(what, hint=hint) from error
            raise HostLost(f"{self.address.text}: it did not start what it was asked to: {said or error}") from error

    # -- calls -------------------------------------------------------------------------------------------------------
    def begin(self, do: str, told: Told | None = None, **arguments: Any) -> Call:
        if self.lost:
            raise HostLost(self.lost)
        self._last += 1
        call = self._calls[self._last] = Call(self._last, told)
        self._send({"id": call.number, "do": do}, pickle.dumps(arguments))
        return call

    def stop(self, call: Call) -> None:
        """Ask to end a call, which still answers."""
        if not self.lost:
            self._send({"id": call.number, "do": "stop"})

    async def call(
        self, do: str, told: Told | None = None, *, timeout: float | None = _CALL_S, **arguments: Any
    ) -> Any:
        """What ``Remote.do_…`` there gives. Raises what it raised, with the host's name; HostLost; HostFull."""
        call = self.begin(do, told, **arguments)
        try:
            return await asyncio.wait_for(call.done, timeout)
        except TimeoutError as error:
            self.fail(f"{do} took more than {timeout:g} s")
            raise HostLost(self.lost) from error

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something that needs the host, and give it up with HostLost when the connection is lost."""
        if self.lost:
            work.close()
            raise HostLost(self.lost)
        call = self._calls[0] = self._calls.get(0) or Call(0, None)
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, call.done}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise HostLost(self.lost)
            return task.result()
        finally:
            task.cancel()
            with contextlib.suppress(BaseException):
                await task

    def _send(self, header: dict[str, Any], data: bytes = b"") -> None:
        with contextlib.suppress(OSError):  # it is lost, which the reader finds out
            self._process.stdin.write(pack(header, data))

    # -- what comes back ---------------------------------------------------------------------------------------------
    async def _read(self) -> None:
        import asyncssh

        read = self._process.stdout.readexactly
        try:
            while True:
                first, second = unpack_lengths(await read(8))
                if first > _MOST_HEADER or second > _MOST_DATA:
                    raise ValueError("a frame is too large")
                header, data = json.loads(await read(first)), await read(second) if second else b""
                self._silent = 0
                if (call := self._calls.get(header["id"])) is None or not header["id"]:
                    continue
                if "log" in header:
                    if call.told is not None:
                        call.told(str(header["log"]), data, bool(header["rotated"]))
                    continue
                del self._calls[call.number]
                if call.done.done():
                    continue
                if "error" in header:
                    call.done.set_exception(self._error(**header["error"]))
                else:
                    call.done.set_result(header["value"])
        except asyncio.IncompleteReadError:
            said = clean(self._said.decode("utf-8", "replace"), 300)
            self.fail(f"its connection ended{': ' if said else ''}{said}")
        except (ValueError, KeyError, TypeError) as error:
            self.fail(f"it says what cannot be understood: {clean(str(error), 200)}")
        except (OSError, asyncssh.Error) as error:
            self.fail(f"its connection broke: {clean(str(error), 200)}")

    def _error(self, kind: str, what: str, hint: str = "") -> errors.AutoresearchdError:
        text = f"{self.address.text}: " + "\n".join(clean(line, 300) for line in what.splitlines()[:40])
        if kind == "full":
            return HostFull(text, hint=f"free disk space on {self.address.text}")
        return _KINDS.get(kind, errors.EnvironmentFailure)(text, hint=clean(hint, 400))

    async def _listen(self) -> None:
        """Keep the last that it says on its standard error, for when it is lost."""
        import asyncssh

        with contextlib.suppress(OSError, asyncssh.Error):
            while data := await self._process.stderr.read(_MOST_STDERR):
                self._said = (self._said + data)[-_MOST_STDERR:]

    async def _beat(self) -> None:
        """Renew the lease. Beats are counted, not seconds: on a busy machine this side may be what is slow."""
        while not self.lost:
            self._send({"do": "ping"})
            await asyncio.sleep(_BEAT_S)
            self._silent += 1
            if self._silent >= self._most_silent:
                self.fail(f"no answer for {self._silent * _BEAT_S:g} s")

    def fail(self, why: str) -> None:
        """Give the connection up; all calls end with HostLost."""
        if self.lost:
            return
        self.lost = f"{self.address.text}: {why}"
        for call in self._calls.values():
            if not call.done.done():
                call.done.set_exception(HostLost(self.lost))
                call.done.exception()  # seen: nobody may be waiting
        self._calls.clear()
        self._connection.abort()

    async def close(self) -> None:
        """End the connection, and with it what was started over there."""
        self.fail("closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._connection.wait_closed()
