"""What the daemon says, and the logs that runs leave, hold no secret; no daemon's lines are lost."""

from __future__ import annotations

from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autoresearchd.domain.ports import Event, EventKind
from autoresearchd.domain.redaction import Redactor
from autoresearchd.loop import daemon
from autoresearchd.loop.daemon import Fanout, FileSink
from autoresearchd.loop.measuring.run_files import PIECE_CHARACTERS, clean_logs
from tests.fakes.bench import Collector
from tests.unit.domain.canaries import TOKENS, letters

SECRET = TOKENS["huggingface"]
KNOWN = letters(20)


def test_messages_data_and_tracebacks_are_redacted_before_any_sink_sees_them(tmp_path: Path) -> None:
    collector, file = Collector(), FileSink(tmp_path / "daemon.log", "t")
    sink = Fanout([collector, file], Redactor([KNOWN]))
    trace = f'File "x.py"\nValueError: {SECRET} {KNOWN}'
    sink.emit(Event(EventKind.FAULT, datetime.now(UTC), f"failed: {KNOWN}", 3, {"traceback": trace, "n": 1}))
    file.close()
    [seen] = collector.events
    assert (seen.message, seen.data["n"]) == ("failed: «redacted:environment»", 1)
    for text in (str(seen), (tmp_path / "daemon.log").read_text()):
        assert SECRET not in text and KNOWN not in text
        assert "«redacted:huggingface» «redacted:environment»" in text


def test_a_log_loses_its_secrets_and_nothing_else(tmp_path: Path) -> None:
    before = b"METRIC x=1.5\r\n\xff\xfe step 1\rstep 2\n" * 10
    log = tmp_path / "training.log"
    log.write_bytes(before + SECRET.encode() + b"\n" + before)
    older = tmp_path / "training.log.1"
    older.write_bytes(b"x " * PIECE_CHARACTERS + KNOWN.encode())
    clean_logs(tmp_path, Redactor([KNOWN]))
    after = f"«redacted:environment»{before.decode(errors='surrogateescape')}«redacted:huggingface»\n"
    after = b"x " * PIECE_CHARACTERS + after.encode(errors="surrogateescape") + before
    assert older.read_bytes() + log.read_bytes() == after
    assert sorted(p.name for p in tmp_path.iterdir()) == ["training.log", "training.log.1"]


def test_a_log_without_secrets_is_not_touched_and_a_link_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text(SECRET)
    run = tmp_path / "run"
    run.mkdir()
    (run / "evaluation.log").symlink_to(outside)
    (run / "training.log").write_text("score: 1\n")
    inode = (run / "training.log").stat().st_ino
    clean_logs(run, Redactor())
    assert (run / "training.log").stat().st_ino == inode
    assert outside.read_text() == SECRET
    clean_logs(tmp_path / "missing", Redactor())


@pytest.mark.parametrize("at", [PIECE_CHARACTERS - 20, PIECE_CHARACTERS - 1, 2 * PIECE_CHARACTERS - 5])
def test_a_secret_over_the_border_of_two_pieces_is_hidden(tmp_path: Path, at: int) -> None:
    (tmp_path / "training.log").write_text("a\n" * (at // 2) + SECRET + "\nscore: 1\n")
    clean_logs(tmp_path, Redactor())
    text = (tmp_path / "training.log").read_text()
    assert SECRET[8:] not in text
    assert text.endswith("«redacted:huggingface»\nscore: 1\n")


@pytest.mark.parametrize("secret", [SECRET, KNOWN])
def test_a_secret_in_the_middle_of_which_the_log_was_rotated_is_hidden(tmp_path: Path, secret: str) -> None:
    log, older = tmp_path / "training.log", tmp_path / "training.log.1"
    older.write_text(f"step 1\nkey {secret[:9]}")
    log.write_text(f"{secret[9:]} end\nscore: 1\n")
    clean_logs(tmp_path, Redactor([KNOWN]))
    whole = older.read_text() + log.read_text()
    assert secret[:9] not in whole and secret[9:] not in whole
    assert whole.startswith("step 1\nkey «redacted:") and whole.endswith("» end\nscore: 1\n")


def test_daemons_of_one_repository_write_on_in_the_log_that_one_of_them_has_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each rotates away what the other writes, and `logs` shows one of them alone."""
    monkeypatch.setattr(daemon, "LOG_BYTES", 2_000)
    log, tags = tmp_path / "daemon.log", ("a", "b")
    with ExitStack() as stack:
        sinks = [stack.enter_context(closing(FileSink(log, tag))) for tag in tags]
        for number in range(100):
            for sink in sinks:
                sink.emit(Event(EventKind.WARNING, datetime.now(UTC), f"line {number}"))
    kept = [path.read_text() for path in sorted(tmp_path.iterdir(), reverse=True)]
    assert len(kept) == 3 and all(len(text) > 1_900 for text in kept[:2]), "none was begun anew before it was full"
    last = [line.split()[2] for line in "".join(kept).splitlines()]
    assert last[-100:] == [*tags] * 50, "in order, and none is missing"
