"""``show N``: whose program each run ran, what early abort saw, and no promise of what is not there."""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest

from autoresearchd.cli.commands.experiment_commands import _experiment_lines, look_lines
from autoresearchd.cli.terminal_text import Paint
from autoresearchd.domain.experiment import Decision, Measurement
from autoresearchd.domain.labels import Label, Outcome, Status
from autoresearchd.domain.proposal import Answer, Cost, Generation, Proposal
from autoresearchd.evaluator.re_added import KEY
from autoresearchd.loop.messages import unified_diff
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from tests.unit.cli.conftest import SHA, START, Command, add_confirmation, add_hybrid
from tests.unit.store.driver import Driver, asked_again, commit_of, execute, new_answer, new_proposal

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("repository")


@pytest.fixture
def compared(repository: Path) -> int:
    """Number of an experiment of an earlier version, beside which experiment 1 was run on the same seed."""
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        session = store.session("mar8")
        e = store.open_experiment(session.id, parent=SHA, segment=0, at=START)
        proposal = Proposal({"train.py": "x = 9\n"}, "it helps", "search", description="x 1 → 9")
        store.record_proposal(session.id, e.number, proposal, diff="--- a/train.py\n", code_hash="compared")
        store.record_commit(session.id, e.number, f"{e.number:040x}")
        for value, of in ((0.97, None), (0.98, 1)):
            run = store.open_run(session.id, e.number, 700, START)
            measured = Measurement(Label.NONE, value, {"val_bpb": value})
            store.close_run(run.id, measured, None, START + timedelta(minutes=5), last=of is not None)
    execute(layout.database_path(repository), "UPDATE run SET program = 1 WHERE id = ?", run.id)
    return e.number


def test_runs_of_another_program_are_told_from_those_of_the_experiment(compared: int, command: Command) -> None:
    lines = command("show", str(compared)).out.splitlines()
    head = next(i for i, line in enumerate(lines) if "seed" in line and "program" in line)
    assert [line.split()[:2] for line in lines[head + 1 : head + 3]] == [["700", "0.97000"], ["700", "0.98000"]]
    assert "its own" in lines[head + 1] and "#1" in lines[head + 2]


