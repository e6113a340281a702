"""Commands on a damaged database end with a clear error and its exit code, never with a traceback."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import loaded
from tests.integration.bench import Bench
from tests.unit.store.driver import execute

Damage = Callable[[Path], None]


def sqlite(statement: str) -> Damage:
    return lambda path: execute(path, statement)


DAMAGES: dict[str, tuple[Damage, int]] = {
    "empty": (lambda path: path.write_bytes(b"") and None, 1),
    "truncated": (lambda path: os.truncate(path, 6000), 1),
    "not a database": (lambda path: path.write_bytes(b"nonsense " * 5000) and None, 1),
    "schema": (
        lambda path: path.write_bytes(path.read_bytes()[:100] + bytes(20_000) + path.read_bytes()[20_100:]) and None,
        1,
    ),
    "a newer revision": (sqlite("UPDATE alembic_version SET version_num = '9999'"), 2),
    "a value": (sqlite("UPDATE session SET started_at = 'yesterday'"), 1),
    "metrics": (sqlite("UPDATE experiment SET metrics = '{nonsense'"), 1),
}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, bytes]:
    bench = Bench(tmp_path_factory.mktemp("session"))
    bench.run(1)
    bench.close()
    return bench, (bench.state / "state.db").read_bytes()


def place(bench: Bench, sound: bytes) -> Path:
    path = bench.state / "state.db"
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.write_bytes(sound)
    return path


def cli(bench: Bench, *arguments: str) -> subprocess.CompletedProcess[str]:
    return loaded().run(arguments, bench.root, os.environ, timeout=60)


@pytest.mark.parametrize("damage", DAMAGES)
def test_commands_say_what_is_wrong(session: tuple[Bench, bytes], damage: str) -> None:
    bench, sound = session
    path = place(bench, sound)
    change, code = DAMAGES[damage]
    change(path)
    before = path.read_bytes()
    commands = [("experiments",), ("show", "0")]
    if damage != "metrics":
        commands += [("status",)] if damage == "a value" else [("status",), ("resume", "t", "--foreground", "--quiet")]
    for command in commands:
        done = cli(bench, *command)
        assert done.returncode == code, (command, done.stderr)
        assert "Traceback" not in done.stderr
        assert "state.db" in done.stderr, command
        assert ("pip install" if code == 2 else "doctor --repair") in done.stderr, command
    assert path.read_bytes() == before, "reading changes nothing, and a resume that is refused"
    assert "Traceback" not in cli(bench, "logs").stderr


def test_doctor_repairs_by_command(session: tuple[Bench, bytes]) -> None:
    bench, _ = session
    (bench.state / "state.db").write_bytes(b"nonsense " * 5000)
    done = cli(bench, "doctor", "--repair", "--session", "t")
    assert done.returncode == 0, done.stderr
    assert "damaged" in done.stdout
    assert cli(bench, "experiments").returncode == 0
