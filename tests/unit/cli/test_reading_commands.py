"""Commands that look: what they print, where, and how they end."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from autoresearchd.cli.commands import status_command
from autoresearchd.cli.commands.logs_command import followed
from autoresearchd.cli.commands.status_command import experiment_table
from autoresearchd.cli.terminal_text import Paint
from autoresearchd.domain.experiment import Measurement, RunResult, StageResult
from autoresearchd.domain.labels import Label, Outcome, SessionState, Status
from autoresearchd.domain.proposal import Proposal
from autoresearchd.loop.upkeep.session_lock import SessionLock
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from tests.unit.cli import conftest
from tests.unit.cli.conftest import START, Command, add_confirmation, add_experiment, add_hybrid, add_session

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("repository")

READING = [
    ["status"], ["status", "--json"], ["experiments"], ["experiments", "--json"], ["show", "4"],
    ["show", "4", "--diff"], ["show", "4", "--json"], ["show", "4", "--log"], ["export", "--format", "tsv"], ["export"],
]  # fmt: skip


def test_the_status_is_a_block_that_says_what_matters(command: Command) -> None:
    answer = command("status")
    assert answer.code == 0
    assert answer.err == ""
    lines = answer.out.splitlines()
    ended, begun = (moment.astimezone().strftime("%d %b %H:%M") for moment in (START + timedelta(hours=3), START))
    assert lines[0].startswith(f"● autoresearch · mar8 · stopped {ended} · begun {begun} · policy search")
    assert lines[2:6] == [
        "  metric  val_bpb  0.997900  nothing better is confirmed yet · σ 0.0002  (lower is better)",
        "  tip     #1 is believed to be at 0.986041, not confirmed yet",
        "  tried   4 experiments: 1 kept (0 confirmed) · 2 discarded · 1 crashed  beside the baseline",
        "  cost    overhead 41 ms per experiment (p95 41 ms)",
    ]
    assert lines[-2:] == [
        "  go on   autoresearchd resume mar8",
        "  confirm autoresearchd confirm --session mar8   tests what is only believed so far",
    ]


@pytest.mark.parametrize(
    ("usd", "unpriced", "words"),
    [(0.25, True, "at least $0.25"), (0.0, True, "not known"), (0.004, False, "$0.0040"), (0.0, False, "")],
)
def test_money_is_told_in_the_words_of_the_page(usd: float, unpriced: bool, words: str) -> None:
    """What has no known price is not free, and a fraction of a cent is not nothing."""
    assert status_command._cost_words({"cost": {"usd": usd, "unpriced": unpriced}}) == words


def test_only_what_is_confirmed_is_called_better(repository: Path, command: Command) -> None:
    """The value that the keep was made for was partly luck: what `status` promises is the mean of its other runs."""
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        store.record_belief(store.session("mar8").id, 1, 0.98701, 0.00013)
    believed = command("status").out
    assert "  tip     #1 is believed to be at 0.98701 ± 0.00013, not confirmed yet\n" in believed
    assert "% better" not in believed and "→" not in believed
    add_confirmation(repository, Outcome.CONFIRMED)
    lines = command("status").out.splitlines()
    assert lines[2:4] == [
        "  metric  val_bpb  0.998000 → 0.987300  1.07% better side by side (53.5σ), confirmed in #1 over 2 runs "
        "· σ 0.0002  (lower is better)",
        "  tried   4 experiments: 1 kept (1 confirmed) · 2 discarded · 1 crashed  beside the baseline",
    ]
    assert lines[-1] == "  go on   autoresearchd resume mar8", "there is nothing left to confirm"
    assert command("sessions", "list").out.splitlines()[1].split()[3:7] == ["4", "1", "1", "0.9873"]


def test_a_confirmation_under_way_is_seen(repository: Path, command: Command) -> None:
    add_confirmation(repository, None)
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        store.set_state(store.session("mar8").id, SessionState.RUNNING, START + timedelta(minutes=6), pid=1)
    with SessionLock(layout.lock_path(repository, "mar8"), "mar8"):
        lines = command("status").out.splitlines()
    assert any(line.startswith("  now     confirming #1 against #0 · 4 runs done") for line in lines)


def test_a_watched_session_that_is_removed_ends_the_watch_in_words(
    repository: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_session(repository, "other")

    def removed(_: float) -> None:
        with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
            store.delete_session("mar8", even_with_keeps=True)

    monkeypatch.setattr(status_command, "time", SimpleNamespace(sleep=removed))
    with SessionLock(layout.lock_path(repository, "mar8"), "mar8"):
        answer = command("status", "--watch", "--session", "mar8")
    assert answer.code == 2 and "session mar8 was removed meanwhile" in answer.err and "Traceback" not in answer.err


def test_several_slots_are_told_with_their_hosts(repository: Path, command: Command) -> None:
    """Else nobody sees that a box of the fleet has been idle all night."""
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        session = store.session("mar8").id
        store.open_segment(session, "f1", "a fleet", "A100 · x86_64 · 3 slots", START)
        e = store.open_experiment(session, parent="0" * 40, segment=1, at=START)
        store.record_proposal(session, e.number, Proposal({}, "an idea", "search"), diff="", code_hash="h")
        store.record_commit(session, e.number, "5" * 40)
        for host, label in (("box-1", Label.NONE), ("box-2", Label.NONE), ("box-2", Label.HOST_LOST)):
            row = store.open_run(session, e.number, 7, START)
            stage = StageResult("training", "ok", 0, 60.0, "training.log")
            took = RunResult((stage,), 60.0, "bubblewrap", host, "cpu")
            store.close_run(row.id, Measurement(label, None), took, START + timedelta(minutes=1), last=False)
    line = next(line for line in command("status").out.splitlines() if line.startswith("  slots"))
    assert line.split("3 on ")[1] == "2 hosts, 0 in use, busy 67% of the time · box-2 lost 1 run"
    assert "box-2  host_lost" in command("show", str(e.number)).out


def test_with_two_running_sessions_one_has_to_be_named(repository: Path, command: Command) -> None:
    add_session(repository, "newer")
    with (
        SessionLock(layout.lock_path(repository, "mar8"), "mar8"),
        SessionLock(layout.lock_path(repository, "newer"), "newer"),
    ):
        answer = command("experiments")
        named = command("experiments", "--session", "mar8")
    assert (answer.code, answer.out, named.code) == (2, "", 0)
    assert "mar8, newer" in answer.err and "--session" in answer.err


def test_an_unknown_session_is_refused_with_those_that_are_there(command: Command) -> None:
    answer = command("status", "--session", "x\x1b[31m")
    assert answer.code == 2
    assert "mar8" in answer.err and "\x1b" not in answer.err


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_no_text_of_a_model_reaches_the_terminal_as_an_order(
    command: Command, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "--diff" in arguments:  # a pipe gets it exactly
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    answer = command(*arguments)
    assert answer.code == 0
    orders = [c for c in answer.out if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t"]
    assert orders == []


def test_experiments_are_a_table_in_order(command: Command) -> None:
    assert command("experiments").out.splitlines() == [
        "#  status          label      metric      delta  description",
        "0  keep confirmed           0.997900          —  baseline",
        "1  keep open                0.986041  +0.011859  halve batch 524K to 262K (more steps in 5 min)",
        "2  discard         no_gain  0.982603  +0.015297  add 5% warmup",
        "3  crash           oom             —          —  batch 131K",
        "4  discard         no_gain  0.990000  +0.007900  try a red [bold]herring[/bold] gnirts $x_{",
    ]


@pytest.mark.parametrize(
    ("outcome", "word", "sign"),
    [(Outcome.CONFIRMED, "confirmed", "✓"), (Outcome.FELL, "fell", "✗"), (Outcome.UNDECIDED, "open", "…")],
)
def test_a_keep_says_what_became_of_it_in_a_word_or_as_a_sign(
    repository: Path, command: Command, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, word: str, sign: str
) -> None:
    add_confirmation(repository, outcome)
    assert f"1  keep {word}" in command("experiments").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert f"keep {sign}" in command("experiments").out


def test_show_tells_all_of_an_experiment(command: Command) -> None:
    out = command("show", "1").out
    for words in (
        "#1 keep open",
        "halve",
        "+0.011859",
        "more steps help",
        "peak_vram_mb 45060",
        "as measured",
        "learned",
    ):
        assert words in out


def test_show_prints_logs_of_any_bytes(repository: Path, command: Command) -> None:
    folder = layout.run_dir(repository, "mar8", 2, 0)
    folder.mkdir(parents=True)
    (folder / "training.log").write_bytes(b"step 1\rstep 2\rdone \xff\n" + b"x" * 200_000 + b"\n\x1b[2Jlast\n")
    lines = command("show", "2", "--log").out.splitlines()
    assert lines[1:4] == ["step 1", "step 2", "done \ufffd"]
    assert lines[-1] == "last"
    assert sum(len(line) for line in lines[4:-1]) == 200_000


def test_show_hides_what_a_job_that_still_runs_prints_of_its_environment(repository: Path, command: Command) -> None:
    secret, folder = conftest.give_secret(repository), layout.run_dir(repository, "mar8", 2, 0)
    folder.mkdir(parents=True)
    (folder / "training.log").write_text(f"the key {secret} is wrong\n")
    assert command("show", "2", "--log").out.splitlines()[1:] == ["the key «redacted:environment» is wrong"]


def test_a_pipe_gets_the_diff_alone(command: Command) -> None:
    piped = command("show", "2", "--diff").out
    assert piped.startswith("--- a/train.py\n") and "as measured" not in piped


def test_plot_writes_a_picture_and_says_where(repository: Path, command: Command) -> None:
    answer = command("plot")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err == "wrote progress.png: 4 experiments beside the baseline, 1 kept, 0 confirmed\n"
    assert (repository / "progress.png").stat().st_size > 10_000


def test_doctor_finds_out_and_changes_nothing(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    before = sorted(Path().iterdir())
    answer = command("doctor", "--json")
    findings = {f["name"]: f for f in json.loads(answer.out)}
    assert {"python", "git", "sandbox", "gpu", "torch", "cpu", "memory", "disk", "keys", "session"} <= set(findings)
    assert "OPENAI_API_KEY" in findings["keys"]["value"]
    assert "secret" not in answer.out
    assert all(f["status"] in ("ok", "warning", "missing") for f in findings.values())
    assert sorted(Path().iterdir()) == before


def test_doctor_says_what_in_the_users_file_is_wrong(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("policy: search\nstructured: maybe\n")
    monkeypatch.setenv("AUTORESEARCHD_CONFIG", str(file))
    told = command("doctor").out
    assert f"✗ config     {file}:2: structured: 'maybe' is not among true, false, auto" in told
    file.write_text("policy: search\n")
    assert f"✓ config     {file}\n" in command("doctor").out
    (tmp_path / "hook").touch()
    for name, what in (("gone", "the address to notify cannot be read: No such file"), ("hook", "no http address")):
        file.write_text(f"notify: [{{url_file: {name}}}]\n")
        told = command("doctor").out
        assert f"✗ config     {tmp_path / name}: " in told and what in told and "the address of a webhook" in told


def test_an_imported_log_can_be_looked_at_and_leaves_as_it_came(repository: Path, command: Command) -> None:
    log = repository / "results.tsv"
    log.write_text(command("export", "--format", "tsv").out)
    assert "5 experiments" in command("import", str(log)).err
    assert f"{log.parent} is a folder" in command("import", str(log.parent)).err
    shown = command("status", "--session", "imported-results")
    assert "0.997900  nothing better is confirmed yet" in shown.out and "resume" not in shown.out
    kept = [line for line in log.read_text().splitlines() if "\tkeep\t" in line]
    again = command("export", "--format", "tsv", "--session", "imported-results").out.splitlines()
    assert [line for line in again if "\tkeep\t" in line] == kept


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


def test_the_log_of_one_session_is_told_from_that_of_its_neighbour(repository: Path, command: Command) -> None:
    log = layout.daemon_log(repository)
    log.parent.mkdir(parents=True)
    log.write_text(
        "2026-03-08 20:00:00Z mar8 opened #1 on 0123456\n"
        "2026-03-08 20:00:01Z other fault ValueError\nTraceback of the other\n"
        "2026-03-08 20:00:02Z mar8 decided #1 keep\n"
    )
    lines = command("logs", "--session", "mar8").out.splitlines()
    assert [line.split(" ", 3)[3] for line in lines] == ["opened #1 on 0123456", "decided #1 keep"]
    assert "Traceback of the other" in command("logs", "--session", "other").out
    assert len(command("logs").out.splitlines()) == 4
    wrong = command("logs", "--session", "mar9")
    assert (wrong.code, wrong.out) == (2, "")
    assert "no line of a session 'mar9'" in wrong.err


def test_what_a_hybrids_model_did_is_told_and_who_proposed_what(
    repository: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_hybrid(repository)
    told = "  asked   local:m: 2 turns of 7: 1 used, 1 passed · 1 kept · 12 s an answer"
    lines = command("status", "--session", "mixed").out.splitlines()
    assert [line for line in lines if "turn" in line or "asked" in line] == [told]
    assert "asked" not in command("status", "--session", "mar8").out
    rows = [line.split()[-3:] for line in command("experiments", "--session", "mixed", "--last", "2").out.splitlines()]
    assert rows == [["delta", "by", "description"], ["+0.017900", "local", "wider"], ["1", "→", "2"]]
    assert "search  x 1 → 2" in command("experiments", "--session", "mixed").out
    two = [{"experiment": n, "status": "keep", "policy": policy} for n, policy in enumerate(("baseline", "search"))]
    assert "by" not in experiment_table(two, Paint(enabled=False))[0].split(), "there is one who proposes"


def test_why_a_hybrids_model_cannot_be_asked_is_a_line_of_its_own(
    repository: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_hybrid(repository, away=True)
    for name, value in (("COLUMNS", "80"), ("FORCE_COLOR", "1")):
        monkeypatch.setenv(name, value)
    shown = re.sub("\x1b\\[[0-9;]*m", "", command("status", "--session", "mixed").out)
    assert "1 passed, 1 not asked · 1 kept ·\n          12 s an answer\n" in shown
    (line,) = (line for line in shown.splitlines() if "#7: " in line)
    assert line.startswith("          could not be asked in #7: try a red") and line.endswith("…")
    asked = json.loads(command("status", "--json", "--session", "mixed").out)["asked"]
    (page,) = re.findall("### status --json(.*?)### ", (ROOT / "docs/interface.md").read_text("utf-8"), re.DOTALL)
    assert {*asked, *asked["away"]} <= set(re.findall("`([a-z_]+)`", page)), "who reads JSON is told of each key"
    facts = {"label": "malformed_answer", "metric": 0.98, "delta": 0.017, "description": "wider " * 9}
    long = [
        {"experiment": 100 + n, "status": status, "policy": policy} | facts
        for n, (status, policy) in enumerate((("checks_failed", "command:./propose.sh"), ("crash", "search")))
    ]
    assert max(map(len, [*shown.splitlines(), *experiment_table(long, Paint(enabled=False), total=80)])) <= 80


HOSTILE = "da\x1b[31mta\x07\n"


def test_the_status_and_the_list_tell_of_each_role(repository: Path, command: Command) -> None:
    add_session(repository, "specialists")
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        session = store.session("specialists").id
        for role, value, status, reward in (
            ("schedule", 0.98, Status.KEEP, 2.0),
            ("optimiser", 0.99, Status.DISCARD, -0.5),
            ("schedule", 0.985, Status.DISCARD, -1.0),
            (HOSTILE, 0.99, Status.DISCARD, None),
        ):
            label = Label.NONE if status is Status.KEEP else Label.NO_GAIN
            add_experiment(store, session, [value], status, label, "an edit", role=role, reward=reward)
    lines = command("status", "--session", "specialists").out.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.split()[:2] == ["role", "tried"])
    rows = [line.split() for line in lines[begin + 1 : begin + 4]]
    assert ["optimiser", "1", "0", "-0.500"] in rows
    assert ["schedule", "2", "1", "+0.500"] in rows
    of_role = ("experiments", "--json", "--session", "specialists", "--role", "schedule", "--last", "1")
    assert [e["experiment"] for e in json.loads(command(*of_role).out)] == [7]
    answer = command("experiments", "--session", "specialists", "--role", "shedule")
    assert (answer.code, "optimiser" in answer.err) == (2, True)
    assert "start --roles" in command("experiments", "--session", "mar8", "--role", "schedule").err
