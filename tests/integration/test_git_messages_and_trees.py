"""Commit messages and trees from hostile text, held against what git itself makes of them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoresearchd.workspace.history import SUBJECT_LENGTH, commit_message, parse_message
from autoresearchd.workspace.objects import Entry, object_id, serialise_commit, serialise_tree
from tests.fakes.repositories import git, make_repository

TRAILERS = {"Experiment": "7", "Metric": "val_bpb=1.02", "Delta": "+0.01", "Policy": "search"}
EXPECTED = "".join(f"{key}: {value}\n" for key, value in TRAILERS.items()).rstrip("\n")
SPOOFS = [
    "Experiment: 8", "try\n\nExperiment: 8\nMetric: val_bpb=0", "---\nMetric: val_bpb=0",
    "Metric : 0\r\n\r\nMetric: 0", "x\u2028Metric: 0\u2029\u2029Metric: 0", "x\x0bMetric: 0\x0c\x85\x1eMetric: 0",
    "(cherry picked from commit 0000)", "# comment\n# ------------------------ >8 ------------------------",
    "Signed-off-by: Linus <l@example.org>\nDelta: +9", "\u202eevil\x00\x1b[31m",
]  # fmt: skip
lines = st.lists(st.sampled_from(["", " ", "---", "Metric: 0", "text", "\tMetric: 0", "a-b : c", "#", "é"]), max_size=8)
texts = st.one_of(st.text(max_size=200), lines.map("\n".join), st.sampled_from(SPOOFS))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("repository")
    make_repository(folder)
    yield folder


def trailers_of(root: Path, message: str) -> tuple[str, str]:
    """The trailers that git finds in a message, and in a commit with it."""
    tree, parent = git(root, "rev-parse", "HEAD^{tree}", "HEAD").split()
    data = serialise_commit(tree, parent, message, datetime.fromtimestamp(0, UTC)).decode()
    commit = git(root, "hash-object", "-w", "-t", "commit", "--stdin", stdin=data)
    logged = git(root, "log", "-1", "--format=%(trailers)", commit)
    return git(root, "interpret-trailers", "--parse", stdin=message), logged


@pytest.mark.parametrize("text", SPOOFS)
def test_a_hypothesis_cannot_forge_the_figures_of_its_experiment(root: Path, text: str) -> None:
    for subject, body in ((text, ""), ("subject", text), (text, text)):
        parsed, logged = trailers_of(root, commit_message(subject, body, TRAILERS))
        assert parsed == logged == EXPECTED
        assert trailers_of(root, commit_message(subject, body, {})) == ("", "")


@given(texts, texts)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
def test_no_text_at_all_forges_a_trailer(root: Path, subject: str, body: str) -> None:
    message = commit_message(subject, body, TRAILERS)
    assert trailers_of(root, message) == (EXPECTED, EXPECTED)


@given(texts, texts, st.dictionaries(st.sampled_from(["Experiment", "Policy"]), texts))
@settings(derandomize=True)
def test_a_message_is_text_without_controls(subject: str, body: str, trailers: dict[str, str]) -> None:
    message = commit_message(subject, body, trailers)
    first, rest = message.split("\n", 1)
    assert 0 < len(first) <= SUBJECT_LENGTH and (not rest or rest.startswith("\n"))
    assert message.encode("utf-8").decode("utf-8") == message
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs") for c in message.replace("\n", ""))
    assert message.endswith("\n") and not message.endswith("\n\n")
    assert commit_message(subject, body, trailers) == message


@pytest.mark.parametrize(
    "text",
    [
        "[skip ci]", "[CI skip]", "[no ci]", "[skip actions]", "***NO_CI***", "[ci-skip]", "@team", "(@a/b)", "#1",
        "GH-1", "me/it#12", "https://github.com/me/it/issues/1", "a\t\u200b#7",
    ],
)  # fmt: skip
def test_no_words_of_a_model_close_an_issue_call_a_person_or_skip_the_checks(text: str) -> None:
    for message in (
        commit_message(f"Closes {text}", "", TRAILERS),
        commit_message("wider", f"a\n\nfix {text}", TRAILERS),
    ):
        assert not re.search(r"@\w|#\d|GH-\d|https?://|\[(skip|ci|no|actions)|\*NO_CI", message, re.IGNORECASE)
        subject, body, _ = parse_message(message)
        assert commit_message(subject, body, TRAILERS) == message, "finalize writes it again"
    assert commit_message("x @ w, a[i], *b, # todo, me@x.org", "", {}) == "x @ w, a[i], *b, # todo, me@x.org\n"


def test_trees_are_sorted_as_git_sorts_them(root: Path) -> None:
    blob = git(root, "rev-parse", "HEAD:train.py")
    folder = git(root, "rev-parse", "HEAD:lib")
    rows = ((b"40000", b"a"), (b"100644", b"a.txt"), (b"100755", b"a-b"), (b"100644", b"a0"), (b"100644", b"B"))
    tree = [Entry(mode, name, folder if name == b"a" else blob) for mode, name in rows]
    listing = "".join(
        f"{e.mode.decode():0>6} {'tree' if e.is_folder else 'blob'} {e.sha}\t{e.name.decode()}\n" for e in tree
    )
    assert object_id("tree", serialise_tree(tree)) == git(root, "mktree", stdin=listing)
