"""What of the user's own is called when something happens: hooks around experiments, and who is told of news.

None of it can hold the loop up: a hook before an experiment has 30 s and is given up for the session after three of
them; all else runs on a thread of its own, off a queue with an end. Commands run as the user's own tools, with the
whole environment and not sandboxed: they come from config.yaml, not from a task, which travels with its repository.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import queue
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from autoresearchd.config.settings import NotifySettings
from autoresearchd.domain.cleaning import one_line, printable
from autoresearchd.domain.errors import AutoresearchdError, ConfigError, EnvironmentFailure, Interrupted
from autoresearchd.domain.labels import Status
from autoresearchd.domain.ports import HOOK_SAYS, Cancel, Event, EventKind, Policy, ResearchState
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.redaction import Redactor
from autoresearchd.policy.command_policy import ToolResult, run_tool
from autoresearchd.report.log_files import run_line
from autoresearchd.store import shared
from autoresearchd.store.reader import Reader

HOOK_S, HOOK_BYTES = 30.0, 8 * 1024
GIVEN_UP_AFTER = 3
"""Hooks before an experiment that did not end in time, one after the other."""
RETRIES_S, SOON_S = (0.0, 2.0, 5.0), 3.0
"""Pauses before each try to reach a webhook; one that took longer than the latter is not tried again."""
POST_S, COMMAND_S, LAST_S = 10.0, 30.0, 20.0
"""What a webhook and a command may take, and how long the end of a session waits for what is still to be told."""
MOST_WAITING = 64
CRASHES, STALLED, WAITS_S = 5, 30, 300.0
"""Failed experiments in a row, experiments in a row without a keep, and a wait that are news."""
_FAILED = (Status.CRASH, Status.CHECKS_FAILED)

Tell = Callable[[EventKind, str], None]


class Worker:
    """A thread that does one job after the other; what there is no room for is left out, and counted."""

    def __init__(self, name: str, tell: Tell) -> None:
        self._name, self._tell = name, tell
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._starting, self._dropped = threading.Lock(), 0

    def do(self, job: Callable[[], None]) -> None:
        """Have it done; returns at once."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self._dropped += 1

    def close(self, seconds: float = LAST_S) -> None:
        """Wait for what is left, but not for long."""
        if self._thread is None:
            return
        with_end = threading.Thread(target=self._jobs.put, args=(None,), daemon=True)  # it may be full
        with_end.start()
        self._thread.join(seconds)
        left = self._jobs.qsize() if self._thread.is_alive() else 0
        if left or self._dropped:
            self._tell(
                EventKind.WARNING, f"{self._name}: {left + self._dropped} were left out, as others took too long"
            )

    def join(self, seconds: float) -> None:
        """After ``close``: for what was told to end."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - what it does is for the user's comfort, and must end nothing
                self._tell(EventKind.WARNING, f"{self._name}: {type(error).__name__}: {error}")


def _call(
    command: str, document: Mapping[str, Any], folder: Path, seconds: float, cancel: Cancel,
    variables: Mapping[str, str] = {}, *, called: str = "the command",
) -> ToolResult:  # fmt: skip
    """Run a command of the user's with JSON on its standard input and the whole environment; called: in errors."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="autoresearchd-") as given:
        json.dump(document, given)
        given.flush()
        env = {**os.environ, **variables}
        return run_tool(
            command, cwd=folder, stdin=Path(given.name), env=env, timeout=seconds, cancel=cancel, called=called
        )


