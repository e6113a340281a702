"""Hooks and notifications: the user's own tools hear of experiments, and whatever they do, research goes on."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.app import observers
from autoresearchd.app.observers import Hooks, Notifier, Observed, Target, targets_of
from autoresearchd.config.settings import NotifySettings
from autoresearchd.domain.errors import ConfigError, EnvironmentFailure, PolicyError
from autoresearchd.domain.ports import Cancel, Event, EventKind, ResearchState
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.redaction import Redactor
from tests.fakes.bench import Bench

NEVER = threading.Event()


class Told:
    """What the log gets to know."""

    def __init__(self) -> None:
        self.lines: list[tuple[EventKind, str]] = []

    def __call__(self, kind: EventKind, text: str) -> None:
        self.lines.append((kind, text))

    def __str__(self) -> str:
        return "\n".join(f"{kind}: {text}" for kind, text in self.lines)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def observed(bench: Bench) -> Observed:
    return Observed("t", "toy", bench.state / "state.db", bench.root)


def hooks(bench: Bench, told: Told, before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> Hooks:
    def note(text: str, number: int | None) -> None:
        made = bench.store.add_note(bench.session.id, text, datetime.now(UTC))
        if number is not None:
            bench.store.mark_notes_seen(bench.session.id, [made.id], number)

    return Hooks(observed(bench), before, after, Redactor(["s3cret-value-1"]), told, note)


class Noting:
    """Remembers the notes that it was shown."""

    name, repairs = "scripted", 0

    def __init__(self, bench: Bench) -> None:
        self._policy, self.notes = bench.policy, dict[int, tuple[str, ...]]()

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        self.notes[state.number] = state.notes
        return self._policy.propose(state, cancel)  # type: ignore[no-any-return]


def run_with(bench: Bench, made: Hooks, experiments: int = 2) -> Noting:
    policy = Noting(bench)
    bench.policy = made.around(policy)
    after, emit = threading.Event(), bench.events.emit

    def both(event: Event) -> None:
        emit(event)
        made.emit(event)
        after.set()

    bench.events.emit = both
    bench.run(experiments)
    made.close()
    return policy


def test_what_hooks_say_is_in_the_next_prompt_once_and_in_the_journal(bench: Bench) -> None:
    told = Told()
    before = 'read -r line; echo "$line" >> asked; echo "try a larger batch; key s3cret-value-1"'
    made = hooks(bench, told, before=(before,), after=("cat >> ran; echo after",))
    policy = run_with(bench, made)
    for number in (1, 2):
        [said] = [note for note in policy.notes[number] if "larger batch" in note]
        assert "s3cret" not in said
    asked = [json.loads(line) for line in (bench.root / "asked").read_text().splitlines()]
    assert [(one["event"], one["next_run"], one["experiment"]) for one in asked] == [("before", 2, 1), ("before", 3, 2)]
    assert asked[1]["last_run"]["experiment"] == 1 and asked[0]["session"]["direction"] == "lower"
    decoder, text, ran = json.JSONDecoder(), (bench.root / "ran").read_text(), []
    while text:
        one, end = decoder.raw_decode(text)
        ran.append((one["event"], one["run_entry"]["experiment"], one["run_entry"]["status"]))
        text = text[end:]
    assert ran == [("after", n, bench.experiment(n).decision.status) for n in (0, 1, 2)]
    assert [kind for kind, _ in told.lines] == [EventKind.HOOK] * 5, str(told)
    assert [note.text for note in bench.store.unseen_notes(bench.session.id)][-1] == "A hook says: after"


def test_hooks_that_fail_or_hang_are_told_and_cost_no_experiment(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observers, "HOOK_S", 0.2)
    told = Told()
    made = hooks(bench, told, before=("sleep 600",), after=("echo lost; echo bad luck >&2; exit 3", "/no/such/hook"))
    policy = run_with(bench, made, 4)
    assert set(policy.notes.values()) == {()}
    assert len(bench.experiments()) == 5 and all(e.decision for e in bench.experiments())
    text = str(told)
    assert text.count("did not end in 0 s") == observers.GIVEN_UP_AFTER and "given up" in text
    assert text.count("ended with exit code 3") == 5 and "bad luck" in text and "exit code 127" in text


def test_a_tool_that_cannot_be_started_is_called_what_it_is(bench: Bench, tmp_path: Path) -> None:
    told, gone = Told(), Observed("t", "toy", bench.state / "state.db", tmp_path / "gone")
    made = Hooks(gone, ("echo a",), (), Redactor([]), told, lambda text, number: None)
    run_with(bench, made, 1)
    told_of = Notifier(gone, [Target(NotifySettings(command="true"))], told)
    told_of.emit(event(EventKind.LEARNED, "learned"))
    told_of.close()
    assert "hook before #1 `echo a` could not be started" in str(told)
    assert "`true` could not be told of `learner`: the command could not be started" in str(told)
    assert "of the policy" not in str(told)


def test_the_output_of_a_hook_has_an_end() -> None:
    text = observers._cut("é" * 30 + "\n" + "x" * 9000 + "\nlast", observers.HOOK_BYTES)
    assert text == "é" * 30 + "\n[cut]"
    assert len(observers._cut("é" * 9000, observers.HOOK_BYTES).encode()) <= observers.HOOK_BYTES


# ---------------------------------------------------------------------- notifications
class Inbox:
    """A webhook of the user's own; answers with ``status``, or not before ``release`` is set."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.headers: list[Any] = []
        self.status, self.fails, self.release = 200, 0, threading.Event()
        self.release.set()
        inbox = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                inbox.bodies.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
                inbox.headers.append(dict(self.headers))
                inbox.release.wait()
                inbox.fails -= 1
                self.send_response(503 if inbox.fails >= 0 else inbox.status)
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.end_headers()

            def log_message(self, *given: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/T0KEN"

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    made = Inbox()
    yield made
    made.close()


def event(kind: EventKind, message: str = "", number: int | None = None, **data: Any) -> Event:
    return Event(kind, datetime.now(UTC), message, number, data)


def notifier(targets: list[Target], told: Told, root: Path) -> Notifier:
    return Notifier(Observed("t", "toy", root / "state.db", root), targets, told)


def test_each_kind_of_news_is_told_once_to_those_who_want_it(inbox: Inbox, tmp_path: Path) -> None:
    told = Told()
    wants = Target(NotifySettings(url_file="hook"), inbox.url)
    only = Target(NotifySettings(command='cat >> "$AUTORESEARCHD_EVENT"', on=("ended",)))
    made = notifier([wants, only], told, tmp_path)
    made.emit(event(EventKind.CONFIRMED, "fell", 3, better=False))
    made.emit(event(EventKind.CONFIRMED, "score 1 → 0.5", 4, better=True))
    for _ in range(7):
        made.emit(event(EventKind.DECIDED, "crash (oom)", 5, status="crash"))
    for _ in range(observers.STALLED):
        made.emit(event(EventKind.DECIDED, "discard", 6, status="discard"))
    for _ in range(2):
        made.emit(event(EventKind.BACKING_OFF, "waiting 10 min: disk full", seconds=600.0))
    made.emit(event(EventKind.BACKING_OFF, "cap of the day", seconds=600.0, limit=True))
    made.emit(event(EventKind.LEARNED, "learned in 3 min: v4 promoted"))
    made.emit(event(EventKind.WARNING, "nothing to tell"))
    made.emit(event(EventKind.SESSION_STOPPED, "stopped: 40 experiments done", limit=True))
    made.close()
    found = [json.loads(body) for body in inbox.bodies]
    assert [one["event"] for one in found] == [
        "confirmed", "crash_loop", "stall", "stall", "budget", "learner", "budget"
    ]  # fmt: skip
    assert found[0] | {"at": "", "host": ""} == {
        "event": "confirmed", "session": "t", "task": "toy", "experiment": 4, "message": "score 1 → 0.5",
        "at": "", "host": "",
    }  # fmt: skip
    assert json.loads((tmp_path / "budget").read_text())["message"] == "stopped: 40 experiments done"
    assert not told.lines


def test_a_session_that_is_at_its_limit_is_no_news_at_each_boot(inbox: Inbox, tmp_path: Path) -> None:
    ends: list[dict[str, Any]] = [{"limit": True}, {"limit": False}]
    for data in ends:
        made = notifier([Target(NotifySettings(url_file="hook"), inbox.url)], Told(), tmp_path)
        made.emit(event(EventKind.SESSION_RESUMED, "resumed"))
        made.emit(event(EventKind.SESSION_STOPPED, "stopped", **data))
        made.close()
    assert [json.loads(body)["event"] for body in inbox.bodies] == ["ended"], "what is no limit is told"
    made = notifier([Target(NotifySettings(url_file="hook"), inbox.url)], Told(), tmp_path)
    for kind in (EventKind.SESSION_RESUMED, EventKind.BACKING_OFF):
        made.emit(event(kind, "no reply"))
    made.emit(event(EventKind.SESSION_STOPPED, "8 hours are over", limit=True))
    made.close()
    assert "8 hours" in inbox.bodies[-1], "a night of waiting is news"


def test_what_models_wrote_calls_nobody_in_a_chat(inbox: Inbox, tmp_path: Path) -> None:
    forms: list[Any] = ["slack", "discord", "text"]
    made = notifier([Target(NotifySettings(url_file="h", format=form), inbox.url) for form in forms], Told(), tmp_path)
    made.emit(event(EventKind.CONFIRMED, "<!channel> @everyone\x1b[31m\nX-Evil: 1", 4, better=True))
    made.close()
    slack, discord, text = inbox.bodies
    assert "&lt;!channel&gt;" in json.loads(slack)["text"]
    assert json.loads(discord)["allowed_mentions"] == {"parse": []}
    assert text.startswith("toy t: confirmed: ") and "\x1b" not in text and "\n" not in text


def test_a_place_that_fails_hangs_or_sends_elsewhere_holds_nothing_up_and_its_address_stays_secret(
    inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "MOST_WAITING", 2)
    told = Told()
    inbox.status, broken = 302, Target(NotifySettings(url_file="slack-url"), inbox.url)
    dead = Target(NotifySettings(url_file="dead-url"), "http://127.0.0.1:9/T0KEN")
    made = notifier([broken, dead], told, tmp_path)
    inbox.release.clear()
    for _ in range(20):  # returns each time, though nobody answers
        made.emit(event(EventKind.LEARNED, "learned"))
    inbox.release.set()
    made.close()
    text = str(told)
    assert "slack-url could not be told of `learner`: HTTP 302" in text
    assert text.count("could not be told") <= 2, "said when it begins to fail"
    assert "left out" in text and "T0KEN" not in text


def test_news_survive_a_hiccup_of_their_place(inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observers, "RETRIES_S", (0.0, 0.0, 0.0))
    told, inbox.fails = Told(), 2
    made = notifier([Target(NotifySettings(url_file="hook"), inbox.url)], told, tmp_path)
    made.emit(event(EventKind.SESSION_STOPPED, "stopped"))
    made.close()
    assert len(inbox.bodies) == 3 and not told.lines


@pytest.mark.parametrize(
    "text",
    ["https://me:hunter2pw77@host/x", "", "file:///etc/passwd\n", "ftp://host/x", "https://host/a b", "no address"],
)
def test_an_address_that_is_none_is_refused_without_being_shown(text: str, tmp_path: Path) -> None:
    (tmp_path / "url").write_text(text)
    with pytest.raises(ConfigError) as caught:
        targets_of([NotifySettings(url_file=str(tmp_path / "url"))])
    assert "webhook" in caught.value.hint and (not text.strip() or text.strip() not in str(caught.value))
    with pytest.raises(ConfigError):
        targets_of([NotifySettings(url_file=str(tmp_path / "gone"))])


def test_hooks_run_once_for_an_experiment_whose_model_is_waited_for(bench: Bench) -> None:
    class Away:
        name, repairs, notes = "scripted", 0, list[tuple[str, ...]]()

        def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
            self.notes.append(state.notes)
            raise EnvironmentFailure("no model gave a reply")

    bench.run(0)
    policy, away = hooks(bench, Told(), before=("echo x >> ran; echo a word",)).around(Away()), Away
    for number in (1, 1, 1, 2):
        with pytest.raises(EnvironmentFailure):
            policy.propose(ResearchState("t", number, "c", bench.task, {}), NEVER)
    assert (bench.root / "ran").read_text() == "x\n" * 2
    assert all("a word" in str(notes) for notes in away.notes)


def test_a_policy_that_refuses_is_not_hidden_by_its_hooks(bench: Bench) -> None:
    class Refusing:
        name, repairs = "scripted", 2

        def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
            raise PolicyError("nothing left")

    policy = hooks(bench, Told(), before=("true",)).around(Refusing())
    assert (policy.name, policy.repairs) == ("scripted", 2)
    with pytest.raises(PolicyError, match="nothing left"):
        policy.propose(ResearchState("t", 1, "c", bench.task, {}), NEVER)


def test_hooks_are_told_in_which_segment_a_run_was(bench: Bench) -> None:
    """Values of two segments cannot be compared."""
    bench.run(1)
    now = datetime.now(UTC)
    new = bench.store.open_segment(bench.session.id, "f", "another machine", "", now)
    e = bench.store.open_experiment(bench.session.id, parent="", segment=new.number, at=now)
    told = [observed(bench).facts(number)["last"]["segment"] for number in (1, e.number)]
    assert told == [new.number - 1, new.number]
