"""A session as a service: it comes back after a reboot, says how it is, and is killed only where it hangs."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autoresearchd.app.service import Service
from autoresearchd.cli.commands.doctor_command import _apple_gpu
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.ports import Event, EventKind
from autoresearchd.loop.context import StopSwitch
from autoresearchd.loop.daemon import signals
from autoresearchd.loop.upkeep.service_manager import ServiceStatus, notify

ENVIRONMENT = {"PATH": "/opt/my tools/50%:/bin", "LANG": "C.UTF-8", "OPENAI_API_KEY": "sk-not-in-a-file", "HOME": "/x"}


def made(folder: Path, name: str = 'a $HOME 100% "o\'clock"') -> Service:
    root = folder / name
    root.mkdir()
    return Service(root, "nov21", folder / "autoresearchd-nov21-0a1b2c3d.service")


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None and not os.environ.get("AUTORESEARCHD_TESTS_NEED_SYSTEMD"),
    reason="systemd-analyze is not installed",
)
def test_systemd_finds_nothing_wrong_with_the_unit_whatever_the_folder_is_called(tmp_path: Path) -> None:
    service = made(tmp_path)
    service.file.write_bytes(service.text(ENVIRONMENT))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(service.file)],
        capture_output=True, text=True, check=False, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if service.file.name in line]
    assert not said and done.returncode == 0, done.stderr


def test_the_unit_says_what_it_is_to_say_and_holds_no_key(tmp_path: Path) -> None:
    text = made(tmp_path).text(ENVIRONMENT).decode()
    assert 'Environment="PATH=/opt/my tools/50%%:/bin"' in text
    assert '100%% "o\'clock"' in text and "sk-not" not in text
    assert f'ExecStart="{sys.executable}" "-P" "-m" "autoresearchd" "resume" "nov21" "--foreground" "--quiet"' in text
    assert "ExecStop=-/bin/sh -c 'kill -INT $$MAINPID'" in text, "by name another machine's daemon may be meant"
    for line in ("Type=notify", "WatchdogSec=5min", "Restart=on-failure", "RestartPreventExitStatus=2 3 4 5 75"):
        assert line in text.splitlines()
    with pytest.raises(UsageError):
        made(tmp_path, "two\nlines").text(ENVIRONMENT)


def test_settings_that_are_named_from_here_are_found_from_the_units_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = made(tmp_path).text({**ENVIRONMENT, "AUTORESEARCHD_CONFIG": "my.yaml"}).decode()
    assert f'Environment="AUTORESEARCHD_CONFIG={tmp_path}/my.yaml"' in text


def test_signals_stop_but_for_one_that_nohup_has_taken_away() -> None:
    switch, before = StopSwitch(), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals(switch):
            os.kill(os.getpid(), signal.SIGHUP)
            assert not switch.is_set()
            os.kill(os.getpid(), signal.SIGINT)
            assert switch.wait(60) and switch.reason == "signal SIGINT" and not switch.now.is_set()
            os.kill(os.getpid(), signal.SIGTERM)
            assert switch.now.wait(60)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_manager_is_told_and_one_that_is_away_or_full_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "s"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "s"))
        notify(READY="1", STATUS="a\nWATCHDOG=1 of a model")
        assert manager.recv(1000) == b"READY=1\nSTATUS=a WATCHDOG=1 of a model", "one line, whatever it says"
        ServiceStatus().emit(Event(EventKind.DECIDED, datetime.now(UTC), "keep: better", 7))
        assert manager.recv(1000) == b"STATUS=#7 keep: better"
        ServiceStatus().emit(Event(EventKind.HOUSEKEEPING, datetime.now(UTC), "packed git"))
    for address in ("", str(tmp_path / "s"), str(tmp_path / "gone"), "relative"):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        notify(READY="1")


@pytest.mark.parametrize(
    ("system", "machine", "version", "found"),
    [("Darwin", "arm64", "14.5", True), ("Darwin", "arm64", "12.1", False), ("Darwin", "x86_64", "14.5", False),
     ("Linux", "arm64", "", False)],
)  # fmt: skip
def test_the_gpu_of_a_mac_is_found(system: str, machine: str, version: str, found: bool) -> None:
    assert ("MPS" in _apple_gpu(system, machine, version)) is found
