"""A real session that is fed cheats, with secrets where they look for them, and what was left afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoresearchd.resources import bundled
from tests.integrity.cheat import Cheat

HERE = Path(__file__).parent
TRACES = {
    "private": b"PRIVATE-DATA-CANARY",
    "home": b"HOME-SECRET-CANARY",
    "environment": b"ENVIRONMENT-SECRET-CANARY",
    "daemon": b"DAEMON-FILE-CANARY",
}
_PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/etc", "/usr/lib/python3/dist-packages")


@dataclass
class Outcome:
    """What came of one cheat. traces: where something of it was found that should not be."""

    cheat: Cheat
    label: str
    status: str
    confirmed: bool | None
    value: float | None
    detail: str
    tier: str
    traces: set[str] = field(default_factory=set)


class Listener:
    """Hears whoever talks to this machine: TCP, UDP, a unix socket in the home, an abstract one for each mark."""

    def __init__(self, home: Path, marks: Sequence[str]) -> None:
        self.heard: list[bytes] = []
        self._sockets = [self._open(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))]
        self.port: int = self._sockets[0].getsockname()[1]
        self._open(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", self.port))
        self._open(socket.AF_UNIX, socket.SOCK_STREAM, str(home / "socket"))
        for mark in marks:
            self._open(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{mark}")

    def _open(self, family: int, kind: int, address: Any) -> socket.socket:
        opened = socket.socket(family, kind)
        opened.bind(address)
        if family == socket.AF_UNIX and address[0] != "\0":
            Path(address).chmod(0o777)
        if kind == socket.SOCK_STREAM:
            opened.listen(16)
        threading.Thread(target=self._listen, args=(opened, kind), daemon=True).start()
        self._sockets = [*getattr(self, "_sockets", []), opened]
        return opened

    def _listen(self, opened: socket.socket, kind: int) -> None:
        while True:
            try:
                if kind == socket.SOCK_DGRAM:
                    self.heard.append(opened.recv(4096))
                    continue
                talk, _ = opened.accept()
                with talk:
                    talk.settimeout(5)
                    self.heard.append(talk.recv(4096))
            except OSError:
                if opened.fileno() < 0:
                    return

    def close(self) -> None:
        for opened in self._sockets:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()


def _packages() -> list[str]:
    return [p for p in sys.path if p.endswith("site-packages")] + [f"{p}/numpy" for p in sys.path]


class CheatSession:
    """Runs cheats one after another on a task. folder: an empty one; uid: the user to run as, None for this one."""

    def __init__(
        self, folder: Path, cheats: Sequence[Cheat], *, tier: str, uid: int | None = None, python: str | None = None
    ) -> None:
        self.folder, self.cheats, self.tier, self.uid = folder, list(cheats), tier, uid
        self.python = python or sys.executable
        self.repo, self.home = folder / "repo", folder / "home"
        self.word = f"cheat-{secrets.token_hex(4)}"
        self.results: list[dict[str, Any]] = []

    def mark(self, number: int) -> str:
        return f"{self.word}-{number:03}-stays"

    # ------------------------------------------------------------------ before
    def build(self, task: Path = HERE / "tiny", changes: Sequence[tuple[str, str]] = ()) -> str:
        """Make repository, home and secrets; the text of the honest program. changes: to task.yaml."""
        for name in ("home/.ssh", "seen", "cheats"):
            (self.folder / name).mkdir(parents=True)
        shutil.copytree(task, self.repo, ignore=shutil.ignore_patterns("__pycache__"))
        template = bundled("templates") / "autoresearch"
        for name in ("evaluate.py", "exchange.py", "probes.py"):
            shutil.copy(template / name, self.repo)
        if task == HERE / "tiny":
            for name in ("serving.py", "system_calls.py"):
                shutil.copy(template / name, self.repo)
        text = (self.repo / "task.yaml").read_text()
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        (self.repo / "task.yaml").write_text(text)
        (self.home / ".ssh" / "id_secret").write_bytes(TRACES["home"])
        self.git("init", "-q", "-b", "main")
        self.git("add", "-A")
        self.git("commit", "-qm", "start")
        (self.repo / ".git/autoresearchd").mkdir()
        (self.repo / ".git/autoresearchd/daemon.txt").write_bytes(TRACES["daemon"])
        return (self.repo / "train.py").read_text()

    def git(self, *arguments: str) -> bytes:
        identity = ["-c", "user.name=User", "-c", "user.email=user@localhost", "-c", "safe.directory=*"]
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=self.repo, capture_output=True, check=True).stdout

    def environment(self) -> dict[str, str]:
        secret = TRACES["environment"].decode()
        keep = {k: os.environ[k] for k in ("PATH", "LANG", "PYTHONPATH") if k in os.environ}
        names = ("OPENAI_API_KEY", "GITHUB_TOKEN", "MY_OWN_SETTING")
        top = str(HERE.parents[1])
        return {
            **keep, "HOME": str(self.home), "GIT_CONFIG_NOSYSTEM": "1", "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join([top, *sys.path[-1:], keep.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            **{name: f"{secret}-{name}" for name in names},
        }  # fmt: skip

    # ------------------------------------------------------------------ the session
    def run(self, honest: str, timeout: float) -> list[Outcome]:
        listener = Listener(self.home, [self.mark(n + 1) for n in range(len(self.cheats))])
        try:
            self._write_cheats(honest, listener.port)
            before = self._repository()
            if self.uid is not None:
                subprocess.run(["chown", "-R", f"{self.uid}:{self.uid}", str(self.folder)], check=True)
            log = self.folder / "driver.log"
            with log.open("wb") as stream:
                subprocess.run(
                    [self.python, str(HERE / "driver.py"), str(self.folder), self.tier, str(len(self.cheats))],
                    env=self.environment(), stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                    timeout=timeout, check=False, cwd=self.folder,
                    **({"user": self.uid, "group": self.uid, "extra_groups": []} if self.uid is not None else {}),
                )  # fmt: skip
            path = self.folder / "results.json"
            told = json.loads(path.read_text()) if path.is_file() else {"error": "the driver died"}
            assert "results" in told, f"{told}\n{log.read_text('utf-8', 'replace')[-3000:]}"
            self.results = told["results"]
            return self._outcomes(before, listener)
        finally:
            listener.close()
            self._end_processes()

    def _write_cheats(self, honest: str, port: int) -> None:
        for number, cheat in enumerate(self.cheats, 1):
            known = ("@PORT@", str(port)), ("@HOME@", str(self.home)), ("@REPO@", str(self.repo))
            text, script = cheat.edit(honest), cheat.script
            for word, value in (*known, ("@MARK@", self.mark(number))):
                text, script = text.replace(word, value), script.replace(word, value)
            document = {"name": cheat.name, "text": text, "script": script}
            (self.folder / "cheats" / f"{number}.json").write_text(json.dumps(document))

    # ------------------------------------------------------------------ afterwards
    def _outcomes(self, before: dict[str, bytes], listener: Listener) -> list[Outcome]:
        by_number = {r["number"]: r for r in self.results}
        assert sorted(by_number) == list(range(len(self.cheats) + 1)), sorted(by_number)
        after = self._repository()
        left = {
            "processes": list(self._processes().values()),
            "files": [path.encode() for path in self._files()],
            "network": listener.heard,
            "repository": [content for name, content in after.items() if before.get(name) != content],
        }
        elsewhere = self._everything_else()
        outcomes = []
        for number, cheat in enumerate(self.cheats, 1):
            r = by_number[number]
            outcome = Outcome(
                cheat, r["label"], r["status"], r["confirmed"], r["value"], r["detail"] or r["reason"], r["tier"]
            )
            mark = self.mark(number).encode()
            shown = self._written(number) + elsewhere
            outcome.traces |= {name for name, canary in TRACES.items() if canary in shown}
            outcome.traces |= {name for name, found in left.items() if any(mark in each for each in found)}
            outcomes.append(outcome)
        return outcomes

    def _written(self, number: int) -> bytes:
        """All that a run left for people and policies: logs, outputs, its commit, what the next policy was shown."""
        parts = [p.read_bytes() for p in (self.repo / ".autoresearchd/runs/cheats" / str(number)).rglob("*")
                 if p.is_file() and not p.is_symlink()]  # fmt: skip
        parts += [p.read_bytes() for p in (self.folder / "seen").glob(f"{number + 1}.*")]
        with contextlib.suppress(subprocess.CalledProcessError):  # it was refused before there was a commit
            parts.append(self.git("show", f"refs/autoresearch/cheats/{number}"))
        return b"".join(parts)

    def _everything_else(self) -> bytes:
        """What belongs to no run alone: only looked at for canaries that no run showed."""
        places = [self.repo / ".autoresearchd/daemon.log", self.folder / "results.json"]
        return b"".join(p.read_bytes() for p in places if p.is_file())

    def _repository(self) -> dict[str, bytes]:
        """The user's own: files of the checkout, configuration, hooks, attributes."""
        top = [p for p in self.repo.rglob("*") if not {".git", ".autoresearchd"} & set(p.relative_to(self.repo).parts)]
        git = [self.repo / ".git" / name for name in ("config", "HEAD", "info/attributes")]
        every = [*top, *git, *(self.repo / ".git/hooks").glob("*")]
        return {str(p): p.read_bytes() + p.name.encode() for p in every if p.is_file()}

    def _files(self) -> list[str]:
        found = [str(p) for p in [*self.home.rglob("*"), *self.repo.rglob("*")] if self.word in p.name]
        for place in (*_PLACES, sys.prefix, *_packages()):
            if Path(place).is_dir():
                found += [str(p) for p in Path(place).glob(f"*{self.word}*")]
        for path in found:
            if not path.startswith(str(self.folder)):
                Path(path).unlink(missing_ok=True)
        return found

    def _processes(self) -> dict[int, bytes]:
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    words = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if self.word.encode() in words:
                    found[int(entry.name)] = words
        return found

    def _end_processes(self) -> None:
        for pid in self._processes():
            os.kill(pid, signal.SIGKILL)
