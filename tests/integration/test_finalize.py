"""The branches of ``finalize`` hold what was confirmed, whatever was changed, and whatever fails leaves nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count, pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoresearchd.domain.errors import AutoresearchdError, RepositoryError, UsageError
from autoresearchd.domain.experiment import Decision, Experiment
from autoresearchd.domain.labels import Label, Phase, Status
from autoresearchd.domain.redaction import Redactor
from autoresearchd.report.finalize import Evidence, Made, Misfit, base_of, commit_stack, improvements_of, stack
from autoresearchd.workspace.command import find_git
from autoresearchd.workspace.git import GitWorkspace
from tests.fakes.repositories import checkout_snapshot, git, make_repository
from tests.integration.bench import fake_git

Files = Mapping[str, tuple[str, str]]
"""Path → mode and text."""

LINES = [f"line_{n} = {n}\n" for n in range(8)]
BASE: Files = {
    "train.py": ("644", "".join(LINES)),
    "lib/model.py": ("644", "".join(LINES)),
    "lib/deep/ü x.py": ("755", "run()\n"),
    "prepare.py": ("644", "print('prepared')\n"),
}
AT = datetime(2026, 1, 2, tzinfo=UTC)


def changed(files: Files, op: tuple[str, int, int]) -> Files:
    """One change: kind, which file, and where or to what."""
    kind, which, value = op
    there = sorted(path for path in files if path != "prepare.py")
    if not there or kind == "add":
        return {**files, f"new/{value}.py": ("644", f"new = {which}\n")}
    path = there[which % len(there)]
    mode, text = files[path]
    rest = {name: found for name, found in files.items() if name != path}
    if kind == "delete":
        return rest
    if kind == "rename":
        return {**rest, f"moved/{value}.py": (mode, text)}
    if kind == "mode":
        return {**rest, path: ("755" if mode == "644" else "644", text)}
    lines = text.splitlines(keepends=True)
    at = value % (len(lines) + 1)
    lines[at : at + (kind == "edit")] = [f"edited = {which + value}\n"]
    return {**rest, path: (mode, "".join(lines))}


KINDS = st.sampled_from(["edit", "edit", "insert", "delete", "rename", "mode", "add"])
OPS = st.tuples(KINDS, st.integers(0, 9), st.integers(0, 9))
History = Sequence[Sequence[tuple[str, int, int]]]
HISTORIES = st.lists(st.lists(OPS, min_size=1, max_size=3), min_size=1, max_size=5)


def states(history: History) -> list[Files]:
    """The base, and the files after each improvement."""
    found = [BASE]
    for ops in history:
        files = found[-1]
        for op in ops:
            files = changed(files, op)
        found.append(files)
    return found


class Repository:
    """A user's, with sessions in it that are made of files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.first = make_repository(root, {path: text for path, (_, text) in BASE.items()})

    def commits(self, many: Sequence[Files], parent: str) -> list[str]:
        """A line of commits with these files."""
        lines = [b"feature done\n"]
        for n, files in enumerate(many, 1):
            body = f"improve {n}\n\nExperiment: {n}\n".encode()
            lines.append(f"commit refs/import\nmark :{n}\ncommitter u <u@localhost> {n} +0000\n".encode())
            lines.append(b"data %d\n%s\n" % (len(body), body))
            lines.append(f"from {parent}\n".encode() if n == 1 else b"")
            lines.append(b"deleteall\n")
            for path, (mode, text) in files.items():
                lines.append(f'M 100{mode} inline "{path}"\ndata {len(text)}\n{text}\n'.encode())
        marks = self.root.parent / "marks"
        git(
            self.root,
            "fast-import",
            "--quiet",
            "--force",
            f"--export-marks={marks}",
            stdin=b"".join([*lines, b"done\n"]).decode(),
        )
        git(self.root, "update-ref", "-d", "refs/import")
        found = dict(line.split() for line in marks.read_text().splitlines())
        return [found[f":{n}"] for n in range(1, len(many) + 1)]

    def files(self, revision: str) -> dict[str, str]:
        """Path → mode and object."""
        rows = git(self.root, "ls-tree", "-rz", revision).split("\0")
        return {path: facts for facts, _, path in (row.partition("\t") for row in rows) if path}

    def refs(self) -> str:
        return git(self.root, "for-each-ref")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("finalize") / "repository")


