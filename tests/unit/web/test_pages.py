"""The page's server without a browser: who may read and ask, wrong addresses, and what its answers carry."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from autoresearchd.app.project import Project
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.labels import SessionState, Status
from autoresearchd.loop.upkeep.session_lock import SessionLock
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema import tables as t
from autoresearchd.web.rendering import diff_lines, environment
from autoresearchd.web.security import TOKEN_HEADER
from autoresearchd.web.server import Server
from autoresearchd.web.views import tree
from autoresearchd.workspace import layout
from tests.browser.serving import serving
from tests.fakes.stores import open_store
from tests.timing import wait_until
from tests.unit.cli.conftest import Command, add_hybrid, add_session, command
from tests.unit.learner.sessions import make_root

__all__ = ["command"]

ASKS = (("note", {"text": "try the schedule"}), ("ask", {"kind": "pause"}), ("ask", {"kind": "stop"}))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_root(tmp_path_factory.mktemp("repository"))
    add_session(folder, "mar8")
    return folder


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    with serving(root) as found:
        yield found


@pytest.fixture
def page(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        yield client


def store_of(root: Path) -> SqlStore:
    return open_store(layout.database_path(root))


def asking(server: Server, **more: str) -> dict[str, str]:
    return {TOKEN_HEADER: server.site.token, "content-type": "application/json", **more}


# ---------------------------------------------------------------------- reading
@pytest.mark.parametrize("path", ["/", "/s/mar8", "/s/mar8/experiments", "/s/mar8/lineage", "/s/mar8/insights",
                                  "/s/mar8/learner", "/s/mar8/x/0", "/s/mar8/x/1", "/s/mar8/x/3"])  # fmt: skip
def test_every_page_is_there_and_lets_nothing_foreign_run(page: httpx.Client, path: str) -> None:
    answer = page.get(path)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy and answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer" and answer.headers["cache-control"] == "no-store"
    assert " style=" not in answer.text and "<script>" not in answer.text and " onclick" not in answer.text
    assert "\x1b" not in answer.text and "\u202e" not in answer.text


def test_the_page_tells_what_a_hybrids_model_did(tmp_path: Path) -> None:
    add_hybrid(root := make_root(tmp_path / "r"))
    with serving(root) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as page:
        assert "local:m: 2 turns of 7: 1 used, 1 passed · 1 kept · 12 s" in page.get("/s/mixed/insights").text


def test_a_name_that_was_rebound_to_this_machine_reads_nothing(page: httpx.Client, server: Server) -> None:
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", "[::1", ""):
        answer = page.get("/s/mar8", headers={"host": host})
        assert answer.status_code == 421 or (answer.status_code == 400 and not host), host
        assert "mar8" not in answer.text
    for host in ("localhost:9000", "127.0.0.1", "[::1]:80"):
        assert page.get("/s/mar8", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(("path", "code", "words"), [
    ("/s/none", 404, "there is no session"), ("/s/../etc/passwd", 404, "Not Found"),
    ("/s/mar8/x/99", 404, "no experiment 99"),
    ("/s/mar8/x/-1", 404, "no number"), ("/s/mar8/x/99999999999999999999", 404, "no number"),
    ("/s/mar8/x/1e3", 404, "no number"), ("/s/mar8/x/%00", 404, "no number"), ("/s/%00/x/1", 404, "no session"),
    ("/s/mar8/experiments?sort=;drop", 400, "no column"), ("/s/mar8/experiments?status=won", 400, "no status"),
    ("/s/mar8/experiments?label=<b>", 400, "no label"), ("/s/mar8/experiments?page=0", 400, "no page"),
    ("/s/mar8/experiments?page=-3", 400, "no page"), ("/s/mar8/experiments?page=99999999999999999999", 400, "no page"),
    ("/static/../server.py", 404, "Not Found"), ("/static/%2e%2e/server.py", 404, "Not Found"),
    ("/nothing", 404, "Not Found"),
])  # fmt: skip
def test_a_wrong_address_is_answered_in_words(page: httpx.Client, path: str, code: int, words: str) -> None:
    answer = page.get(path)
    assert (answer.status_code, words in answer.text) == (code, True), answer.text[-900:]
    assert "Traceback" not in answer.text and "<b>" not in answer.text.split("<main")[-1]


@pytest.mark.parametrize(("query", "numbers"), [
    ("", [4, 3, 2, 1, 0]), ("sort=experiment", [0, 1, 2, 3, 4]), ("sort=metric", [2, 1, 4, 0, 3]),
    ("sort=-metric", [0, 4, 1, 2, 3]), ("status=crash", [3]), ("label=no_gain", [4, 2]), ("text=WARMUP", [2]),
    ("text=%232", [2]), ("text=5%25", [2]), ("text=%25", [2]), ("text=_", [4]), ("text=zzz", []),
    ("page=9", [4, 3, 2, 1, 0]),
    ("status=open", []), ("text=batch+131k", [3]), ("text=5", [2, 1]), ("text=4", [4, 1]),
])  # fmt: skip
def test_the_table_is_filtered_and_sorted(page: httpx.Client, query: str, numbers: list[int]) -> None:
    text = page.get(f"/s/mar8/experiments?{query}").text
    assert [int(part.split('"')[0]) for part in text.split('<tr id="row-')[1:]] == numbers


def test_the_curves_are_json(page: httpx.Client) -> None:
    assert page.get("/s/mar8/live?experiment=1").json() == []
    assert page.get("/s/mar8/x/1/curves").json() == []
    for path in ("/s/none/live?experiment=1", "/s/none/x/1/curves", "/s/mar8/live?experiment=x", "/s/mar8/live"):
        answer = page.get(path)
        words = "there is no" if "none" in path else "no number"
        assert answer.status_code == 404 and words in answer.json()["error"]


def test_code_that_comes_back_leads_to_the_keep_that_removed_it(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    add_session(root, "mar8")
    with store_of(root) as store, store._db.write() as c:
        for number, diff in ((1, "-x = norm(x, '<b>')\n"), (4, "+x = norm(x, '<b>')\n")):
            of_it = update(t.proposal_bodies).filter_by(session_id=store.session("mar8").id, number=number)
            assert c.execute(of_it.values(diff=diff)).rowcount == 1
    with serving(root) as found, httpx.Client(base_url=f"http://127.0.0.1:{found.port}", timeout=60) as client:
        told = "had removed: <code>x = norm(x, &#39;&lt;b&gt;&#39;)</code>"
        assert f'<a href="/s/mar8/x/1">#1</a> {told}' in client.get("/s/mar8/x/4").text
        assert "Re-added code" not in client.get("/s/mar8/x/1").text


def test_a_repository_without_a_session_says_what_to_do(tmp_path: Path) -> None:
    root = make_root(tmp_path / "empty")
    with serving(root) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as page:
        empty = page.get("/")
        assert empty.status_code == 200 and "autoresearchd start --task autoresearch" in empty.text
        assert page.get("/s/any").status_code == 404
        add_session(root, "first")  # it was begun meanwhile
        assert "/s/first" in page.get("/").text


def test_a_database_that_cannot_be_read_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    root = make_root(tmp_path / "damaged")
    database = layout.database_path(root)
    database.parent.mkdir(parents=True)
    database.write_bytes(b"not a database at all" * 500)
    with serving(root) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as page:
        answer = page.get("/")
    assert answer.status_code == 503 and "doctor --repair" in answer.text


# ---------------------------------------------------------------------- asking
@pytest.mark.parametrize(("path", "asked"), ASKS)
def test_without_the_token_nothing_is_written(
    page: httpx.Client, server: Server, root: Path, path: str, asked: dict[str, str]
) -> None:
    with store_of(root) as store:
        session = store.session("mar8").id
        before = len(store.unseen_notes(session)), store.last_control(session, ("pause", "stop"))
        token = server.site.token
        foreign = [
            {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://[::1"},
            {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
        ]  # fmt: skip
        wrong: list[dict[str, str]] = [
            {}, {TOKEN_HEADER: ""}, {TOKEN_HEADER: token[:-1]}, {TOKEN_HEADER: token + "x"}, {TOKEN_HEADER: "ä"},
            {"cookie": f"{TOKEN_HEADER}={token}"}, *({TOKEN_HEADER: token, **more} for more in foreign),
        ]  # fmt: skip
        for given in wrong:
            headers = {k: v.encode() for k, v in given.items()}
            answer = page.post(f"/s/mar8/{path}", json=asked, headers=headers)  # type: ignore[arg-type]
            assert answer.status_code == 403 and "token" in answer.json()["error"], given
        assert page.get(f"/s/mar8/{path}").status_code == 405
        assert before == (len(store.unseen_notes(session)), store.last_control(session, ("pause", "stop")))


def test_with_the_token_a_note_reaches_the_agent_and_a_pause_the_daemon(
    page: httpx.Client, server: Server, root: Path
) -> None:
    own = asking(server, origin=f"http://127.0.0.1:{server.port}", **{"sec-fetch-site": "same-origin"})
    assert page.get("/token", headers=own).status_code == 204 and page.get("/token").status_code == 403
    told = page.post("/s/mar8/note", json={"text": " try the schedule "}, headers=own)
    assert told.status_code == 200 and "noted" in told.json()["done"]
    stopped = page.post("/s/mar8/ask", json={"kind": "pause"}, headers=own)
    assert "nothing is running" in stopped.json()["done"]
    with SessionLock(layout.lock_path(root, "mar8"), "mar8") as lock:
        lock.ready()
        answer = page.post("/s/mar8/ask", json={"kind": "pause"}, headers=own)
        assert answer.status_code == 200 and f"process {os.getpid()}" in answer.json()["done"]
    with store_of(root) as store:
        session = store.session("mar8").id
        assert [note.text for note in store.unseen_notes(session)] == ["try the schedule"]
        asked = store.last_control(session, ("pause",))
        assert asked is not None and asked.kind == "pause"


@pytest.mark.parametrize(("path", "body", "code"), [
    ("note", b"{}", 400), ("note", b'{"text": "  "}', 400), ("note", b'{"text": 7}', 400), ("note", b"[1]", 400),
    ("note", b"text=hello", 400), ("note", b'{"text": "' + b"x" * 5000 + b'"}', 400), ("note", b"x" * 70_000, 413),
    ("note", b"\xff\xfe", 400), ("ask", b'{"kind": "remove"}', 400), ("ask", b'{"kind": ["stop"]}', 400),
    ("ask", b"[" * 5000, 400),
])  # fmt: skip
def test_what_cannot_be_asked_is_refused_in_words(
    page: httpx.Client, server: Server, path: str, body: bytes, code: int
) -> None:
    answer = page.post(f"/s/mar8/{path}", content=body, headers=asking(server))
    assert (answer.status_code, bool(answer.json()["error"])) == (code, True)


def test_a_form_of_a_foreign_page_could_not_even_say_it(page: httpx.Client, server: Server) -> None:
    headers = asking(server) | {"content-type": "text/plain"}
    assert page.post("/s/mar8/note", content=b'{"text": "x"}', headers=headers).status_code == 415
    assert page.post("/s/none/note", json={"text": "x"}, headers=asking(server)).status_code == 400


# ---------------------------------------------------------------------- events, and the command
def test_events_come_as_the_store_changes_and_not_for_a_heartbeat(
    root: Path, server: Server, page: httpx.Client
) -> None:
    with store_of(root) as store, page.stream("GET", "/events?session=mar8") as stream:
        lines = stream.iter_lines()
        first = next(line for line in lines if line.startswith("data: "))
        session = store.session("mar8")
        store.heartbeat(session.id, session.started_at, 1.0)
        store.set_state(session.id, SessionState.STOPPED, session.started_at, pid=None, reason="a new reason")
        second = next(line for line in lines if line.startswith("data: "))
        assert first != second
        assert f'data-version="{second.removeprefix("data: ")}"' in page.get("/s/mar8").text
        with SessionLock(layout.lock_path(root, "mar8"), "mar8") as lock:
            came = next(line for line in lines if line.startswith("data: "))
            lock.waits("the disk is full")  # which no database can be told
            assert next(line for line in lines if line.startswith("data: ")) != came
            assert "the disk is full" in page.get("/s/mar8").text


def test_a_port_in_use_or_out_of_range_is_an_error_with_a_way_out(
    command: Command, server: Server, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    taken = command("web", "--port", str(server.port))
    assert taken.code == 2 and f"port {server.port} of 127.0.0.1 is in use" in taken.err and "--port" in taken.err
    for port in ("0", "-1", "65536", "99999999999999999999", "http"):
        wrong = command("web", "--port", port)
        assert wrong.code == 2 and "--port" in wrong.err, port
    unknown = command("web", "--session", "none")
    assert unknown.code == 2 and "mar8" in unknown.err
    with closing(socket.socket()) as other, pytest.raises(UsageError, match="in use"):
        other.bind(("127.0.0.1", 0))
        other.listen()
        Server(Project.at(root), other.getsockname()[1])


def test_the_command_prints_an_address_that_may_ask_and_ends_with_control_c(root: Path) -> None:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "autoresearchd", "web", "--port", port, "--session", "mar8"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=root, **pipes) as process:  # type: ignore[call-overload]
        address, _, token = process.stdout.readline().strip().partition("#token=")
        assert address == f"http://127.0.0.1:{port}/s/mar8"
        given = {TOKEN_HEADER: token}
        answer = wait_until(lambda: answered(f"http://127.0.0.1:{port}/token", given))
        assert answer.status_code == 204
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130 and "Traceback" not in process.stderr.read()


def answered(address: str, headers: dict[str, str]) -> httpx.Response | None:
    try:
        return httpx.get(address, headers=headers, timeout=60)
    except httpx.TransportError:  # it is not up yet
        return None


def test_the_page_is_of_this_machine_alone(server: Server) -> None:
    address = server.address("/s/mar8")
    assert address.startswith(f"http://127.0.0.1:{server.port}/s/mar8#token=") and len(server.site.token) >= 40


# ---------------------------------------------------------------------- parts
@pytest.mark.parametrize(("percent", "words"), [
    (0.0, "no change"), (-0.0, "no change"), (0.704, "0.704% better"), (-1.5, "1.50% worse"), (None, ""),
])  # fmt: skip
def test_a_gain_of_nothing_is_not_called_worse(percent: float | None, words: str) -> None:
    template = environment().from_string('{% from "parts.html" import change %}{{ change(percent)|striptags }}')
    assert template.render(percent=percent).strip() == words


def test_a_telephone_gets_a_chart_with_its_legend_also_after_the_cards_were_drawn(page: httpx.Client) -> None:
    assert "Discarded (" not in page.get("/").text
    assert "Discarded (" in page.get("/s/mar8?narrow").text


def test_a_diff_is_read_with_its_numbers_whatever_is_in_it() -> None:
    diff = "--- a/x.py\n+++ b/x.py\n@@ -3,3 +3,3 @@ def f():\n a = 1\n--- b\n+++ '<script>'\n c = 3\n"
    diff += "--- a/y<b>.py\n+++ b/y<b>.py\n@@ -1 +1 @@\n-old\n+new\n\\ No newline at end of file\n"
    found = [(line.kind, line.old, line.new) for line in diff_lines(diff)]
    assert found == [
        ("file", None, None), ("hunk", None, None), ("same", 3, 3), ("del", 4, None), ("add", None, 4), ("same", 5, 5),
        ("file", None, None), ("hunk", None, None), ("del", 1, None), ("add", None, 1), ("hunk", None, None),
    ]  # fmt: skip
    html = "".join(line.html for line in diff_lines(diff))
    assert "<script>" not in html and "<b>" not in html and 'class="t-s"' in html
    made = "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+x\n--- a/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    assert [str(line.html) for line in diff_lines(made) if line.kind == "file"] == ["new.py (new)", "old.py (deleted)"]
    assert diff_lines("") == [] and diff_lines("no diff at all\n@@ broken @@") == []
    assert len(diff_lines("+++ b/x.py\n@@ -1 +1,99999 @@\n" + "+x = 1\n" * 9000)) < 5000


def test_a_tree_of_parents_that_lead_in_a_circle_or_nowhere_is_drawn() -> None:
    def point(number: int, parent: str, **more: Any) -> dict[str, Any]:
        base = {
            "experiment": number,
            "status": "keep",
            "label": "",
            "metric": 1.0,
            "confirmed": True,
            "commit": f"c{number}",
        }
        return {**base, "parent": parent, "description": "", **more}

    points = [point(0, "c2"), point(1, "c0"), point(2, "c1", status=Status.DISCARD), point(3, "nowhere", commit=None)]
    programs, left_out = tree(points, 1)
    assert [(one["experiment"], one["depth"], one["parent_number"]) for one in programs] == [
        (0, 0, None), (1, 0, 0), (3, 1, None)
    ]  # fmt: skip
    assert left_out == 0 and json.dumps(programs[1]["tried"]) == '"1 discarded"'
    assert tree([], None) == ([], 0)

    discard = {"parent": "c1", "status": Status.DISCARD}
    again = point(3, "c1", commit="c1", segment=1)  # what was confirmed is the baseline under other conditions
    points = [point(0, ""), point(1, "c0"), point(2, **discard), again, point(4, segment=1, **discard)]
    programs, _ = tree(points, 3)
    assert [(one["experiment"], one["parent_number"], one["baseline"], one["tried"]) for one in programs] == [
        (0, None, True, ""), (1, 0, False, "1 discarded"), (3, 1, True, "1 discarded")
    ]  # fmt: skip
