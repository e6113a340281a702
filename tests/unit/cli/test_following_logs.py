"""Following a log that grows, is rotated and is not there yet."""

from __future__ import annotations

from pathlib import Path

from autoresearchd.cli.commands.logs_command import followed


def test_a_log_is_followed_over_its_rotation_without_losing_a_line(tmp_path: Path) -> None:
    log = tmp_path / "daemon.log"
    log.write_text("old\n")
    lines = followed(log, 0, log.stat().st_ino)
    assert next(lines) == "old"
    with log.open("a") as stream:
        stream.write("half")
        stream.flush()
        stream.write(" and half\nlast of the old\n")
    log.rename(tmp_path / "daemon.log.1")
    log.write_text("first of the new\n")
    assert [next(lines) for _ in range(3)] == ["half and half", "last of the old", "first of the new"]
    lines.close()