@pytest.fixture(scope="module")
def workspace(repository: Repository) -> Iterator[GitWorkspace]:
    with closing(GitWorkspace(repository.root, "night", task_folder=Path(), editable=[])) as made:
        yield made


def kept(commits: Sequence[str]) -> list[Experiment]:
    decision = Decision(Status.KEEP, Label.NONE, 1.0, delta=0.1, reason="Kept.")
    keep = Experiment(1, 0, 0, Phase.DECIDED, "", AT, decision=decision, confirmed=True)
    return [replace(keep, number=number, commit=commit) for number, commit in enumerate(commits, 1)]


def finalized(
    workspace: GitWorkspace, began: str, commits: Sequence[str], name: str, *, base: str = "", squash: bool = False
) -> list[Made]:
    """The branches of a session that began at a commit and confirmed some."""
    branches, evidence = workspace.branches(), Evidence("night", "task", "loss", workspace.history(), Redactor())
    found = improvements_of(branches, began, kept(commits), (), baseline="baseline")
    on = base_of(branches, base or began, began, found)
    steps = stack(branches, on.tree, [i for i in found if i.number not in on.within], "the base", "")
    if not steps:
        return []
    made = commit_stack(branches, on, steps, branches.tree(commits[-1]), evidence, name, squash=squash)
    branches.create({one.name: one.commit for one in made})
    return made


def of_the_user(repository: Repository) -> dict[str, str]:
    """All that is the user's, without the branches that were asked for."""
    found = {name: what for name, what in checkout_snapshot(repository.root).items() if "/final" not in name}
    return {**found, "refs": "\n".join(line for line in found["refs"].splitlines() if "/final" not in line)}


@contextmanager
def session(repository: Repository, history: History) -> Iterator[tuple[list[Files], str, list[str]]]:
    """Files of the base and with each improvement, the commit that it began at, and those of the improvements.

    Afterwards the branches are gone, and all else is as it was.
    """
    files = states(history)
    began, *commits = repository.commits(files, repository.first)
    before = of_the_user(repository)
    try:
        yield files, began, commits
    finally:
        names = git(repository.root, "for-each-ref", "--format=delete %(refname)", "refs/heads/final*")
        git(repository.root, "update-ref", "--stdin", stdin=names + "\n" if names else "")
    assert of_the_user(repository) == before


COMMON = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@COMMON
@given(history=HISTORIES, squash=st.booleans())
def test_the_branches_add_up_to_what_was_confirmed(
    history: History, squash: bool, repository: Repository, workspace: GitWorkspace
) -> None:
    with session(repository, history) as (files, began, commits):
        made = finalized(workspace, began, commits, "final", squash=squash)
        stepped = [n for n in range(1, len(files)) if files[n] != files[n - 1]]
        assert len(made) == (len(stepped) + 1 if len(stepped) > 1 and not squash else bool(stepped))
        for one in made:
            assert git(repository.root, "rev-parse", f"refs/heads/{one.name}") == one.commit
        tree, parent = workspace.branches().tree, began
        for one in made[: 1 if len(made) == 1 else -1]:
            assert workspace.parent(one.commit) == parent, "one on the other"
            assert tree(one.commit) == tree(commits[one.experiments[-1] - 1])
            parent = one.commit
        if made:
            assert (made[-1].name, made[-1].experiments) == ("final", stepped)
            assert tree(made[-1].commit) == tree(commits[-1])