# ---------------------------------------------------------------------- hooks
@dataclass(frozen=True, slots=True)
class Observed:
    """The session that is looked at. journal: where its experiments are read."""

    tag: str
    task: str
    journal: Path | shared.Shared
    root: Path

    def facts(self, number: int | None) -> dict[str, Any]:
        """The session, and experiment ``number`` (None: the newest that is decided), as pi-autoresearch has them."""
        with Reader(self.journal) as reader:
            status = reader.status(self.tag)
            if number is None:
                found = [e for e in reader.experiments(self.tag, last=8) if e.get("status")][-1:]
            else:
                found = [reader.show(self.tag, number)]
        metric = status["metric"]
        session = {
            "tag": self.tag, "goal": self.task, "metric_name": metric["name"], "metric_unit": "",
            "direction": "lower" if metric["direction"] == "minimize" else "higher",
            "baseline_metric": metric["baseline"], "best_metric": metric["best"],
            "run_count": status["session"]["experiments"],
        }  # fmt: skip
        lines = [
            {**run_line(e, int(e.get("segment") or 0)), "experiment": e["experiment"], "label": e.get("label") or ""}
            for e in found
        ]
        return {"cwd": str(self.root), "session": session, "last": lines[0] if lines else None}


class Hooks:
    """The user's commands around experiments. note: stores what they say, and in which prompt it is already."""

    def __init__(
        self, observed: Observed, before: Sequence[str], after: Sequence[str], redactor: Redactor, tell: Tell,
        note: Callable[[str, int | None], None],
    ) -> None:  # fmt: skip
        self._observed, self._before, self._after = observed, before, after
        self._redactor, self._tell, self._note = redactor, tell, note
        self._late = 0
        self._ended = threading.Event()
        self._worker = Worker("hooks after experiments", tell)

    def emit(self, event: Event) -> None:
        """A sink: the hooks after an experiment run once it is decided, while the next goes on."""
        if event.kind is EventKind.DECIDED and event.experiment is not None and self._after:
            number = event.experiment
            self._worker.do(lambda: self._run_after(number))

    def close(self) -> None:
        """The session ends: hooks under way are waited for, as long as they may take."""
        self._worker.close(HOOK_S)
        self._ended.set()
        self._worker.join(LAST_S)

    def around(self, policy: Policy) -> Policy:
        """The policy, with the hooks before each of its proposals."""
        return _HookedPolicy(policy, self) if self._before else policy

    def _run_after(self, number: int) -> None:
        facts = self._observed.facts(number)
        event = {"event": "after", "cwd": facts["cwd"], "run_entry": facts["last"], "session": facts["session"]}
        if said := self._run("after", self._after, event, number, self._ended):
            self._note(said, None)

    def before(self, number: int, cancel: Cancel) -> str:
        """What the hooks before an experiment say for its prompt. Raises nothing but Interrupted."""
        if self._late >= GIVEN_UP_AFTER:
            return ""
        try:
            facts = self._observed.facts(None)
            event = {
                "event": "before", "cwd": facts["cwd"], "next_run": number + 1, "experiment": number,
                "last_run": facts["last"], "session": facts["session"],
            }  # fmt: skip
            if said := self._run("before", self._before, event, number, cancel):
                self._note(said, number)
        except Interrupted:
            raise
        except (
            AutoresearchdError,
            OSError,
            KeyError,
        ) as error:  # the store or the disk, which the loop will see itself
            self._tell(EventKind.WARNING, f"hooks before experiment {number}: {error}")
            return ""
        return said

    def _run(self, stage: str, commands: Sequence[str], event: Mapping[str, Any], number: int, cancel: Cancel) -> str:
        """The output of all of them, what fails and what is too long left out; each is written down in the log."""
        said = []
        for command in commands:
            name = f"hook {stage} #{number} `{one_line(command, 60)}`"
            try:
                done = _call(command, event, self._observed.root, HOOK_S, cancel, called=name)
            except EnvironmentFailure as error:  # it could not be started
                self._tell(EventKind.WARNING, error.what)
                continue
            out = self._redactor.text(done.stdout)
            facts = f"{done.duration_s:.1f} s, {len(done.stdout.encode())} bytes"
            if stage == "before":
                self._late = self._late + 1 if done.timed_out else 0
            if done.timed_out or done.exit_code:
                how = f"did not end in {HOOK_S:.0f} s" if done.timed_out else f"ended with exit code {done.exit_code}"
                last = one_line(self._redactor.text(done.stderr).strip().rpartition("\n")[2], 200)
                self._tell(EventKind.WARNING, f"{name} {how} ({facts}), its output is not used. {last}".rstrip())
                if stage == "before" and self._late >= GIVEN_UP_AFTER:
                    what = f"hooks before experiments are given up: {GIVEN_UP_AFTER} in a row took too long"
                    self._tell(EventKind.WARNING, f"{what}; `autoresearchd resume` tries them again")
                    break
                continue
            self._tell(EventKind.HOOK, f"{name}: {facts}")
            said += [text] if (text := printable(out, keep="\n\t", instead="\ufffd").strip()) else []
        return HOOK_SAYS + _cut("\n".join(said), HOOK_BYTES) if said else ""