def test_the_diff_of_any_program_can_be_applied(
    repository: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line end of Windows, space of another kind, mark within a glyph or colour of a terminal's gets lost."""
    edited = "x = 9\r\ny = '\x1b[0m\x07\r\x7f\x85a\u00a0\u3000\f👩\u200d💻\ue0b0\ufeff'\r\n"
    diff = unified_diff({"train.py": "x = 1\r\ny = 2\r\n"}, {"train.py": edited})
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        session = store.session("mar8")
        e = store.open_experiment(session.id, parent=SHA, segment=0, at=START)
        proposal = Proposal({"train.py": edited}, "it helps", "search")
        store.record_proposal(session.id, e.number, proposal, diff=diff, code_hash="windows")
    assert diff.strip() in command("show", str(e.number), "--diff").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not {*"\x07\r\x7f\x85"} & {*command("show", str(e.number), "--diff").out}, "somebody reads it"


def test_a_keep_shows_the_way_of_its_test(repository: Path, command: Command) -> None:
    """Which program gave which value on which seed, what that came to, and what follows."""
    add_confirmation(repository, Outcome.CONFIRMED)
    lines = command("show", "1").out.splitlines()
    assert "  confirmed   yes, the branch has it: confirmation 0" in lines
    begin = next(i for i, line in enumerate(lines) if line.startswith("  confirmation 0: #1 against #0"))
    assert lines[begin].endswith("confirmed") and lines[begin + 1].startswith("  Experiment 1 is 0.0107 better")
    rows = [line.split() for line in lines[begin + 3 : begin + 7]]
    assert [(row[0], row[3], *row[4:]) for row in rows] == [
        ("7", "#1"), ("7", "#0", "+0.010800"), ("8", "#0"), ("8", "#1", "+0.010700"),
    ]  # fmt: skip
    assert "confirmation 0: #1 against #0" in command("show", "0").out
    assert "confirmation" not in command("show", "2").out, "a discard has no part in it"


def test_each_log_says_whose_it_is_and_a_reader_what_the_diff_is_against(
    repository: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_confirmation(repository, Outcome.CONFIRMED)
    for index in range(3):
        folder = layout.run_dir(repository, "mar8", 1, index)
        folder.mkdir(parents=True)
        (folder / "training.log").write_text("loss: 3.1\n")
    heads = [line for line in command("show", "1", "--log").out.splitlines() if line.startswith("==>")]
    whose = ("seed 100", "confirmation 0, #1, seed 7", "confirmation 0, #0, seed 7")
    assert [head.split(": ")[0] for head in heads] == [f"==> {words}" for words in whose]
    monkeypatch.setattr("autoresearchd.cli.terminal_text.is_terminal", lambda _: True)
    assert f"==> what it changed in its parent, {SHA[:12]} <==" in command("show", "1", "--diff").out


@pytest.mark.parametrize(("outcome", "words"), [(Outcome.FELL, "no, it fell back"), (None, "not yet: that it is")])
def test_a_keep_that_is_not_confirmed_says_so(
    repository: Path, command: Command, outcome: Outcome | None, words: str
) -> None:
    add_confirmation(repository, outcome)
    assert f"  confirmed   {words}" in command("show", "1").out


def test_a_run_that_was_ended_says_when_and_why() -> None:
    looks = [
        {"progress": 0.2, "abort": False},
        {"progress": 0.35, "abort": True, "sentence": "at 35%: it cannot drop."},
    ]
    seen = {"forecast": 2.1, "low": 2.0, "high": 2.2, "bar": 2.05}
    _, verdict, _, *rows = look_lines([look | seen for look in looks], Paint(enabled=False))
    assert verdict == "  early abort  ended at 35%: it cannot drop."
    assert rows[1].split() == ["35%", "2.100000", "2", "2.200000", "2.050000"]


HOSTILE = "\x1b]0;owned\x07 \x1b[2J\x9b31m\u202egnirts\r\n\x00 end"
ASKED, ANSWERED = 5, 6


@pytest.fixture
def answered(repository: Path) -> None:
    """Three more experiments: one repaired after two answers, one of a hostile model, one of a model that is free."""
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        lab = Driver(store, store.session("mar8").id)
        e = store.open_experiment(lab.id, parent=SHA, segment=0, at=START)
        assert e.number == ASKED
        first = new_answer(error="block 1: its SEARCH part is not in train.py\nsecond line " + "x" * 300, usd=0.0123)
        second = asked_again(first, {"role": "user", "content": "block 1 is not there"}, usd=0.02)
        repaired = new_answer(completion="import math", usd=0.01, attempt=1)
        for answer in (first, second):
            store.record_answer(lab.id, e.number, answer, START)
        e = lab.propose(e, replace(new_proposal(5), charged=True))
        e = store.record_commit(lab.id, e.number, commit_of(5))
        e = lab.run(e, Measurement(Label.ERROR, detail="NameError: math"))
        store.record_answer(lab.id, e.number, repaired, START)
        e = lab.propose(e, replace(new_proposal(5, attempt=1), charged=True))
        e = lab.run(store.record_commit(lab.id, e.number, commit_of(6)), Measurement(Label.NONE, 0.99))
        lab.decide(e, Decision(Status.DISCARD, Label.NO_GAIN, 0.99))
        e = store.open_experiment(lab.id, parent=SHA, segment=0, at=START)
        hostile = Generation(({"role": HOSTILE, "content": [HOSTILE]},), HOSTILE)
        store.record_answer(lab.id, e.number, new_answer(usd=0.5), START)
        store.record_answer(lab.id, e.number, Answer(HOSTILE, Cost(None), hostile, HOSTILE, HOSTILE, HOSTILE), START)
        e = store.open_experiment(lab.id, parent=SHA, segment=0, at=START)
        store.record_answer(lab.id, e.number, new_answer(usd=None), START)
        e = store.open_experiment(lab.id, parent=SHA, segment=0, at=START)
        store.record_answer(lab.id, e.number, new_answer(usd=0.0), START)


@pytest.mark.usefixtures("answered")
def test_show_lists_each_answer_with_what_it_gave_and_cost(command: Command) -> None:
    lines = command("show", str(ASKED)).out.splitlines()
    start = next(i for i, line in enumerate(lines) if "finish" in line.split() and "gave" in line)
    assert [line.split()[:7] for line in lines[start + 1 : start + 4]] == [
        ["1", "some/model", "1,000", "200", "$0.0123", "2.5s", "stop"],
        ["2", "some/model", "1,000", "200", "$0.0200", "2.5s", "stop"],
        ["3", "some/model", "1,000", "200", "$0.0100", "2.5s", "stop"],
    ]
    assert "block 1: its SEARCH part is not in train.py second line" in lines[start + 1]
    assert lines[start + 1].endswith("…")
    assert lines[start + 2].endswith("search_replace")
    assert lines[start + 3].endswith("search_replace (attempt 2)")
    assert any(line.split() == ["cost", "$0.0423"] for line in lines)


@pytest.mark.usefixtures("answered")
def test_answers_are_printed_in_full_and_alone_in_a_pipe(command: Command) -> None:
    out = command("show", str(ASKED), "--answers").out
    assert out.startswith("==> answer 1 of 3: some/model, block 1")
    assert out.count("You do research.") == 500, "once, and not with each answer"
    for words in ("--- user ---\nimprove this", "--- 2 messages as above ---", "--- answer ---\nimport math",
                  "--- not usable ---\nblock 1: its SEARCH part is not in train.py\nsecond line xxx"):  # fmt: skip
        assert words in out
    told = command("show", "1", "--answers")
    assert (told.code, told.out) == (0, "")
    assert "no model was asked" in told.err


@pytest.mark.parametrize("more", [[], ["--answers"], ["--json"], ["--json", "--answers"]], ids=" ".join)
@pytest.mark.usefixtures("answered")
def test_what_a_model_says_gives_the_terminal_no_orders(command: Command, more: list[str]) -> None:
    answer = command("show", str(ANSWERED), *more)
    assert answer.code == 0 and "gnirts" in answer.out
    assert [c for c in answer.out if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t"] == []


# ---------------------------------------------------------------------- what comes back
def test_what_an_edit_brings_back_is_told_once(command: Command) -> None:
    record = json.loads(command("show", "1", "--json").out)
    removed = [{"line": f"y = layer_{n}(x)\x1b[2J", "by": 3 + n % 2} for n in range(3)]
    record["re_added"] = {"added": 12, "lines": 3, "share": 0.25, "values": 1, "removed": removed}
    record["asi"] = {KEY: "3 of 12 new lines had been removed by experiments 3 and 4"}
    lines = _experiment_lines(record, Paint(StringIO()), "")
    (line,) = (line for line in lines if "re-added" in line or "re added" in line)
    assert line == (
        "  re-added    3 of 12 added lines (25%) had been removed by #3, #4: `y = layer_0(x)`; `y = layer_1(x)` "
        "and 1 more; 1 constant set back to an earlier value"
    )


def test_what_was_refused_before_a_pass_is_said(repository: Path, command: Command) -> None:
    add_hybrid(repository)
    lines = command("show", "6", "--session", "mixed").out.splitlines()
    (line,) = (line for line in lines if line.startswith("  refused"))
    assert line.startswith("  refused     1 answer before local:m passed: try a red") and "\x1b" not in line
    assert "  refused" not in command("show", "5", "--session", "mixed").out


def test_who_reads_the_json_of_an_experiment_is_told_of_each_key(repository: Path, command: Command) -> None:
    add_confirmation(repository, Outcome.CONFIRMED)
    pages = re.split("^### ", (ROOT / "docs/interface.md").read_text("utf-8"), flags=re.MULTILINE)
    told = {
        key for page in pages if page.startswith(("experiments --", "show --")) for key in re.findall("`(\\w+)`", page)
    }
    for number in range(5):
        assert _keys(json.loads(command("show", str(number), "--json", "--answers").out)) <= told


def _keys(document: object) -> set[str]:
    """All keys but those that a task, a policy, a model or early abort gives."""
    if isinstance(document, list):
        return set().union(*map(_keys, document))
    if not isinstance(document, dict):
        return set()
    free = ("metrics", "asi", "messages", "looks")
    return set(document).union(*(_keys(value) for key, value in document.items() if key not in free))