@COMMON
@given(history=HISTORIES, others=st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_another_base_keeps_what_it_has_of_its_own(
    history: History, others: Sequence[int], repository: Repository, workspace: GitWorkspace
) -> None:
    """Also that an improvement is there already; a conflict is said, and then there is no branch."""
    with session(repository, history) as (files, began, commits):
        own = {"prepare.py": ("755", "print('by the user')\n"), "user.py": ("644", "user = 1\n")}
        first = others[0] % len(files)
        [base] = repository.commits([{**files[first], **own}], [began, *commits][first])
        made = finalized(workspace, began, commits, "final", base=base)
        [wanted] = repository.commits([{**files[-1], **own}], base)
        if not made:
            assert files[first] == files[-1]
        else:
            assert repository.files(made[-1].commit) == repository.files(wanted)
            assert all(number > first for number in made[-1].experiments)


@COMMON
@given(history=HISTORIES, out=st.integers(0, 4))
def test_what_one_improvement_alone_changed_goes_when_it_is_left_out(
    history: History, out: int, repository: Repository, workspace: GitWorkspace
) -> None:
    with session(repository, history) as (files, began, commits):
        out %= len(commits)
        touched = [{path for path in {**a, **b} if a.get(path) != b.get(path)} for a, b in pairwise(files)]
        others = set().union(*(paths for n, paths in enumerate(touched) if n != out))
        branches = workspace.branches()
        found = improvements_of(branches, began, kept(commits), (), baseline="baseline")
        rest = [one for n, one in enumerate(found) if n != out]
        try:
            steps = stack(branches, branches.tree(began), rest, "the rest", "")
        except Misfit as error:
            assert error.path in others & touched[out] and error.number in {one.number for one in rest[out:]}
            return
        tree = steps[-1].tree if steps else branches.tree(began)
        left, first, last = map(repository.files, (tree, began, commits[-1]))
        for path in touched[out] - others:
            assert left.get(path) == first.get(path)
        for path in {**first, **last}.keys() - touched[out]:
            assert left.get(path) == last.get(path)


# ---------------------------------------------------------------------- what fails
TWO: History = [[("edit", 0, 2)], [("rename", 1, 3), ("mode", 2, 0)]]


def test_a_failure_at_any_step_leaves_nothing(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of git fails in its turn, until all of them have."""
    calls, fails = tmp_path / "calls", tmp_path / "fails"
    one_more = f'echo "$1" >> {calls}; [ "$(wc -l < {calls})" != "$(cat {fails})" ]'
    fake_git(tmp_path / "bin", f'{one_more} || {{ echo no >&2; exit 128; }}\nexec {find_git()} "$@"\n', monkeypatch)
    with session(repository, TWO) as (_, began, commits):
        for n in count(1):
            calls.write_text("")
            fails.write_text(f"{n}\n")
            made: list[Made] = []
            with suppress(AutoresearchdError):
                workspace = GitWorkspace(repository.root, "night", task_folder=Path(), editable=[])
                with closing(workspace):
                    made = finalized(workspace, began, commits, "final")
            done = calls.read_text().split()
            fails.write_text("0\n")
            names = git(repository.root, "for-each-ref", "--format=%(refname:short)", "refs/heads/final*").split()
            assert names == (["final", "final-1", "final-2"] if made else []), done
            if len(done) < n:
                break
            for name in names:  # some of what git says is only looked at where it says anything
                git(repository.root, "update-ref", "-d", f"refs/heads/{name}")
        assert made and done[-1] == "update-ref" and n > 8


def test_a_branch_that_comes_meanwhile_is_kept_and_no_other_is_made(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = find_git()
    with session(repository, TWO) as (_, began, commits):
        meanwhile = f'[ "$1" = update-ref ] && {real} update-ref refs/heads/final-2 {repository.first}'
        fake_git(tmp_path / "bin", f'{meanwhile}\nexec {real} "$@"\n', monkeypatch)
        workspace = GitWorkspace(repository.root, "night", task_folder=Path(), editable=[])
        with closing(workspace), pytest.raises(RepositoryError):
            finalized(workspace, began, commits, "final")
        [line] = [line for line in repository.refs().splitlines() if "/final" in line]
        assert line.split() == [repository.first, "commit", "refs/heads/final-2"]


def test_an_edit_of_the_same_place_on_the_base_is_told_with_the_file(
    repository: Repository, workspace: GitWorkspace
) -> None:
    with session(repository, [[("edit", 0, 2)], [("edit", 2, 5)]]) as (files, began, commits):
        mode, text = files[0]["train.py"]
        [base] = repository.commits([{**files[0], "train.py": (mode, text.replace("line_5 = 5", "mine = 1"))}], began)
        with pytest.raises(Misfit, match=r"experiment 2 does not fit the base: .* the same place of train\.py"):
            finalized(workspace, began, commits, "final", base=base)
        assert "/final" not in repository.refs()


@pytest.mark.parametrize(("history", "gone", "words"), [
    ([[("edit", 2, 2)]], True, "train.py, which it changes, was deleted or renamed there"),
    ([[("rename", 2, 3)]], False, "it deletes or renames train.py, which was changed there"),
])  # fmt: skip
def test_a_file_that_is_gone_on_one_side_is_told_as_what_it_is(
    repository: Repository, workspace: GitWorkspace, history: History, gone: bool, words: str
) -> None:
    with session(repository, history) as (files, began, commits):
        mode, text = files[0]["train.py"]
        left = {name: file for name, file in files[0].items() if name != "train.py"}
        [base] = repository.commits([left if gone else {**left, "train.py": (mode, text + "mine = 1\n")}], began)
        with pytest.raises(Misfit, match=f"experiment 1 does not fit the base: {re.escape(words)}"):
            finalized(workspace, began, commits, "final", base=base)


def test_what_the_base_has_of_the_next_line_is_left_out(repository: Repository, workspace: GitWorkspace) -> None:
    with session(repository, [[("edit", 1, 4)], [("edit", 1, 5)]]) as (files, began, commits):
        [base] = repository.commits([files[1]], began)  # as a cherry-pick of the first
        made = finalized(workspace, began, commits, "final", base=base)
        assert [one.experiments for one in made] == [[2]]
        assert workspace.branches().tree(made[-1].commit) == workspace.branches().tree(commits[-1])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *((name, "cannot be the name") for name in ("-x", "a..b", "", "a b", "x.lock", "/x", "HEAD", "a\0b", "@{-1}")),
        ("autoresearch/t", "those of sessions"),
        ("main", "is there already"),
        ("main/x", "leaves no room"),
        ("taken", "leaves no room"),
    ],
)  # fmt: skip
def test_a_name_that_cannot_be_taken_is_refused(
    name: str, why: str, repository: Repository, workspace: GitWorkspace
) -> None:
    git(repository.root, "update-ref", "refs/heads/taken/by", repository.first)
    before = repository.refs()
    with pytest.raises(UsageError, match=why):
        workspace.branches().create({"final-1": repository.first, name: repository.first})
    assert repository.refs() == before


@pytest.mark.parametrize("revision", ["nowhere", "--all", "HEAD:train.py", "", "a\0b", "HEAD --", "f" * 40])
def test_a_base_that_is_no_commit_is_refused(revision: str, workspace: GitWorkspace) -> None:
    with pytest.raises(UsageError, match="names no commit"):
        workspace.branches().resolve(revision)


def test_a_branch_that_a_user_is_about_to_begin_is_left_to_the_user(
    repository: Repository, workspace: GitWorkspace
) -> None:
    git(repository.root, "symbolic-ref", "HEAD", "refs/heads/soon")
    try:
        with pytest.raises(RepositoryError, match="soon is checked out"):
            workspace.branches().create({"soon": repository.first})
    finally:
        git(repository.root, "symbolic-ref", "HEAD", "refs/heads/main")
