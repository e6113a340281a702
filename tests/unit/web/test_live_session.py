"""What the page shows of a session at work: its runs as they come and go, and what it was told of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import httpx
import pytest

from autoresearchd.app.project import Project
from autoresearchd.domain.experiment import CurvePoint, Measurement
from autoresearchd.domain.labels import Label, Outcome, Status
from autoresearchd.domain.proposal import Answer, Cost, Generation, Proposal
from autoresearchd.keys import redactor
from autoresearchd.store.page_reader import PageReader
from autoresearchd.web import source as source_module
from autoresearchd.web.curves import LiveCurves
from autoresearchd.web.rendering import words_of_test
from autoresearchd.web.server import Server
from autoresearchd.web.source import Source
from autoresearchd.web.views import log_tails
from autoresearchd.workspace import layout
from tests.browser.demo import Demo
from tests.browser.serving import serving
from tests.fakes.stores import open_store
from tests.unit.cli.conftest import add_session, give_secret
from tests.unit.learner.sessions import make_root

SECRET = "sk-ant-api03-" + "Zq8" * 30


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    with Demo(tmp_path / "night") as found:
        found.baseline()
        yield found


@pytest.fixture
def source(demo: Demo) -> Iterator[Source]:
    found = Source(Project.at(demo.root))
    yield found
    found.close()


def end_run(demo: Demo, number: int) -> None:
    run = demo.store.experiment(demo.id, number).runs[-1]
    demo.store.close_run(run.id, Measurement(Label.NONE, 0.99), None, datetime.now(UTC), last=True)


def get(server: Server, path: str) -> str:
    return httpx.get(f"http://127.0.0.1:{server.port}{path}", timeout=60).raise_for_status().text


def test_a_run_that_begins_is_another_block_than_its_proposal(demo: Demo) -> None:
    def keys() -> str:
        return get(server, f"/s/{demo.tag}").split('data-keys="')[1].split('"')[0]

    with serving(demo.root) as server:
        number = demo.store.open_experiment(demo.id, parent="f" * 40, segment=0, at=demo.now).number
        proposing = keys()
        proposal = Proposal({}, "because", "search")
        demo.store.record_proposal(demo.id, number, proposal, diff="", code_hash="x")
        demo.store.record_commit(demo.id, number, "e" * 40)
        demo.store.open_run(demo.id, number, 1, demo.now)
        assert "proposing" in proposing and keys() == proposing.replace("proposing", "running")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted as Linux lists them")
def test_the_logs_of_runs_that_have_ended_are_let_go(demo: Demo, source: Source) -> None:
    curves, logs = LiveCurves(source), []
    for _ in range(3):
        number = demo.running("One after the other", share=0.3)
        assert len(curves.of(demo.tag, number)[0]["x"]) == 18
        logs = [link for link in map(target, Path("/proc/self/fd").iterdir()) if link.endswith("training.log")]
        end_run(demo, number)
    assert len(logs) <= 1, "only that of the run under way"
    curves.close()


def test_curves_are_of_the_experiment_alone_and_each_log_says_whose_it_is(demo: Demo, source: Source) -> None:
    tip = demo.experiment("Better", Status.KEEP, values=[0.99], gain=0.006)
    found = demo.store.open_confirmation(demo.id, experiment=tip, against=0, why="gain", at=demo.now)
    for at, of in ((1, None), (2, 0)):  # runs of both programs have the number of the tip
        run = demo.store.open_confirmation_run(demo.id, found.number, 500, demo.now, of=of)
        measured = Measurement(Label.NONE, 0.99, curve=demo.curve(1.0))
        demo.store.close_confirmation_run(run.id, measured, None, demo.now)
        folder = layout.run_dir(demo.root, demo.tag, tip, at)
        folder.mkdir(parents=True)
        (folder / "training.log").write_text("loss: 3.1\n")
    demo.log(tip, [0.5])
    with serving(demo.root) as server:
        text = get(server, f"/s/{demo.tag}/x/{tip}")
        curves = json.loads(get(server, f"/s/{demo.tag}/x/{tip}/curves"))
    assert [curve["name"] for curve in curves] == ["seed 100", "parent #0"]
    for whose in ("seed 100", f"confirmation 0, #{tip}, seed 500", "confirmation 0, #0, seed 500"):
        assert f"<summary>{whose}: training</summary>" in text


def test_a_curve_without_progress_ends_where_a_run_that_was_ended_early_did(
    demo: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "curve", lambda *_: (CurvePoint(1.0, 3.0), CurvePoint(2.0, 2.0)))
    tip = demo.experiment("Better", Status.KEEP, values=[0.99], gain=0.006)
    number = demo.experiment("Worse", Status.DISCARD, Label.ABORTED_EARLY)
    with serving(demo.root) as server:
        own, parent = json.loads(get(server, f"/s/{demo.tag}/x/{number}/curves"))
    assert (own["x"], parent["name"], parent["x"]) == ([29.5, 59.0], f"parent #{tip}", [50.0, 100.0])


def test_the_table_is_sorted_by_the_gain_that_it_shows_and_not_by_a_forecast(demo: Demo) -> None:
    demo.experiment("Worse", Status.DISCARD, Label.NO_GAIN, values=[1.2], gain=-0.2)
    demo.experiment("Ended early", Status.DISCARD, Label.ABORTED_EARLY, gain=0.5)
    demo.experiment("Better", Status.KEEP, values=[0.9], gain=0.1)
    with serving(demo.root) as server:
        rows = get(server, f"/s/{demo.tag}/experiments?sort=-gain").split('<tr id="row-')[1:]
    assert [row.split('"')[0] for row in rows] == ["3", "0", "1", "2"]


def test_what_a_dead_daemon_left_does_not_go_on(demo: Demo) -> None:
    number = demo.running("Cut off", share=0.3)
    with serving(demo.root) as server:
        assert "data-elapsed" in (alive := get(server, f"/s/{demo.tag}")) and "/live?" in alive
        demo._lock.close()
        dead = get(server, f"/s/{demo.tag}")
        runs = get(server, f"/s/{demo.tag}/x/{number}")
    assert "The daemon is gone; it left" in dead and f'id="run-{number}"' in dead
    assert "data-elapsed" not in dead and "/live?" not in dead
    assert dead.split('data-keys="')[1].split('"')[0] != alive.split('data-keys="')[1].split('"')[0], "it is put anew"
    assert ">cut off<" in runs


def test_a_daemon_that_falls_silent_is_news_though_nothing_is_written(
    demo: Demo, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo.lock.ready()
    versions, mark = list[str](), source.mark()
    for ago in (0, 120):
        demo.store.heartbeat(demo.id, datetime.now(UTC) - timedelta(seconds=ago), 1.0)
        versions.append(source.version(demo.tag))
    assert versions[0] != versions[1]
    monkeypatch.setattr(source_module, "RECHECK_S", 1e-9)
    assert source.mark() != source.mark() != mark, "it is looked at again as time goes on"


@pytest.mark.parametrize("end", ["\n", "\r"])
@pytest.mark.parametrize("filler", ["y ", SECRET + " "])
def test_half_a_secret_at_the_begin_of_a_tail_is_not_shown(demo: Demo, filler: str, end: str) -> None:
    number = demo.running("Noisy", share=0.1)
    log = layout.run_dir(demo.root, demo.tag, number, 0) / "training.log"
    for size in range(0, 120, 15):  # where the part that is read, or shown, begins in the middle of it
        for part in (32 * 1024, 64 * 1024):
            rest = filler * (part // len(filler)) + "." * size
            log.write_text(f"x{end}key {SECRET} {rest}{end}z{end}")
            (tail,) = log_tails(demo.root, demo.tag, number, redactor(environment={}), {})
            assert "Zq8" not in tail["text"] and tail["text"].endswith("z")


def test_what_a_job_prints_of_the_environment_that_it_was_given_is_not_shown(demo: Demo) -> None:
    secret, number = give_secret(demo.root), demo.running("Chatty", share=0.1)
    log = layout.run_dir(demo.root, demo.tag, number, 0) / "training.log"
    log.write_text(f"the key {secret} is wrong\n")
    with serving(demo.root) as server:
        text = get(server, f"/s/{demo.tag}/x/{number}")
    assert "the key «redacted:environment» is wrong" in text and secret not in text


def test_a_session_that_got_the_tag_of_a_removed_one_shows_nothing_of_that(tmp_path: Path) -> None:
    root = make_root(tmp_path / "again")
    add_session(root, "mar8")
    with serving(root) as server:
        assert "warmup" in get(server, "/s/mar8") and "#1" in get(server, "/s/mar8/lineage")
        with open_store(layout.database_path(root)) as store:
            store.delete_session("mar8", even_with_keeps=True)
        with Demo(root, "mar8") as demo:
            demo.baseline()
            tree = get(server, "/s/mar8/lineage").split('class="tree"')[1]
        assert "#0" in tree and "halve batch" not in tree


def test_what_is_kept_is_made_once_and_the_oldest_goes_first(source: Source) -> None:
    made, ready = list[str](), Event()

    def make() -> str:
        ready.wait()
        made.append("it")
        return "it"

    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(source.kept, "mar8", ("begun", 1), "chart", make) for _ in range(4)]
        ready.set()
        assert [one.result() for one in waiting] == ["it"] * 4 and made == ["it"]
    for n in range(63):
        source.kept("mar8", ("begun", 1), f"another {n}", str)
    source.kept("mar8", ("begun", 1), "chart", make)
    source.kept("mar8", ("begun", 1), "one more", str)
    source.kept("mar8", ("begun", 1), "another 5", pytest.fail)  # type: ignore[arg-type]
    assert made == ["it"]
    source.kept("mar8", ("begun again", 1), "chart", make)
    assert made == ["it", "it"]


def test_money_that_is_not_known_is_not_told_as_none(demo: Demo) -> None:
    asked = Answer("local/model", Cost(None, 900, 80, 2.0), Generation(), form="search_replace", finish="stop")
    with serving(demo.root) as server:
        assert "not known" not in get(server, f"/s/{demo.tag}")
        demo.store.record_answer(demo.id, 0, asked, demo.now)
        assert all("not known" in get(server, path) for path in ("/", f"/s/{demo.tag}", f"/s/{demo.tag}/learner"))
        demo.experiment("Priced", Status.DISCARD, Label.NO_GAIN, values=[1.0])
        assert all("at least $0.02" in get(server, path) for path in ("/", f"/s/{demo.tag}"))


def test_the_pace_is_of_the_time_of_work_and_imported_programs_are_on_no_branch(demo: Demo) -> None:
    tip = demo.experiment("From elsewhere", Status.KEEP, values=[0.99], gain=0.006, policy="imported")
    demo.confirm(Outcome.CONFIRMED)
    with serving(demo.root) as server:
        assert "experiments/h" not in get(server, f"/s/{demo.tag}"), "nothing has worked here yet"
        demo.store.heartbeat(demo.id, datetime.now(UTC), 1800.0)
        assert " 2 experiments/h" in get(server, f"/s/{demo.tag}")
        text = get(server, f"/s/{demo.tag}/x/{tip}")
    assert "<dd>yes</dd>" in text and "the branch has it" not in text


def test_an_error_that_nobody_expected_is_a_page_with_the_headers_of_all(
    demo: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PageReader, "beliefs", lambda *_: 1 / 0)
    with serving(demo.root) as server:
        answer = httpx.get(f"http://127.0.0.1:{server.port}/s/{demo.tag}", timeout=60)
    assert answer.status_code == 500 and "cannot be made: ZeroDivisionError" in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"] and "division" not in answer.text


def test_confirmations_are_told_as_what_they_were() -> None:
    def told(outcome: str | None, why: str = "gain", moved: bool = False) -> tuple[str, ...]:
        return tuple(
            words_of_test({"experiment": 7, "against": 4, "outcome": outcome, "why": why, "moved": moved}).values()
        )

    assert told("fell", moved=True) == ("#7", "fell back", "fell")
    assert told("fell", "asked") == ("#7", "not better, compared only", "open")
    assert told("confirmed", "asked") == ("#7", "better, compared only", "open")
    assert told("fell", "ablation t1") == ("#4 without #7", "missed", "open")
    assert told("confirmed", "ablated t2") == ("#4 without what was dropped", "not missed", "open")
    assert told(None) == ("#7", "under way", "open")


def target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # that of the listing itself
        return ""
