"""`report`: what a person reads in the morning, opens anywhere, and puts into a pull request."""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from autoresearchd.domain.labels import Label, Outcome, SessionState, Status
from autoresearchd.domain.ports import NewSession
from autoresearchd.domain.proposal import Proposal
from autoresearchd.report.session_report import SessionReport, escape_markdown, render
from autoresearchd.report.story import slots
from autoresearchd.store.story_reader import Origin, StoryReader
from autoresearchd.workspace import layout
from tests.browser.serving import serving
from tests.fakes.stores import open_store
from tests.unit.cli.conftest import START, Command, add_confirmation, add_experiment, add_hybrid, add_session
from tests.unit.report.test_story import edit, record

ATTACK = (
    "</style></script><script>alert(1)</script><img src=x onerror=alert(2)> [a](javascript:alert(3)) | @all #12 "
    "https://evil.example ``` {{ 7*7 }} hide me: sk-ant-api03-0123456789abcdefghijklmnopqrstuvwxyz \x1b[31m\u202e"
)


class Page(HTMLParser):
    """What a browser would see: elements, attributes, and the text that is shown."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.shown = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.shown += data

    def nothing_runs_or_is_fetched(self) -> bool:
        addresses = [a for _, attrs in self.tags for name, a in attrs.items() if name in ("href", "src")]
        names = {name for _, attrs in self.tags for name in attrs}
        foreign = {tag for tag, _ in self.tags} & {"script", "img", "link", "iframe", "object", "base", "form"}
        return (
            not foreign and not [n for n in names if n.startswith("on")] and all(a and a[0] == "#" for a in addresses)
        )


def test_the_report_tells_what_held_with_its_evidence_and_what_failed_and_why(
    repository: Path, command: Command
) -> None:
    add_confirmation(repository, Outcome.CONFIRMED)
    answer = command("report", "-o", "night.html")
    page = Page((repository / "night.html").read_text())
    shown = " ".join(page.shown.split())
    assert (
        answer.code == 0
        and answer.out == ""
        and "wrote night.html: val_bpb went from 0.998000 to 0.987300 side by side, better" in answer.err
    )
    assert page.nothing_runs_or_is_fetched()
    for words in (
        "#1 confirmed against #0: better by 0.0107", "halve batch 524K to 262K", "+x = 1", "out of memory",
        "git diff 0123456789ab..autoresearch/mar8", "2 pairs of the same seed",
    ):  # fmt: skip
        assert words in shown, words
    heads = list(re.findall(r"<h2[^>]*>([^<]+)", (repository / "night.html").read_text()))
    assert heads[0] == "What held" and heads[-1] == "Commands" and "What was not kept, and why" in heads


@pytest.mark.parametrize("name", ["r.html", "r.md"])
def test_what_became_of_a_hybrids_turns_stands_below_who_brought_what(
    repository: Path, command: Command, name: str
) -> None:
    add_hybrid(repository, away=True)
    for session, told in (("mar8", 0), ("mixed", 1)):
        assert command("report", "--session", session, "-o", name).code == 0
        text = (repository / name).read_text("utf-8")
        words = "local:m: 3 turns of 8: 1 used, 1 passed, 1 not asked · 1 kept · 12 s an answer · could not be asked"
        assert text.count(words) == told
    assert text.index("Who brought what") < text.index(words)


@pytest.mark.parametrize("name", ["r.html", "r.md"])
def test_nothing_that_a_model_or_a_job_wrote_runs_or_breaks_out(
    empty_repository: Path, command: Command, name: str
) -> None:
    add_session(empty_repository, "mar8")
    with open_store(layout.database_path(empty_repository)) as store:
        session = store.session("mar8")
        add_experiment(store, session.id, [0.9], Status.KEEP, Label.NONE, ATTACK, role=ATTACK)
        add_experiment(store, session.id, [], Status.CRASH, Label.ERROR, ATTACK)
        store.set_state(session.id, SessionState.STOPPED, session.started_at, pid=None, reason=ATTACK)
    assert command("report", "-o", name).code == 0
    text = (empty_repository / name).read_text()
    assert "hide me" in text and "sk-ant-api03-0123456789" not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", text)
    if name == "r.html":
        page = Page(text)
        assert page.nothing_runs_or_is_fetched() and text.count("</style>") == 1
        assert "<script>alert(1)</script>" in page.shown and "{{ 7*7 }}" in page.shown
    else:
        outside = re.sub(r"^(`{3,})diff\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
        assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", outside)
        assert not re.search(r"(?<!`)#\d|@all|https:|(?<!\\)\]\(", outside)
        rows = [line for line in outside.splitlines() if line.startswith("|")]
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows if "out of memory" in row or "crash" in row} <= {6}


@pytest.mark.parametrize(
    "text",
    [
        *("1. no list", "- no list", "# no head", "a_b*c", "<b>", "~~no~~", "$x$", "&lt;", "a|b"),
        *("1https://evil.example/x", "_https://evil.example", "éhttps://evil.example", "_www.evil.example"),
    ],
)
def test_foreign_markdown_is_plain_text(text: str) -> None:
    assert escape_markdown(text) not in (text, "") and "\n" not in escape_markdown(f"{text}\n\n{text}")


def test_markdown_goes_into_a_pipe_and_fits_a_pull_request(repository: Path, command: Command) -> None:
    add_confirmation(repository, Outcome.CONFIRMED)
    answer = command("report", "--format", "markdown")
    assert answer.code == 0 and answer.out.startswith("# autoresearch · mar8\n") and len(answer.out) < 65_536
    assert "### `#1` against `#0`: better by 0.0107" in answer.out and "```diff" in answer.out
    assert not (repository / "report.html").exists()


def test_the_markdown_of_a_long_session_fits_a_pull_request_with_the_latest_steps(
    repository: Path, command: Command
) -> None:
    status = json.loads(command("status", "--json").out)
    count, words = 400, "a long description of what was done and why, with_many_signs " * 4
    keeps = [record(n, "keep", 1 - n / 1e4, confirmed=True, description=words, asi={}) for n in range(count)]
    tests = [
        {"experiment": n, "against": n - 1, "after": n, "moved": True, "outcome": "confirmed", "gain": 1e-4,
         "error": 1e-5, "probability": 0.99, "reason": words, "runs": [], "path": [], "value": 1 - n / 1e4}
        for n in range(1, count)
    ]  # fmt: skip
    edits = [edit(n, diff=f"+line of {n}\n" * 90) for n in range(count)]
    at = datetime(2026, 3, 8, 20, 0, tzinfo=UTC)
    origin = Origin("0" * 40, "local", 7, "")
    report = SessionReport("mar8", status, keeps, edits, tests, (), slots([], [], at, at), origin, at)
    text = render(report, str, markdown=True)
    assert len(text) < 65_536 and "`#399` against `#398`" in text and "+line of 399" in text and "`#7`" not in text
    assert re.search(r"The latest \d+ of 399 steps", text)


def test_what_did_not_hold_are_keeps_and_no_mere_comparisons(repository: Path, command: Command) -> None:
    """An improvement that an ablation shows to be needed is the opposite of one that did not hold."""
    status = json.loads(command("status", "--json").out)
    open_keep, proven = record(2, "keep", 0.9), record(1, "keep", 0.95, confirmed=True)
    records = [record(0, "keep", 1.0, confirmed=True), proven, open_keep, record(3)]
    told = [  # (test, whether it is told)
        ({"experiment": 1, "why": "ablation abc", "outcome": "fell"}, False),
        ({"experiment": 1, "why": "ablated abc", "outcome": "undecided"}, False),
        ({"experiment": 3, "why": "asked", "outcome": "fell"}, False),  # of a discard
        ({"experiment": 2, "why": "asked", "outcome": "undecided", "budget": 9.0}, False),
        ({"experiment": 1, "why": "limit", "outcome": "undecided"}, False),  # a later one has confirmed it
        ({"experiment": 2, "why": "limit", "outcome": "undecided"}, True),
        ({"experiment": 2, "why": "gain", "outcome": "fell", "moved": True}, True),
    ]
    tests = [{"against": 0, "budget": None, "moved": False, **test} for test, _ in told]
    at = datetime(2026, 3, 8, 20, 0, tzinfo=UTC)
    origin = Origin("0" * 40, "local", 7, "")
    report = SessionReport("mar8", status, records, [], tests, (), slots([], [], at, at), origin, at)
    assert [test in report.not_held for test in tests] == [wanted for _, wanted in told]


def test_runs_that_gave_nothing_are_no_evidence_and_parts_of_a_cent_are_shown(
    repository: Path, command: Command
) -> None:
    status = json.loads(command("status", "--json").out)
    good, cut, failed = (
        {"metric": metric, "label": label, "of": None, "duration_s": 60.0}
        for metric, label in ((0.9, ""), (None, "interrupted"), (0.7, "constraint"))
    )
    kept = record(1, "keep", 0.9, confirmed=True, policy="cheap", cost_usd=0.004)
    more = {"description": "", "role": "", "asi": {}, "expected_gain": None}
    kept |= {**more, "runs": [cut, failed, good]}
    test = {"experiment": 1, "against": 0, "after": 1, "moved": True, "outcome": "confirmed", "gain": 0.1,
            "error": 0.01, "probability": 0.99, "reason": "", "path": [0.1], "value": 0.9,
            "runs": [good, cut, good]}  # fmt: skip
    at = datetime(2026, 3, 8, 20, 0, tzinfo=UTC)
    first = record(0, "keep", 1.0, confirmed=True, **more)
    rest = (slots([], [], at, at), Origin("0" * 40, "local", 7, ""), at)
    report = SessionReport("mar8", status, [first, kept], [edit(1)], [test], (), *rest)
    html, markdown = (render(report, str, markdown=wanted) for wanted in (False, True))
    assert "over 1 run " in html and "2 runs side by side" in html and "2 runs side by side" in markdown
    assert "$0.0040" in html and "0.0040" in markdown


def test_a_session_whose_daemon_died_does_not_run_on_in_its_report(empty_repository: Path, command: Command) -> None:
    add_session(empty_repository, "mar8", state=SessionState.RUNNING, pid=None)
    with open_store(layout.database_path(empty_repository)) as store:
        session = store.session("mar8").id
        begun = START + timedelta(hours=2)
        number = store.open_experiment(session, parent="", segment=0, at=begun).number
        store.record_proposal(session, number, Proposal({}, "h", "search"), diff="", code_hash="h")
        store.record_commit(session, number, "9" * 40)
        store.open_run(session, number, 5, begun)
    with StoryReader(layout.database_path(empty_repository)) as reader:
        status = reader.status("mar8", alive=False)
        report = SessionReport.read(reader, "mar8", status, START + timedelta(days=3))
    assert (status["session"]["state"], report.slots.length) == ("crashed", 3 * 3600)


@pytest.mark.parametrize(("roles", "cut"), [(1, False), (300, True)])
def test_the_markdown_fits_a_pull_request_whatever_it_has_to_tell(
    repository: Path, command: Command, roles: int, cut: bool
) -> None:
    """One step of hundreds of keeps, and roles without number."""
    status, words = json.loads(command("status", "--json").out), "a_long <description> of what was done " * 9
    keeps = [record(n, "keep", 1 - n / 1e4, confirmed=True, description=words, asi={}) for n in range(300)]
    keeps = [{**keep, "policy": "_" * 60, "role": f"<{keep['experiment'] % roles}>" + "*" * 40} for keep in keeps]
    test = {"experiment": 299, "against": 0, "after": 299, "moved": True, "outcome": "confirmed", "gain": 0.03,
            "error": 1e-5, "probability": 0.99, "reason": words, "runs": [], "path": [], "value": 0.97}  # fmt: skip
    at = datetime(2026, 3, 8, 20, 0, tzinfo=UTC)
    edits = [edit(n, diff=f"+line of {n}\n" * 90) for n in range(300)]
    origin = Origin("0" * 40, "local", 7, "")
    report = SessionReport("mar8", status, keeps, edits, [test], (), slots([], [], at, at), origin, at)
    text = render(report, str, markdown=True)
    assert len(text) < 65_536 and "`#299` against `#0`" in text and "of its 299 keeps" in text
    assert text.count("\n```") % 2 == 0 and text.count("<details>") == text.count("</details>")
    assert ("This is cut here" in text) is cut


@pytest.mark.parametrize("begun", [False, True])
def test_a_session_that_has_just_begun_has_a_report_too(empty_repository: Path, command: Command, begun: bool) -> None:
    task, at = {"name": "t", "scoring": {"metric": "m"}, "execution": {"budget": 5}}, datetime.now(UTC)
    with open_store(layout.database_path(empty_repository)) as store:
        session = store.create_session(
            NewSession("new", "autoresearch/new", json.dumps(task), "search", "local", "", 7), at
        )
        store.open_segment(session.id, "f", "first", "cpu", at)
        if begun:
            store.open_experiment(session.id, parent="", segment=0, at=at)
            proposal = Proposal({}, "baseline", "baseline")
            store.record_proposal(session.id, 0, proposal, diff="", code_hash="h")
            store.record_commit(session.id, 0, "0" * 40)
            store.open_run(session.id, 0, 1, at)
    for arguments in (("report",), ("report", "-o", "r.md"), ("export", "--to", "optuna")):
        assert command(*arguments).code == 0
    assert "The baseline has no m yet" in (empty_repository / "report.html").read_text()


def test_a_session_without_a_result_yet_has_a_report_too(empty_repository: Path, command: Command) -> None:
    log = empty_repository / "results.tsv"
    log.write_text("commit\tval_bpb\tmemory_gb\tstatus\tdescription\na1b2c3d\t0.9\t44.0\tkeep\tbaseline\n")
    assert command("import", str(log)).code == 0
    for arguments in (("report",), ("report", "--format", "markdown", "-o", "r.txt")):
        answer = command(*arguments)
        assert answer.code == 0 and "Nothing better than the baseline" in answer.err, answer.err
    text = (empty_repository / "report.html").read_text()
    assert "Nothing is confirmed yet" in text and "<dt>Cost</dt><dd>not known</dd>" in text


def test_a_session_goes_to_a_tracker_and_the_next_export_adds_what_is_new(repository: Path, command: Command) -> None:
    first = command("export", "--to", "optuna")
    assert first.code == 0 and "5 new experiments in .autoresearchd/trackers/optuna.log, 0 were there" in first.err
    assert "optuna-dashboard /" in first.err and first.out == ""
    with open_store(layout.database_path(repository)) as store:
        session = store.session("mar8")
        add_experiment(store, session.id, [0.9], Status.KEEP, Label.NONE, "one more")
        store.open_experiment(session.id, parent="", segment=0, at=session.started_at)  # under way
    assert (
        "1 new experiment in .autoresearchd/trackers/optuna.log, 5 were there"
        in command("export", "--to", "optuna").err
    )


LOGS = {  # pi-autoresearch's, with its hooks and a time in milliseconds; karpathy's table; a fork's with other columns
    "pi.jsonl": (
        '{"type":"config","name":"speed","metricName":"total_us","metricUnit":"µs","bestDirection":"lower"}\n'
        '{"run":1,"commit":"abc1234","metric":15200,"metrics":{"compile_us":4200},"status":"keep","description":"base",'
        '"timestamp":1773000000000,"segment":0,"confidence":null,"asi":{}}\n{"type":"hook","name":"after"}\n'
        '{"run":2,"commit":"bcd2345","metric":14800,"metrics":{},"status":"keep","description":"faster",'
        '"timestamp":1773000300000,"segment":0,"confidence":2.1,"asi":{"hypothesis":"less work"}}\n'
    ),
    "results.tsv": (
        "commit\tval_bpb\tmemory_gb\tstatus\tdescription\nabc1234\t0.997900\t44.0\tkeep\tbaseline\n"
        "bcd2345\t0.986041\t43.9\tkeep\tfaster\n7f2a65c\t0.000000\t0.0\tcrash\tbatch 131K\n"
    ),
    "fork.tsv": "sha\tscore\tseconds\tstatus\nabc1234\t0.5\t30\tbaseline\nbcd2345\t0.7\t31\tkeep\n",
}


@pytest.mark.parametrize("name", LOGS)
def test_another_tools_log_is_imported_shown_drawn_reported_and_exported_again(
    empty_repository: Path, command: Command, name: str
) -> None:
    (empty_repository / name).write_text(LOGS[name])
    assert command("import", name).code == 0
    assert "bcd2345" in command("show", "1").out
    for arguments in (("plot", "-o", "p.svg"), ("plot", "-o", "p.png"), ("report",), ("export", "-o", "again.jsonl")):
        answer = command(*arguments)
        assert answer.code == 0, answer.err
    assert "<svg" in (empty_repository / "p.svg").read_text("utf-8")
    first = json.loads(command("experiments", "--json").out)
    assert command("import", "again.jsonl").code == 0
    again = json.loads(command("experiments", "--json", "--session", "imported-again").out)
    kept = ("experiment", "status", "metric", "metrics", "description", "commit", "asi")
    assert [[e[k] for k in kept] for e in again] == [[e[k] for k in kept] for e in first]


@pytest.mark.usefixtures("repository")
def test_an_export_is_what_its_name_says_or_is_refused(command: Command) -> None:
    for name, begins in (("x.TSV", "commit\t"), ("x", '{"type":'), ("x.jsonl", '{"type":')):
        assert command("export", "-o", name).code == 0 and Path(name).read_text().startswith(begins)
    answer = command("export", "-o", "x.csv")
    assert answer.code == 2 and "spreadsheets read .tsv" in answer.err and not Path("x.csv").exists()
    assert command("export", "-o", "x.csv", "--format", "tsv").code == 0, "whoever says the format may call it anything"


def test_what_was_imported_is_not_said_to_have_runs(empty_repository: Path, command: Command) -> None:
    own = LOGS["pi.jsonl"].replace('"segment"', '"confirmed":true,"segment"')
    (empty_repository / "own.jsonl").write_text(own)
    assert command("import", "own.jsonl").code == 0
    assert "confirmed in experiment 1.\n" in command("report").err
    with serving(empty_repository) as server:
        page = httpx.get(f"http://127.0.0.1:{server.port}/s/imported-own").text
    assert "#1</a></p>" in page and "0 runs" not in page


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--to", "trackio"), 5, "pip install 'autoresearchd[trackers]'"),
        (("--to", "optuna", "--format", "tsv"), 2, "exclude each other"),
        (("--to", "mlflow", "-o", "."), 2, "mlflow is one file"),
        (("--to", "wandb", "-o", "train.py"), 2, "wandb is a folder"),
        (("--to", "optuna", "-o", "train.py/x.log"), 2, "cannot write train.py/x.log"),
        (("--to", "neptune"), 2, "mlflow"),
    ],
)
def test_a_tracker_that_cannot_be_written_says_why(
    repository: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    (repository / "train.py").write_text("x = 1\n")
    monkeypatch.setitem(sys.modules, "trackio", None)
    answer = command("export", *arguments)
    assert (answer.code, words in answer.err) == (code, True), answer.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-o", "report.pdf"), "a report is a .html or .md file"),
        (("-o", "no/such/folder/r.html"), "cannot write no/such/folder/r.html"),
        (("-o", "train.py/r.html"), "cannot write train.py/r.html"),
        (("--format", "docx"), "html"),
        (("--session", "other"), "other"),
    ],
)
def test_a_report_that_cannot_be_written_says_why(
    repository: Path, command: Command, arguments: tuple[str, ...], words: str
) -> None:
    (repository / "train.py").write_text("x = 1\n")
    answer = command("report", *arguments)
    assert answer.code == 2 and words in answer.err and not list(repository.glob("*.part"))
