"""``autoresearchd serve``: a server of a model on this machine, kept up until it is told to end.

vLLM where it is installed (see its docs, *LoRA Adapters*, for loading adapters at run time), else ``transformers
serve``. Both listen on 127.0.0.1 alone: whoever reaches vLLM's port may have it load an adapter. The server is
watched, started again when it ends or falls silent, and dies with this process (``sandbox/process_group.py``).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from autoresearchd.app.models.spending import state_home
from autoresearchd.config.settings import load_settings
from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.errors import EnvironmentFailure, MissingCapability, RepositoryError, UsageError
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.quantities import format_duration
from autoresearchd.sandbox import process_group
from autoresearchd.workspace import layout
from autoresearchd.workspace.files import read_tail

_MAX_LORA_RANK = 64
_LORA_ROOTS = "VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES"
_PROBE_S = 60.0
_PROBE = "import sysconfig; print(sysconfig.get_path('scripts'))"
_ON_ITS_OWN = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
_PLAIN = json.dumps({"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0})
"""Sampling from the whole distribution, whatever the model's own settings say: the learner weighs with it."""
_MAX_LOG_BYTES = 16 * 1024 * 1024
_LONGEST_PAUSE_S, _SETTLED_S, _STARTS = 60.0, 300.0, 5
"""Between two starts at most; after which an end counts as the first; how many may fail in a row."""
_TAIL_BYTES, _TAIL_LINES = 16 * 1024, 12


class ServerCommand(NamedTuple):
    """How a server is started. environment: beside that of this process; port: on 127.0.0.1."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    port: int


class Patience(NamedTuple):
    """How long a server is waited for, in seconds."""

    ready: float = 1800.0  # a large model takes minutes to load
    silent: float = 600.0  # it may be at work on a long answer
    look: float = 2.0
    first: float = 1.0  # before a new start, doubled each time
    end: float = 10.0  # for it to end by itself when it is told to


USUAL = Patience()


def prepare(
    model: str | None, folder: Path, *, adapter: Path | None, port: int, engine: str, python: str | None
) -> ServerCommand:
    """How a server is started. model: None: that of config.yaml."""
    model = model or load_settings(os.environ).local.model
    _place(model, folder)  # what was asked wrongly is said before what this machine lacks
    require_free(port)
    return command_of(model, find_program(engine, python), folder, adapter=adapter, port=port)


def find_program(engine: str, python: str | None) -> Path:
    """The server's program, of this environment or of the one whose interpreter is named."""
    scripts = Path(sysconfig.get_path("scripts"))
    if python is not None and python != sys.executable:
        program = Path(shutil.which(str(Path(python).expanduser())) or python).absolute()
        try:
            probe = [str(program), "-c", _PROBE]
            done = subprocess.run(probe, cwd="/", capture_output=True, text=True, timeout=_PROBE_S, check=True)
        except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
            what = f"--python: {python} cannot be run as a Python: {type(error).__name__}"
            hint = "name the interpreter of an environment, e.g. --python ~/.venvs/vllm/bin/python"
            raise UsageError(what, hint=hint) from error
        scripts = Path(done.stdout.strip())
    wanted = ("vllm", "transformers") if engine == "auto" else (engine,)
    for each in wanted:
        if os.access(scripts / each, os.X_OK):
            return scripts / each
    raise MissingCapability(
        f"{' or '.join(wanted)} is missing in the environment {f'of {python}' if python else 'that runs this'}",
        hint="pip install 'autoresearchd[serve]', or vLLM in an environment of its own: --python",
    )


