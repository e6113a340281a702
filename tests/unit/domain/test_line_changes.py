"""A diff is one that git takes, and no text makes finding it long."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.domain.line_changes import changed_lines, unified

LINES = st.lists(st.sampled_from(["", "a", "b", "    c", "d\x0ce", "f\u2028g", "x = 1"]), min_size=1, max_size=30)
TEXTS = st.builds(
    lambda lines, end, last: end.join(lines) + last, LINES, st.sampled_from(["\n", "\r\n"]), LINES.map("".join)
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("applied")
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    return folder


@settings(max_examples=60, deadline=None)
@given(before=TEXTS.filter(bool), after=TEXTS.filter(bool))
def test_git_makes_of_the_one_text_the_other(root: Path, before: str, after: str) -> None:
    """Also where lines end as on Windows, and where the last one does not end: it is how people take an edit over."""
    (root / "t.py").write_bytes(before.encode())
    diff = "".join(f"{line}\n" for line in unified("t.py", before, after))
    assert (diff == "") == (before == after)
    if diff:
        done = subprocess.run(["git", "apply", "-"], input=diff.encode(), cwd=root, capture_output=True)
        assert done.returncode == 0, (diff, done.stderr)
    assert (root / "t.py").read_bytes() == after.encode()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["x"] * 200_000, [*["x"] * 100_000, "y", *["x"] * 99_000]),
        ([w for i in range(9000) for w in ("", f"a{i}")], [w for i in range(9000) for w in ("", f"b{i}")]),
        ([str(i % 150) for i in range(20_000)], [str(i * 7 % 150) for i in range(20_000)]),
        ([w for i in range(440) for w in ("", f"a{i}")], [w for i in range(440) for w in ("", f"b{i}")]),
    ],
)
def test_lines_that_repeat_themselves_stop_no_daemon(old: list[str], new: list[str]) -> None:
    began = time.process_time()
    made = [*old]
    for start, end, first, last in reversed(changed_lines(old, new)):
        made[start:end] = new[first:last]
    assert made == new
    assert time.process_time() - began < 30, "it took hours"
