"""A session as a service of the user's: a unit of systemd, or a job of launchd, that goes on with it after a reboot.

See systemd.service(5), systemd.syntax(7) and launchd.plist(5).
"""

from __future__ import annotations

import hashlib
import os
import plistlib
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoresearchd.app.project import Project
from autoresearchd.domain.errors import MissingCapability, UsageError
from autoresearchd.report.log_files import IMPORTED
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
ExecStop={stop}
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
    """A session and where its service is written. kind: ``systemd`` or ``launchd``."""

    root: Path
    tag: str
    kind: str
    file: Path

    @property
    def name(self) -> str:
        return self.file.name if self.kind == "systemd" else self.file.stem

    def text(self, environment: Mapping[str, str]) -> bytes:
        """The file. UsageError: the path of the repository, or a variable, cannot be written into one."""
        kept = {name: environment[name] for name in _KEPT if environment.get(name)}
        if any(not value.isprintable() for value in (str(self.root), sys.executable, *kept.values())):
            raise UsageError("a path or a variable has a control character in it", hint="rename the folder")
        call = [sys.executable, "-P", "-m", "autoresearchd"]
        resume = [*call, "resume", self.tag, "--foreground", "--quiet"]
        if self.kind == "launchd":
            job = {
                "Label": self.name, "ProgramArguments": resume, "WorkingDirectory": str(self.root),
                "EnvironmentVariables": kept, "RunAtLoad": True, "KeepAlive": {"Crashed": True},
                "ThrottleInterval": 30, "ExitTimeOut": 900, "ProcessType": "Background",
            }  # fmt: skip
            return plistlib.dumps(job)
        lines = [f"Environment={_quoted(f'{name}={value}')}" for name, value in kept.items()]
        return _UNIT.format(
            tag=self.tag,
            description=str(self.root).replace("%", "%%"),
            folder=str(self.root).replace("%", "%%"),
            environment="\n".join(lines),
            file=ENVIRONMENT,
            resume=_command(resume),
            stop=_command([*call, "stop", "--now", "--session", self.tag]),
        ).encode()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _command(words: Sequence[str]) -> str:
    return " ".join(_quoted(word).replace("$", "$$") for word in words)


def find(
    directory: Path, tag: str | None, *, removed: bool = False, system: str = sys.platform, home: Path | None = None
) -> Service:
    """The service of a session, installed or not. MissingCapability: this system has no service manager we know.

    removed: the session that ``tag`` names may be gone, and its service is left.
    """
    project = Project.of_session(directory)
    if tag is None or not removed:
        with project.existing_store() as store:
            session = project.pick(store, tag)
        if session.policy == IMPORTED:
            what = f"session {session.tag} was imported: there is nothing to go on with"
            raise UsageError(what, hint="start your own")
        tag = session.tag
    root = project.root.resolve()
    digest = hashlib.sha256(str(root).encode()).hexdigest()[:8]
    name = f"autoresearchd-{re.sub(r'[^A-Za-z0-9_.-]', '-', tag)}-{digest}"
    home = home or Path.home()
    if system == "darwin":
        return Service(root, tag, "launchd", home / "Library/LaunchAgents" / f"{name}.plist")
    if system != "linux":
        what = f"a service can be installed on Linux (systemd) and macOS (launchd), not on {system}"
        raise MissingCapability(what, hint="have your system run `autoresearchd resume --foreground`")
    config = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(config) if config.startswith("/") else home / ".config"
    return Service(root, tag, "systemd", base / "systemd/user" / f"{name}.service")


def install(service: Service, environment: Mapping[str, str] | None = None) -> list[str]:
    """Write the file, and have the manager know it; lines for people: what was done, what is left, how to undo it."""
    text = service.text(os.environ if environment is None else environment)
    with disk_errors(f"writing {service.file}"):
        service.file.parent.mkdir(parents=True, exist_ok=True)
        service.file.write_bytes(text)
    lines = [f"wrote {service.file}"]
    if service.kind == "launchd":
        lines += [f"start now and at each login:  launchctl bootstrap gui/$UID {service.file}"]
    else:
        lines.append(
            "it is started at each login and boot"
            if _systemctl("daemon-reload") and _systemctl("enable", service.name)
            else f"no user manager answers here; then:  systemctl --user enable {service.name}"
        )
        lines += [
            f"start now, once `autoresearchd stop --session {service.tag}` has ended what runs:  "
            f"systemctl --user start {service.name}",
            "to run also while you are not logged in:  loginctl enable-linger",
            f"keys of models and AUTORESEARCHD_STORE belong into {service.file.parents[2] / ENVIRONMENT} (KEY=value, "
            "chmod 600); a running ssh-agent is not known there",
        ]
    return [*lines, f"undo:  autoresearchd service uninstall --session {service.tag}"]


def uninstall(service: Service) -> list[str]:
    """Stop and forget the service; the session stays. UsageError: there is none."""
    if not service.file.exists():
        raise UsageError(f"there is no {service.file}", hint="`autoresearchd service install` writes it")
    if service.kind == "launchd":
        _told("launchctl", "bootout", f"gui/{os.getuid()}/{service.name}")
    else:
        _systemctl("disable", "--now", service.name)
    with disk_errors(f"removing {service.file}"):
        service.file.unlink()
    if service.kind == "systemd":
        _systemctl("daemon-reload")
    return [
        f"removed {service.file}; session {service.tag} stays: `autoresearchd resume {service.tag}` goes on with it"
    ]


def status(service: Service) -> dict[str, str]:
    """``file`` (empty: not installed), ``name``, and what the manager says of it, as far as there is one."""
    found = {"session": service.tag, "name": service.name, "file": str(service.file) if service.file.exists() else ""}
    if service.kind == "systemd":
        said = _told("systemctl", "--user", "show", "-p", "ActiveState,UnitFileState,StatusText", service.name)
        pairs = dict(line.partition("=")[::2] for line in said.splitlines())
        return found | {"enabled": pairs.get("UnitFileState", ""), "active": pairs.get("ActiveState", ""),
                        "says": pairs.get("StatusText", "")}  # fmt: skip
    return found | {"active": "active" if _told("launchctl", "list", service.name) else ""}


def _systemctl(*words: str) -> bool:
    return _call("systemctl", "--user", *words) is not None


def _told(*words: str) -> str:
    return _call(*words) or ""


def _call(*words: str) -> str | None:
    """What a program said; None: it is not there, failed, or did not answer."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=150, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