def command_of(
    model: str | None, program: Path, folder: Path, *, adapter: Path | None = None, port: int = 8000
) -> ServerCommand:
    """How the server is called. Paths are absolute: it does not run in this folder.

    vLLM gives the log-probabilities under the sampling temperature, as the learner needs them, and may load adapters of
    this repository, or of this folder. Its own environment comes first on PATH: it calls compilers at run time.
    """
    model, local = _place(model, folder)
    adapter = _adapter(adapter, folder)
    arguments = [str(program), "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    environment = {**_QUIET, **(_ON_ITS_OWN if local else {})}
    environment["PATH"] = os.pathsep.join((str(program.parent), os.environ.get("PATH", os.defpath)))
    if program.name == "vllm":
        arguments += ["--enable-lora", "--max-lora-rank", str(_MAX_LORA_RANK)]
        arguments += ["--lora-modules", f"{adapter.name}={adapter}"] if adapter is not None else []
        arguments += ["--logprobs-mode", "processed_logprobs", "--override-generation-config", _PLAIN]
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        here = folder.resolve()
        with contextlib.suppress(RepositoryError):
            here = layout.adapters_dir(layout.find_root(folder)).parent.parent
        roots = (os.environ.get(_LORA_ROOTS, ""), str(here), str(adapter or ""))  # folders that exist
        environment[_LORA_ROOTS] = os.pathsep.join(filter(None, roots))
    elif adapter is not None:
        hint = "take --engine vllm, or name the folder: --policy local:FOLDER loads it into the daemon"
        raise UsageError("transformers serve does not load adapters", hint=hint)
    return ServerCommand(tuple(arguments), environment, port)


def require_free(port: int) -> None:
    """Raise UsageError where something listens on a port of loopback already, or may not."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            what = f"port {port} cannot be used: {getattr(error, 'strerror', '') or error}"
            raise UsageError(what, hint="name another with --port, and in local.base_url of config.yaml") from error


def usual_log(folder: Path, port: int) -> Path:
    """Where the server's log goes when nobody says: with the repository's other logs, else with the user's state."""
    with contextlib.suppress(RepositoryError):
        public = layout.public_dir(layout.find_root(folder))
        if public.is_dir():  # made by a session, which has also told git to overlook it
            return public / "serve.log"
    return (state_home(os.environ) or folder) / f"serve-{port}.log"


def _place(model: str | None, folder: Path) -> tuple[str, bool]:
    """The model as the server is to be told, and whether it lies on this machine."""
    hint = "a folder, or a name at the hub: autoresearchd serve Qwen/Qwen3-4B"
    if model is None or not model.strip():
        raise UsageError("no model is named", hint=hint)
    if model.startswith("-") or not model.isprintable():
        raise UsageError(f"{clean(model, 60)!r} is not the name of a model", hint=hint)
    place = folder / Path(model).expanduser()
    if place.exists():
        return str(place.resolve()), True
    if model.startswith((".", "/", "~")):
        raise UsageError(f"there is no folder {model}", hint=hint)
    return model, False


def _adapter(adapter: Path | None, folder: Path) -> Path | None:
    if adapter is None:
        return None
    place = (folder / adapter.expanduser()).resolve()
    if not (place / "adapter_config.json").is_file() or "=" in str(place):
        raise UsageError(f"{adapter} holds no LoRA adapter", hint="it has an adapter_config.json, as peft writes it")
    return place


# ---------------------------------------------------------------------- the server's life
def keep_up(
    command: ServerCommand, log: Path, cancel: Cancel, say: Callable[[str], None], patience: Patience = USUAL
) -> None:
    """Keep a server up until ``cancel`` is set. Raises EnvironmentFailure: it ended several times in a row."""
    failures = 0
    while not cancel.is_set():
        began = time.monotonic()
        with _running(command, log, patience.end) as process:
            reason = _watch(process, command.port, cancel, say, patience)
        if cancel.is_set():
            return
        failures = 1 if time.monotonic() - began >= _SETTLED_S else failures + 1
        if failures >= _STARTS:
            what = f"the server ended {failures} times in a row; the last time it {reason}{tail(log)}"
            raise EnvironmentFailure(what, hint=f"its whole log: {log}")
        pause = min(_LONGEST_PAUSE_S, patience.first * 2 ** (failures - 1))
        say(f"the server {reason}; it is started again in {format_duration(pause)}; log: {log}")
        cancel.wait(pause)


def _answers(port: int, timeout: float) -> bool:
    """Whether a server on loopback gives a sign of life: ``/health``, or the list of its models."""
    for path in ("/health", "/v1/models"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return True
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
    return False


def tail(log: Path) -> str:
    """The last lines of a log, cleaned, to be put behind an error; empty where there is none."""
    lines = [line for line in read_tail(log, _TAIL_BYTES).splitlines() if line.strip()]
    return "".join(f"\n  {clean(line, 300)}" for line in lines[-_TAIL_LINES:])


def _watch(
    process: subprocess.Popen[bytes], port: int, cancel: Cancel, say: Callable[[str], None], patience: Patience
) -> str:
    """Wait until the server is to be started again, or ``cancel`` is set; what became of it."""
    ready, seen = False, time.monotonic()
    while not cancel.wait(patience.look):
        code = process.poll()
        if code is not None:
            return f"ended with exit code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        if _answers(port, timeout=max(patience.look, 10.0)):
            if not ready:
                say(f"ready: http://127.0.0.1:{port}/v1")
            ready, seen = True, time.monotonic()
        elif time.monotonic() - seen >= (patience.silent if ready else patience.ready):
            how = "has not answered" if ready else "has not become ready"
            return f"{how} for {format_duration(time.monotonic() - seen)}"
    return "was stopped"


@contextlib.contextmanager
def _running(command: ServerCommand, log: Path, patience: float) -> Iterator[subprocess.Popen[bytes]]:
    """The server, for as long as the block lasts; nothing of its process group is left behind."""
    with _open_log(log) as output:
        env = {**os.environ, **command.environment}
        process = process_group.start(
            command.arguments, "the server", cwd=Path("/"), env=env, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process_group.end(process, patience)


def _open_log(log: Path) -> IO[bytes]:
    """The log, begun anew when it has grown large."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > _MAX_LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
        return log.open("ab")
    except OSError as error:
        raise EnvironmentFailure(f"the log {log} cannot be written: {error}", hint="name another: --log") from error