class _HookedPolicy:
    """Another policy; what the hooks say stands among its notes. Its name is that of the other."""

    def __init__(self, policy: Policy, hooks: Hooks) -> None:
        self._policy, self._hooks, self._said = policy, hooks, (-1, "")
        self.name, self.repairs = policy.name, policy.repairs

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        if state.repair is None and state.number != self._said[0]:  # not again where its models are waited for
            self._said = state.number, self._hooks.before(state.number, cancel)
        if state.repair is None and (said := self._said[1]):
            state = replace(state, notes=(*state.notes, said))
        return self._policy.propose(state, cancel)


def _cut(text: str, most: int) -> str:
    """At most so many bytes, cut at a line where there is one."""
    raw = text.encode()
    if len(raw) <= most:
        return text
    mark = "\n[cut]"
    kept = raw[: most - len(mark)]
    return (kept.rpartition(b"\n")[0] or kept).decode("utf-8", "ignore") + mark


# ---------------------------------------------------------------------- notifications
@dataclass(frozen=True, slots=True)
class Target:
    """Who is told. url: a secret."""

    settings: NotifySettings
    url: str = ""

    @property
    def name(self) -> str:
        """How the log calls it."""
        return Path(self.settings.url_file or "").name if self.url else f"`{one_line(self.settings.command or '', 60)}`"


def targets_of(settings: Sequence[NotifySettings]) -> list[Target]:
    """Who is told, addresses read from their files. ConfigError."""
    return [Target(one, _url(one.url_file) if one.url_file else "") for one in settings]


def _url(file: str) -> str:
    hint = "its first line is the address of a webhook, https://…"
    try:
        with Path(file).open(encoding="utf-8") as stream:
            url = stream.readline(10_000).strip()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the address to notify cannot be read: {error.strerror if isinstance(error, OSError) else error}",
            file=file,
            hint=hint,
        ) from error
    if not (url.isascii() and url.isprintable() and " " not in url and url.startswith(("https://", "http://"))):
        raise ConfigError("this is no http address", file=file, hint=hint)
    if "@" in url.split("/")[2]:
        raise ConfigError(
            "a user's name cannot stand in it", file=file, hint=f"{hint}; or have a `command:` call curl -u"
        )
    return url


