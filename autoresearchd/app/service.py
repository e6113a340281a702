"""A session as a service of the user's: a unit of systemd that goes on with it after a reboot.

See systemd.service(5) and systemd.syntax(7).
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoresearchd.app.project import Project
from autoresearchd.config.settings import for_elsewhere
from autoresearchd.domain.errors import MissingCapability, UsageError
from autoresearchd.workspace.files import disk_errors

_KEPT = (
    "PATH", "AUTORESEARCHD_CONFIG", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "VIRTUAL_ENV", "LANG", "HF_HOME",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
)  # fmt: skip
"""Variables of the shell that installs it; no keys: those belong into the file of ENVIRONMENT."""
ENVIRONMENT = "autoresearchd/environment"
_UNIT = """\
# Written by `autoresearchd service install`; `autoresearchd service uninstall` removes it.
[Unit]
Description=autoresearchd: session {tag} in {description}
# A database, a network or a disk may be away for hours.
StartLimitIntervalSec=0

[Service]
Type=notify
WorkingDirectory={folder}
{environment}
EnvironmentFile=-%E/{file}
ExecStart={resume}
# systemd's own TERM comes second, and means at once. By the process: a session may have moved to another machine.
ExecStop=-/bin/sh -c 'kill -INT $$MAINPID'
Restart=on-failure
RestartSec=30s
# Nothing that a restart would fix: a mistake, a baseline that fails, a limit, something missing, another daemon.
RestartPreventExitStatus=2 3 4 5 75
SuccessExitStatus=130 143
# A job that takes all memory is ended by the kernel, and the session goes on.
OOMPolicy=continue
# The set-up of a task may take long, and so may the end of rented machines. The daemon's heartbeat, every 10 s, feeds
# the watchdog.
TimeoutStartSec=infinity
TimeoutStopSec=15min
WatchdogSec=5min
KillMode=mixed

[Install]
WantedBy=default.target
"""


@dataclass(frozen=True, slots=True)
class Service:
    """A session and where its unit is written."""

    root: Path
    tag: str
    file: Path

    @property
    def name(self) -> str:
        return self.file.name

    def text(self, environment: Mapping[str, str]) -> bytes:
        """The unit. UsageError: the path of the repository, or a variable, cannot be written into one."""
        kept = {name: value for name, value in for_elsewhere(environment).items() if name in _KEPT and value}
        if any(not value.isprintable() for value in (str(self.root), sys.executable, *kept.values())):
            raise UsageError("a path or a variable has a control character in it", hint="rename the folder")
        lines = [f"Environment={_quoted(f'{name}={value}')}" for name, value in kept.items()]
        return _UNIT.format(
            tag=self.tag,
            description=str(self.root).replace("%", "%%"),
            folder=str(self.root).replace("%", "%%"),
            environment="\n".join(lines),
            file=ENVIRONMENT,
            resume=_command(
                [sys.executable, "-P", "-m", "autoresearchd", "resume", self.tag, "--foreground", "--quiet"]
            ),
        ).encode()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _command(words: Sequence[str]) -> str:
    return " ".join(_quoted(word).replace("$", "$$") for word in words)


def find(directory: Path, tag: str | None, *, removed: bool = False) -> Service:
    """The service of a session, installed or not. MissingCapability: this system cannot have systemd.

    removed: the session that ``tag`` names may be gone, and its service is left.
    """
    project = Project.of_session(directory)
    if tag is None or not removed:
        with project.existing_store() as store:
            tag = project.pick_own(store, tag).tag
    root = project.root.resolve()
    digest = hashlib.sha256(str(root).encode()).hexdigest()[:8]
    name = f"autoresearchd-{re.sub(r'[^A-Za-z0-9_.-]', '-', tag)}-{digest}"
    if sys.platform != "linux":
        what = f"a service is a unit of systemd, which {sys.platform} does not have"
        raise MissingCapability(what, hint="a daemon needs Linux: run it there, or in a Linux VM or container")
    config = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(config) if config.startswith("/") else Path.home() / ".config"
    return Service(root, tag, base / "systemd/user" / f"{name}.service")


def install(service: Service) -> list[str]:
    """Write the unit, and have systemd know it; lines for people: what was done, what is left, how to undo it."""
    text = service.text(os.environ)
    with disk_errors(f"writing {service.file}"):
        service.file.parent.mkdir(parents=True, exist_ok=True)
        service.file.write_bytes(text)
    enabled = _systemctl("daemon-reload") is not None and _systemctl("enable", service.name) is not None
    return [
        f"wrote {service.file}",
        "it is started at each login and boot"
        if enabled
        else f"no user manager answers here; then:  systemctl --user enable {service.name}",
        f"start now, once `autoresearchd stop --session {service.tag}` has ended what runs:  "
        f"systemctl --user start {service.name}",
        "to run also while you are not logged in:  loginctl enable-linger",
        f"keys of models and AUTORESEARCHD_STORE belong into {service.file.parents[2] / ENVIRONMENT} (KEY=value, "
        "chmod 600); a running ssh-agent is not known there",
        f"undo:  autoresearchd service uninstall --session {service.tag}",
    ]


def uninstall(service: Service) -> list[str]:
    """Stop and forget the service; the session stays. UsageError: there is none."""
    if not service.file.exists():
        raise UsageError(f"there is no {service.file}", hint="`autoresearchd service install` writes it")
    _systemctl("disable", "--now", service.name)
    with disk_errors(f"removing {service.file}"):
        service.file.unlink()
    _systemctl("daemon-reload")
    return [
        f"removed {service.file}; session {service.tag} stays: `autoresearchd resume {service.tag}` goes on with it"
    ]


def status(service: Service) -> dict[str, str]:
    """``file`` (empty: not installed), ``name``, and what systemd says of it, as far as it answers."""
    said = _systemctl("show", "-p", "ActiveState,UnitFileState,StatusText", service.name) or ""
    pairs = dict(line.partition("=")[::2] for line in said.splitlines())
    return {
        "session": service.tag, "name": service.name, "file": str(service.file) if service.file.exists() else "",
        "enabled": pairs.get("UnitFileState", ""), "active": pairs.get("ActiveState", ""),
        "says": pairs.get("StatusText", ""),
    }  # fmt: skip


def _systemctl(*words: str) -> str | None:
    """What the user's manager said; None: there is none, it failed, or it did not answer."""
    try:
        done = subprocess.run(
            ["systemctl", "--user", *words],
            capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=150, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
