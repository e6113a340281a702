"""autoresearch.md on disk: what the user wrote there is never lost, whatever is wrong with the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autoresearchd.loop.proposing.session_memo import Memo
from autoresearchd.policy.prompt.digest import learnings
from tests.fakes.policies import make_task


def keep_up(memo: Memo) -> None:
    memo.keep_up(make_task(), learnings((), ()))


def test_a_memo_is_begun_and_what_the_user_adds_stays(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "s" / "autoresearch.md")
    keep_up(memo)
    memo.path.write_text(memo.path.read_text() + "\n## Ideas\n\nTry less.\n")
    keep_up(memo)
    assert "Try less." in memo.read()
    assert memo.failed == ""


def test_a_file_in_another_encoding_is_left_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "autoresearch.md"
    path.write_bytes("Idee: größer".encode("latin-1"))
    memo = Memo(path)
    keep_up(memo)
    assert path.read_bytes() == "Idee: größer".encode("latin-1")
    assert "UTF-8" in memo.failed
    assert "Idee" in memo.read(), "a prompt shows what can be read of it"


@pytest.mark.parametrize("where", ["file", "folder"])
def test_a_link_is_neither_read_for_a_prompt_nor_written_through(where: str, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "autoresearch.md").write_text("TOP PRIVATE")
    folder = tmp_path / "sessions" / "t"
    if where == "folder":
        folder.parent.mkdir()
        folder.symlink_to(private)
    else:
        folder.mkdir(parents=True)
        (folder / "autoresearch.md").symlink_to(private / "autoresearch.md")
        (folder / ".autoresearch.md.new").symlink_to(private / "autoresearch.md")
    memo = Memo(folder / "autoresearch.md")
    assert memo.read() == ""
    keep_up(memo)
    assert "link" in memo.failed
    assert (private / "autoresearch.md").read_text() == "TOP PRIVATE"


def test_a_fifo_in_its_place_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "autoresearch.md")
    memo = Memo(tmp_path / "autoresearch.md")
    assert memo.read() == ""
    keep_up(memo)
    assert "plain file" in memo.failed