class Notifier:
    """A sink that tells the user's own places of news; see docs/agents.md for what is news."""

    def __init__(self, observed: Observed, targets: Sequence[Target], tell: Tell) -> None:
        self._observed, self._targets, self._tell = observed, targets, tell
        self._worker, self._lock = Worker("notifications", tell), threading.Lock()
        self._failed, self._kept = 0, 0
        """Experiments in a row that failed, and that were not kept."""
        self._waits, self._worked = False, False
        self._broken: set[str] = set()

    def emit(self, event: Event) -> None:
        with self._lock:
            news = list(self._news(event))
        for kinds, message in news:
            document = self._document(kinds[0], message, event)
            for target in self._targets:
                if not set(kinds).isdisjoint(target.settings.on):
                    self._worker.do(partial(self._send, target, document))

    def close(self) -> None:
        """Tell what is still to be told, but not for long."""
        self._worker.close()

    def _news(self, event: Event) -> Iterator[tuple[tuple[str, ...], str]]:
        """(of which kinds the news of an event are, the first is how they are called; in words)."""
        data = event.data
        self._worked = self._worked or event.experiment is not None or event.kind is EventKind.BACKING_OFF
        match event.kind:
            case EventKind.CONFIRMED if data.get("better"):
                yield ("confirmed",), event.message
            case EventKind.DECIDED:
                status, self._waits = data.get("status"), False
                self._failed = self._failed + 1 if status in _FAILED else 0
                self._kept = 0 if status == Status.KEEP else self._kept + 1
                if self._failed == CRASHES:
                    yield ("crash_loop",), f"{CRASHES} experiments in a row failed, the last: {event.message}"
                if self._kept and self._kept % STALLED == 0:
                    yield ("stall",), f"nothing was kept in {self._kept} experiments"
            case EventKind.BACKING_OFF if data.get("limit"):
                yield ("budget",), event.message
            case EventKind.BACKING_OFF if float(data.get("seconds") or 0.0) >= WAITS_S and not self._waits:
                self._waits = True
                yield ("stall",), event.message
            case EventKind.LEARNED | EventKind.LEARNER_FAILED:
                yield ("learner",), event.message
            case EventKind.SESSION_STOPPED if data.get("limit") and not self._worked:
                pass  # it was at its limit before, and its user was told then; a service starts it at each boot
            case EventKind.SESSION_STOPPED:
                yield ("budget", "ended") if data.get("limit") else ("ended",), event.message
            case _:
                pass

    def _document(self, kind: str, message: str, event: Event) -> dict[str, Any]:
        observed = self._observed
        return {
            "event": kind,
            "session": observed.tag,
            "task": observed.task,
            "experiment": event.experiment,
            "message": one_line(message, 1000),
            "at": event.at.isoformat(timespec="seconds"),
            "host": platform.node(),
        }

    def _send(self, target: Target, document: Mapping[str, Any]) -> None:
        """Tell one place; that it fails is said when it begins to."""
        for pause in RETRIES_S if target.url and target.name not in self._broken else (0.0,):
            time.sleep(pause)
            began = time.monotonic()
            try:
                trouble = self._post(target, document) if target.url else self._run(target, document)
            except AutoresearchdError as error:
                trouble = error.what
            if not trouble or trouble.startswith(("HTTP 3", "HTTP 4")) or time.monotonic() - began > SOON_S:
                break
        if not trouble:
            self._broken.discard(target.name)
        elif target.name not in self._broken:
            self._broken.add(target.name)
            self._tell(EventKind.WARNING, f"{target.name} could not be told of `{document['event']}`: {trouble}")

    def _post(self, target: Target, document: Mapping[str, Any]) -> str:
        title = f"{document['task']} {document['session']}: {str(document['event']).replace('_', ' ')}"
        text = f"{title}: {document['message']}"
        kind, body = "application/json", ""
        match target.settings.format:
            case "text":
                kind, body = "text/plain; charset=utf-8", text
            case "slack":
                body = json.dumps({"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")})
            case "discord":  # a model's words must not call everybody
                body = json.dumps({"content": text, "allowed_mentions": {"parse": []}})
            case _:
                body = json.dumps(document)
        headers = {"Content-Type": kind, "User-Agent": "autoresearchd"}
        request = urllib.request.Request(target.url, body.encode(), headers, method="POST")  # noqa: S310 - http, checked
        try:
            with _OPENER.open(request, timeout=POST_S):
                return ""
        except urllib.error.HTTPError as error:
            return f"HTTP {error.code}"
        except (OSError, ValueError, http.client.HTTPException) as error:  # its text may quote the address
            reason = getattr(error, "reason", None)
            return f"{type(error).__name__}" + (f" ({reason.strerror})" if isinstance(reason, OSError) else "")

    def _run(self, target: Target, document: Mapping[str, Any]) -> str:
        told = {f"AUTORESEARCHD_{name.upper()}": str(document[name]) for name in ("event", "message")}
        done = _call(target.settings.command or "", document, self._observed.root, COMMAND_S, threading.Event(), told)
        if done.timed_out:
            return f"it did not end in {COMMAND_S:.0f} s"
        return f"exit code {done.exit_code}" if done.exit_code else ""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is a failure: news go where the user says."""

    def redirect_request(self, *given: Any, **named: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)
