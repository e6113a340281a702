"""``autoresearchd serve``: which server serves a model, how it is called, and its life until it is told to end.

vLLM where it is installed (see its docs, *LoRA Adapters*, for loading adapters at run time), else ``transformers
serve``. Both listen on 127.0.0.1 alone: whoever reaches vLLM's port may have it load an adapter.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from autoresearchd.app.models.server_process import Patience, ServerCommand, keep_up
from autoresearchd.config.settings import load_settings
from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.errors import MissingCapability, RepositoryError, UsageError
from autoresearchd.domain.ports import Cancel
from autoresearchd.loop.context import StopSwitch
from autoresearchd.loop.daemon import signals
from autoresearchd.workspace import layout

_MAX_LORA_RANK = 64
_LORA_ROOTS = "VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES"
_PROBE_S = 60.0
_PROBE = "import sysconfig; print(sysconfig.get_path('scripts'))"
_ON_ITS_OWN = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
_PLAIN = json.dumps({"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0})
"""Sampling from the whole distribution, whatever the model's own settings say: the learner weighs with it."""


class Engine(StrEnum):
    """What serves. ``auto``: vLLM where it is installed, else transformers."""

    AUTO = "auto"
    VLLM = "vllm"
    TRANSFORMERS = "transformers"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What is to be served, and how.

    model: a folder, or a name at the Hugging Face hub; None: ``local.model`` of config.yaml. adapter: folder of a LoRA
    adapter, served under its folder's name. python: interpreter of the environment that the server is installed in,
    None: this one. log: where the server prints to, None: ``.autoresearchd/serve.log`` of the repository here, else
    below ``$XDG_STATE_HOME``.
    """

    model: str | None
    adapter: Path | None = None
    port: int = 8000
    engine: Engine = Engine.AUTO
    python: str | None = None
    log: Path | None = None


def serve(
    options: ServeOptions,
    folder: Path,
    say: Callable[[str], None],
    *,
    cancel: Cancel | None = None,
    patience: Patience | None = None,
) -> int:
    """Serve until a signal comes (or ``cancel`` is set); the exit code.

    Raises:
        UsageError: no model is named, the adapter is none, the port is taken.
        MissingCapability: neither server is installed.
        EnvironmentFailure: the server ended several times in a row before it was of use.
    """
    options = replace(options, model=options.model or load_settings(os.environ).local_model)
    _model(options.model, folder)  # what was asked wrongly is said before what this machine lacks
    require_free(options.port)
    scripts = scripts_of(options.python)
    programs = {engine: path for engine in (Engine.VLLM, Engine.TRANSFORMERS) if (path := _program(scripts, engine))}
    engine = choose(options.engine, frozenset(programs), options.python)
    command = command_of(options, engine, programs[engine], folder)
    log = options.log if options.log is not None else log_of(folder, options.port, os.environ)
    say(f"starting {engine} on 127.0.0.1:{options.port}; log: {log}; Ctrl-C ends it")
    stop = StopSwitch()
    with signals(stop):
        keep_up(command, log, cancel or _Asked(stop), say, patience)
    return 128 + stop.signal if stop.signal is not None else 0


def choose(wanted: Engine, installed: frozenset[Engine], python: str | None = None) -> Engine:
    """The server to start; MissingCapability where it is not installed."""
    where = f"of {python}" if python else "that runs this"
    if wanted is Engine.AUTO:
        found = next((engine for engine in (Engine.VLLM, Engine.TRANSFORMERS) if engine in installed), None)
        if found is None:
            raise MissingCapability(
                f"neither vLLM nor transformers is installed in the environment {where}",
                hint="pip install 'autoresearchd[serve]', or vLLM in an environment of its own: --python",
            )
        return found
    if wanted not in installed:
        vllm = "pip install vllm, in an environment of its own, and name that: --python"
        raise MissingCapability(
            f"{wanted} is not installed in the environment {where}",
            hint=vllm if wanted is Engine.VLLM else "pip install 'autoresearchd[serve]'",
        )
    return wanted


def command_of(options: ServeOptions, engine: Engine, program: Path, folder: Path) -> ServerCommand:
    """How the server is called. Paths are made absolute: it does not run in this folder.

    vLLM gives the log-probabilities under the sampling temperature, as the learner needs them, and is ready to load
    adapters of this repository, or, outside of one, of those below this folder. The programs of its own environment are
    found first: it calls compilers at run time.
    """
    model, local = _model(options.model, folder)
    adapter = _adapter(options.adapter, folder)
    at = ("--host", "127.0.0.1", "--port", str(options.port))
    environment = {**_QUIET, **(_ON_ITS_OWN if local else {})}
    environment["PATH"] = os.pathsep.join((str(program.parent), os.environ.get("PATH", os.defpath)))
    if engine is Engine.VLLM:
        lora = ("--enable-lora", "--max-lora-rank", str(_MAX_LORA_RANK))
        modules = ("--lora-modules", f"{adapter.name}={adapter}") if adapter is not None else ()
        given = (*at, *lora, *modules, "--logprobs-mode", "processed_logprobs", "--override-generation-config", _PLAIN)
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        environment[_LORA_ROOTS] = _lora_roots(folder, adapter, os.environ.get(_LORA_ROOTS, ""))
        return ServerCommand((str(program), "serve", model, *given), environment, options.port)
    if adapter is not None:
        raise UsageError(
            "transformers serve does not load adapters",
            hint="take --engine vllm, or name the folder: --policy local:FOLDER loads it into the daemon",
        )
    return ServerCommand((str(program), "serve", model, *at), environment, options.port)


def scripts_of(python: str | None) -> Path:
    """The folder of the programs that an environment has installed. Raises UsageError for what is no interpreter."""
    if python is None or python == sys.executable:
        return Path(sysconfig.get_path("scripts"))
    hint = "name the interpreter of an environment, e.g. --python ~/.venvs/vllm/bin/python"
    found = shutil.which(str(Path(python).expanduser()))
    if found is None:
        raise UsageError(f"--python: there is no program {python!r}", hint=hint)
    try:
        result = subprocess.run(
            [str(Path(found).absolute()), "-c", _PROBE],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        raise UsageError(f"--python: {python} is no Python: {type(error).__name__}", hint=hint) from error
    return Path(result.stdout.strip())


def require_free(port: int) -> None:
    """Raise UsageError where something listens on a port of loopback already, or may not."""
    if not 1 <= port <= 65535:
        raise UsageError(f"--port: {port} is no port", hint="a number from 1 to 65535")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be used: {error.strerror}",
                hint="name another with --port, and in local.base_url of config.yaml",
            ) from error


def log_of(folder: Path, port: int, environment: Mapping[str, str]) -> Path:
    """Where the server's log goes when nobody says: with the repository's other logs, else with the user's state.

    See https://specifications.freedesktop.org/basedir-spec/latest/ for the latter.
    """
    with contextlib.suppress(RepositoryError):
        public = layout.public_dir(layout.find_root(folder))
        if public.is_dir():  # made by a session, which has also told git to overlook it
            return public / "serve.log"
    state, home = environment.get("XDG_STATE_HOME", ""), environment.get("HOME", "")
    if not state.startswith("/"):
        state = f"{home}/.local/state" if home else str(folder)
    return Path(state) / "autoresearchd" / f"serve-{port}.log"


def _program(scripts: Path, engine: Engine) -> Path | None:
    path = scripts / engine.value
    return path if path.is_file() and os.access(path, os.X_OK) else None


def _model(model: str | None, folder: Path) -> tuple[str, bool]:
    """The model as the server is to be told, and whether it lies on this machine."""
    hint = "a folder, or a name at the hub: autoresearchd serve Qwen/Qwen3-4B"
    if model is None or not model.strip():
        raise UsageError("no model is named", hint=hint)
    if model.startswith("-") or not model.isprintable():
        raise UsageError(f"{clean(model, 60)!r} is no model", hint=hint)
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


def _lora_roots(folder: Path, adapter: Path | None, given: str) -> str:
    """Where vLLM may load adapters from: it needs folders that exist. given: what the user allows beside them."""
    here = folder.resolve()
    with contextlib.suppress(RepositoryError):
        here = layout.adapters_dir(layout.find_root(folder)).parent.parent
    return os.pathsep.join((*filter(None, given.split(os.pathsep)), str(here), *([str(adapter)] if adapter else ())))


@dataclass(frozen=True, slots=True)
class _Asked:
    """The switch that signals set, as what ends the serving: at the first of them."""

    switch: StopSwitch

    def is_set(self) -> bool:
        return self.switch.soon

    def wait(self, timeout: float | None = None) -> bool:
        return self.switch.wait(timeout if timeout is not None else threading.TIMEOUT_MAX)
