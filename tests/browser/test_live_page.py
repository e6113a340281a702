"""The live page as people see it: the system's Chromium on real servers over real stores."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.experiment import Measurement
from autoresearchd.domain.labels import Label, SessionState, Status
from autoresearchd.domain.proposal import ASI, Answer, Cost, Generation, Proposal
from autoresearchd.web.server import Server
from autoresearchd.workspace import layout
from tests.browser.demo import Demo, multiply
from tests.browser.serving import chromium, needs_chromium, serving
from tests.fakes.stores import open_store
from tests.timing import wait_until
from tests.unit.store.driver import execute

pytestmark = needs_chromium
AXE = Path(__file__).with_name("axe.min.js")
PATIENCE_MS = 60_000
TABS = ("", "/experiments", "/lineage", "/insights", "/learner")
HOSTILE = (
    "<script>alarm('script')</script><img src=x onerror=\"alarm('image')\"><svg onload=alarm('svg')></svg>"
    "</textarea></title></pre>\"'><iframe src=\"javascript:alarm('frame')\"></iframe>{{7*7}}\u202e\x1b[31m"
)
PROGRAM = 'RATE = 1e-3\nSCALE = 1.0\nprint(f"score: {abs(SCALE - 3) + RATE}")\n'
TASK = """\
name: tiny
workspace: {target_file: train.py}
execution: {run_command: python -I -S train.py, budget: 30}
scoring: {metric: score, direction: minimize, metric_source: stdout}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A session whose daemon is at work, with one experiment under way."""
    with Demo(tmp_path_factory.mktemp("demo") / "night") as found:
        found.baseline()
        found.night(18)
        found.learn()
        found.running("WARMDOWN_RATIO 0.5 → 0.65", share=0.6)
        yield found


@pytest.fixture(scope="module")
def server(demo: Demo) -> Iterator[Server]:
    with serving(demo.root) as found:
        yield found


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        yield watched(context)


def watched(context: Any) -> Any:
    """A new page that fails the test where anything foreign runs, or is refused by the policy."""
    alarms: list[str] = []
    context.expose_function("alarm", lambda words: alarms.append(str(words)))
    context.add_init_script("addEventListener('securitypolicyviolation', (e) => alarm(e.violatedDirective))")
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.on("dialog", lambda dialog: alarms.append(dialog.message))
    page.on("pageerror", lambda error: alarms.append(str(error)))
    page.alarms = alarms
    return page


def go(page: Any, server: Server, path: str, *, token: bool = False) -> None:
    address = server.address(path)
    answer = page.goto(address if token else address.split("#")[0])
    assert answer is None or answer.status < 500, path
    page.wait_for_selector("body[data-ready]")


# ---------------------------------------------------------------------- live
def test_what_happens_is_on_the_page_without_a_reload(page: Any, server: Server, demo: Demo) -> None:
    go(page, server, f"/s/{demo.tag}")
    page.wait_for_selector(".link-state.live")
    number = demo.experiment("A brand-new idea", Status.DISCARD, Label.NO_GAIN, values=[1.01])
    page.wait_for_selector(f"#newest #row-{number} >> text=A brand-new idea")
    assert page.evaluate("performance.getEntriesByType('navigation').length") == 1


def test_a_page_says_that_it_cannot_be_read_and_that_its_session_is_gone(page: Any, tmp_path: Path) -> None:
    with Demo(tmp_path / "gone") as demo, serving(demo.root) as server:
        demo.baseline()
        go(page, server, f"/s/{demo.tag}")
        page.wait_for_selector(".link-state.live")
        database = layout.database_path(demo.root)
        database.rename(aside := database.with_name("aside"))
        page.wait_for_selector("#link-state:not(.live) >> text=not readable")
        aside.rename(database)
        page.wait_for_selector(".link-state.live")
        demo.store.delete_session(demo.tag, even_with_keeps=True)
        page.wait_for_selector("main >> text=there is no session")
        assert page.alarms == []


def test_the_curve_of_a_run_grows_with_its_log(page: Any, server: Server, demo: Demo) -> None:
    running = demo.running("Curve that grows", share=0.3)
    go(page, server, f"/s/{demo.tag}/x/{running}")
    page.wait_for_selector("[data-curves][data-drawn='18']")
    assert page.locator(".panel canvas").count() == 2, "the loss, and what is forecast with its bar"
    demo.log(running, [i / 60 for i in range(19, 26)])
    page.wait_for_selector("[data-curves][data-drawn='25']")
    label = page.locator(".panel [role=img]").nth(1).get_attribute("aria-label")
    assert "90% from" in label and "bar" in label
    ended = Measurement(Label.NONE, 0.99, curve=demo.curve(1.0))
    demo.store.close_run(demo.store.experiment(demo.id, running).runs[-1].id, ended, None, demo.now, last=True)
    page.wait_for_selector("#x-curve [data-curves*='/curves'][data-drawn]")
    assert int(page.get_attribute("#x-curve [data-curves]", "data-drawn")) >= 60
    assert "loss:" in page.inner_text("#x-logs .log")
    assert page.alarms == []


# ---------------------------------------------------------------------- the table, and an experiment
def test_the_table_is_filtered_as_one_types(page: Any, server: Server, demo: Demo) -> None:
    go(page, server, f"/s/{demo.tag}")
    page.keyboard.press("2")
    page.wait_for_selector("body[data-ready] #f-text")
    page.keyboard.press("/")
    page.keyboard.type("baseline")
    page.wait_for_selector("#results tbody tr:only-child")
    assert page.url.endswith("/experiments?text=baseline")
    page.fill("#f-text", "")
    page.select_option("#f-status", "keep")
    page.wait_for_selector("#results tbody:not(:has(use[href='#m-discard'])) tr + tr")
    page.click("th >> text=Value")
    page.wait_for_selector("th[aria-sort=descending] >> text=Value")
    values = [float(text) for text in page.locator("#results td:nth-child(3)").all_inner_texts()]
    assert values == sorted(values, reverse=True) and len(values) > 1
    assert page.alarms == []


def test_an_experiment_shows_what_was_changed_asked_and_decided(page: Any, server: Server, demo: Demo) -> None:
    confirmed = next(n for n, fate in keeps(demo).items() if fate and n)
    go(page, server, f"/s/{demo.tag}/x/{confirmed}")
    assert page.locator(".diff tr.add").count() == 3 and page.locator(".diff tr.del").count() == 2
    assert page.locator(".diff .t-k").first.inner_text() == "def"
    assert "MATRIX_LR = 0.03" in page.inner_text(".diff")
    text = page.inner_text("main")
    for words in (
        "Hypothesis",
        "signal late in training",
        "Decision",
        "over the tip",
        "the branch has it",
        "Prompt and answer",
    ):
        assert words in text
    assert page.locator(".test svg").count() >= 1 and "Over 3 pairs of runs" in text


def keeps(demo: Demo) -> dict[int, bool | None]:
    return {e.number: e.confirmed for e in demo.store.keeps(demo.id, 0)}


# ---------------------------------------------------------------------- asking
def test_without_the_token_the_page_only_reads(page: Any, server: Server, demo: Demo) -> None:
    go(page, server, f"/s/{demo.tag}")
    page.wait_for_selector(".link-state.live")
    assert not page.is_visible("#asks")
    page.keyboard.press("n")
    assert not page.is_visible("#note")
    body = "{method: 'POST', headers: {'content-type': 'application/json'}, body: '{\"text\": \"x\"}'}"
    assert page.evaluate(f"fetch('/s/{demo.tag}/note', {body}).then((answer) => answer.status)") == 403


def test_with_the_token_a_note_and_a_pause_arrive(page: Any, server: Server, demo: Demo) -> None:
    go(page, server, f"/s/{demo.tag}", token=True)
    page.wait_for_selector("#asks", state="visible")
    assert server.site.token not in page.url, "it must not stay where it is copied, or looked at"
    page.keyboard.press("n")
    page.keyboard.type(f"mind the schedule {HOSTILE[:20]}")
    page.click("#note-form .primary")
    page.wait_for_selector("#said >> text=noted")
    assert any("mind the schedule" in note.text for note in demo.store.unseen_notes(demo.id))
    page.click("text=Pause")
    page.wait_for_selector("#said >> text=pauses after the running experiment")
    asked = demo.store.last_control(demo.id, ("pause", "stop"))
    assert asked is not None and asked.kind == "pause"
    page.click(f"a[href='/s/{demo.tag}/lineage']")  # the token goes with its tab
    page.wait_for_selector("#asks", state="visible")
    page.click("#asks >> text=Stop")
    page.click("#sure >> text=Cancel")
    asked = demo.store.last_control(demo.id, ("stop", "stop_now"))
    assert asked is None


# ---------------------------------------------------------------------- foreign text
def test_nothing_that_a_model_a_log_or_a_file_name_holds_is_run(page: Any, tmp_path: Path) -> None:
    with Demo(tmp_path / "hostile", "evil") as demo:
        hostile_task = json.dumps({"name": HOSTILE, "scoring": {"metric": HOSTILE, "direction": "minimize"}})
        demo.baseline()
        diff = f"--- a/{HOSTILE}.py\n+++ b/{HOSTILE}.py\n@@ -1 +1,2 @@ {HOSTILE}\n-{HOSTILE}\n+{HOSTILE}\n"
        diff += f"+x = '{HOSTILE}'\n"
        with open_store(layout.database_path(demo.root)) as store:
            number = demo.experiment(
                HOSTILE, Status.KEEP, values=[0.99], diff=diff, reason=HOSTILE, hypothesis=f"because {HOSTILE}",
                policy=HOSTILE, role=HOSTILE, changes={HOSTILE: 1}, gain=0.01,
            )  # fmt: skip
            e = store.open_experiment(demo.id, parent="0" * 40, segment=0, at=demo.now)
            messages = ({"role": HOSTILE, "content": HOSTILE}, {"role": "user", "content": [{"text": HOSTILE}]})
            said = Answer(HOSTILE, Cost(None, 1, 1, 1.0), Generation(messages, HOSTILE), error=HOSTILE)
            store.record_answer(demo.id, e.number, said, demo.now)
            proposal = Proposal(
                {}, HOSTILE, HOSTILE, description=HOSTILE, asi=ASI(extra={HOSTILE: [HOSTILE], "items": 1})
            )
            store.record_proposal(demo.id, e.number, proposal, diff=diff, code_hash="x")
            store.record_commit(demo.id, e.number, "e" * 40)
            run = store.open_run(demo.id, e.number, 1, demo.now)
            store.record_look(
                run.id, {"progress": 0.5, "forecast": 1.0, "sentence": HOSTILE, "low": HOSTILE, "bar": None}
            )
            store.set_state(demo.id, SessionState.RUNNING, demo.now, pid=1, reason=HOSTILE)
        demo.log(e.number, [0.1, 0.2], f"{HOSTILE}\n\x1b]0;owned\x07{HOSTILE}\n")
        (layout.run_dir(demo.root, "evil", e.number, 0) / "<img src=x onerror=alarm(1)>.log").write_text(HOSTILE)
        execute(layout.database_path(demo.root), "UPDATE session SET task_json = ?", hostile_task)
        with serving(demo.root) as server:
            for path in ("/", *(f"/s/evil{tab}" for tab in TABS), f"/s/evil/x/{number}", f"/s/evil/x/{e.number}",
                         "/s/evil/experiments?text=<script>alarm(1)</script>",
                         "/s/<script>alarm(1)<script>"):  # fmt: skip
                go(page, server, path)
                page.locator("details").evaluate_all("(all) => { for (const one of all) one.open = true; }")
                assert page.locator("main script, main iframe, main img").count() == 0
                if "/x/" in path:
                    page.wait_for_selector(".diff")
                    assert "<script>alarm('script')</script>" in page.inner_text("main")
                    assert "\u202e" not in page.content() and "\x1b" not in page.content()
            assert page.alarms == []


# ---------------------------------------------------------------------- many, small, and for everybody
def test_ten_thousand_experiments_stay_smooth(page: Any, tmp_path: Path) -> None:
    with Demo(tmp_path / "many") as many:
        many.baseline()
        many.night(12)
        multiply(many, 10_000)
        with serving(many.root) as server:
            go(page, server, f"/s/{many.tag}")
            assert "10,000" in page.inner_text("#facts")
            assert page.evaluate("document.querySelectorAll('#progress svg *').length") < 3000
            go(page, server, f"/s/{many.tag}/experiments")
            page.click("a[rel=last]")
            page.wait_for_selector("#row-0")
            page.click("th >> text=Value")
            page.wait_for_selector("th[aria-sort=descending] >> text=Value")
            page.fill("#f-text", "#9999")
            page.wait_for_selector("#results tbody tr:only-child")
            page.click("#row-9999 a")
            page.wait_for_selector("text=Change")
            go(page, server, f"/s/{many.tag}/lineage")
            assert page.locator(".tree li").count() <= 200
    assert page.alarms == []


def test_nothing_is_in_the_way_of_anybody(browser: Any, server: Server, demo: Demo) -> None:
    """axe-core in the light theme, of the richest pages the colours of the dark one, and no page wider than a phone."""
    overview, rich = f"/s/{demo.tag}", f"/s/{demo.tag}/x/{next(n for n, fate in keeps(demo).items() if fate and n)}"
    desk, phone = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
    with browser.new_context(color_scheme="light", viewport=desk, reduced_motion="reduce") as context:
        page, found = watched(context), []

        def look(scheme: str, options: str) -> None:
            for one in page.evaluate(f"axe.run({options})")["violations"]:
                places = [node["html"][:160] for node in one["nodes"]][:4]
                found.append((path, scheme, one["id"], places, one["nodes"][0]["failureSummary"]))

        for path in ("/", *(overview + tab for tab in TABS), rich, f"/s/{demo.tag}/x/19", "/s/none"):
            go(page, server, path, token=True)
            page.evaluate(AXE.read_text())
            if path == overview:
                page.wait_for_selector(".panel canvas")
                page.keyboard.press("?")
                page.wait_for_selector("#keys[open]")
            look("light", "{ resultTypes: ['violations'] }")
            if path in (overview, rich):
                page.emulate_media(color_scheme="dark")
                look("dark", "{ runOnly: ['color-contrast'] }")
                page.emulate_media(color_scheme="light")
            page.set_viewport_size(phone)
            if path == overview:
                page.wait_for_selector("#progress svg[viewBox^='0 0 400 ']")  # drawn for this width, not scaled down
            wait_until(lambda: page.evaluate("document.documentElement.scrollWidth") <= 390)  # curves are drawn anew
            page.set_viewport_size(desk)
        assert found == [], "\n".join(map(str, found))
        assert page.alarms == []


def test_a_keyboard_is_enough(page: Any, server: Server, demo: Demo) -> None:
    go(page, server, f"/s/{demo.tag}")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for key, tail in (("3", "/lineage"), ("s", "/")):
        page.keyboard.press(key)
        page.wait_for_url(re.compile(re.escape(tail) + "$"))
        page.wait_for_selector("body[data-ready]")
    go(page, server, f"/s/{demo.tag}/x/3")
    page.keyboard.press("]")
    page.wait_for_url("**/x/4")
    page.wait_for_selector("body[data-ready]")
    page.keyboard.press("?")
    page.uncheck("#keys-on")
    page.keyboard.press("Escape")
    page.keyboard.press("[")
    page.keyboard.press("s")
    assert page.url.endswith("/x/4"), "whoever dictates can turn single keys off"


# ---------------------------------------------------------------------- a real one
def test_a_real_session_is_shown_from_nothing_to_its_end(page: Any, tmp_path: Path) -> None:
    root = tmp_path / "real"
    root.mkdir()
    (root / "train.py").write_text(PROGRAM)
    (root / "task.yaml").write_text(TASK)
    git = shutil.which("git") or "git"
    for command in (["init", "-q", "-b", "main"], ["add", "-A"],
                    ["-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-qm", "start"]):  # fmt: skip
        subprocess.run([git, *command], cwd=root, check=True)
    with serving(root) as server:
        go(page, server, "/")
        page.wait_for_selector("text=No session yet")
        start = [sys.executable, "-m", "autoresearchd", "start", "--policy", "search", "--max-experiments", "1",
                 "--tag", "real", "--foreground", "--seed", "4"]  # fmt: skip
        subprocess.run(start, cwd=root, check=True, capture_output=True)
        page.click("#sessions >> text=real")
        page.wait_for_selector(".state.stopped")
        page.wait_for_selector("#newest #row-1")
        assert page.locator("#progress svg").count() == 1 and page.locator("#slots svg").count() == 1
        page.click("#row-1 a")
        page.wait_for_selector(".diff tr.add")
        assert "score:" in page.inner_text(".log >> nth=0")
    assert page.alarms == []
