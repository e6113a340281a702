"""The process around a session: its signals, its housekeeping, the state it leaves behind, and its log."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from autoresearchd.domain import errors
from autoresearchd.domain.cleaning import printable
from autoresearchd.domain.experiment import Limits
from autoresearchd.domain.labels import SessionState
from autoresearchd.domain.ports import Event, EventKind, EventSink
from autoresearchd.domain.quantities import format_duration
from autoresearchd.domain.redaction import Redactor
from autoresearchd.loop.confirming import Asked
from autoresearchd.loop.context import Context, StopSwitch
from autoresearchd.loop.session import Backoff, SessionLoop
from autoresearchd.loop.upkeep.housekeeping import Housekeeping
from autoresearchd.loop.upkeep.service_manager import notify
from autoresearchd.loop.upkeep.session_lock import SessionLock

PREPARE_ATTEMPTS = 3


def stopping() -> list[signal.Signals]:
    """The signals that end what runs: TERM, INT, and HUP where nohup(1) has not taken it away."""
    hung_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, signal.SIGINT, *hung_up]


@contextmanager
def signals(stop: StopSwitch) -> Iterator[None]:
    """TERM, INT and HUP stop after the running experiment; the second one stops at once."""
    came = queue.SimpleQueue[int]()  # which a handler may use; the locks of a switch it may have interrupted

    def relay() -> None:
        while number := came.get():
            stop.request(f"signal {signal.Signals(number).name}", signal=number)

    thread = threading.Thread(target=relay, name="signals", daemon=True)
    thread.start()
    previous = {number: signal.signal(number, lambda number, frame: came.put(number)) for number in stopping()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        came.put(0)
        thread.join()


def serve(
    context: Context,
    limits: Limits,
    lock: SessionLock,
    *,
    active_seconds: float,
    backup: Path | None,
    database: Path | None = None,
    refuse: Callable[[errors.StoreDamaged], None] = lambda error: None,
    prepare: Callable[[], None],
    conditions: Callable[[], bool],
    backoff: Backoff | None = None,
    asked: Asked | None = None,
) -> int:
    """Run a session in this process until it stops; the exit code. What ends it is written down; an error is raised.

    lock: of the session, held. backup, database, refuse: see Housekeeping; prepare: set-up and checks, done once
    signals are handled; conditions, asked: see SessionLoop.
    """
    store, clock = context.store, context.clock
    state, reason, raised, limit = SessionState.CRASHED, "the daemon died", True, False
    before = store.session(context.tag)
    in_order = before.state is SessionState.STOPPED and store.latest(context.session_id) is not None
    at_work = False
    store.set_state(context.session_id, SessionState.RUNNING, clock.now(), pid=os.getpid())
    lock.begun()
    loop: SessionLoop | None = None

    def active() -> float:
        return loop.active_seconds if loop else active_seconds

    def begin() -> None:
        nonlocal at_work
        at_work = True
        lock.ready()
        notify(READY="1")

    try:
        beside = Housekeeping(context, active, backup, database, refuse)
        with signals(context.stop), beside:
            _patiently(context, prepare, backoff or Backoff())
            loop = SessionLoop(
                context, limits, active_seconds=active_seconds, backoff=backoff, pid=os.getpid(), asked=asked,
                last_seen=before.heartbeat_at,
            )  # fmt: skip
            loop.between, loop.conditions, loop.ready, loop.waits = beside.between, conditions, begin, lock.waits
            loop.holds = beside.holds
            reason = loop.run()
            state, raised, limit = SessionState.STOPPED, False, not context.stop.is_set()
    except errors.Interrupted as error:
        state, reason, raised = SessionState.STOPPED, str(error), False
        limit = error.limit
    except errors.AutoresearchdError as error:
        reason = error.what
        # A session that was in order stays so when going on with it is refused, or when only its policy failed or
        # its models refuse, or this machine lost what a run needs.
        harmless = isinstance(error, (errors.PolicyError, errors.ModelsRefused, errors.MissingCapability))
        if harmless or (in_order and not at_work):
            state = SessionState.STOPPED
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        raise
    finally:
        with signals(context.stop):  # another one must not cut short what ends rented machines
            _leave(context, state, reason, active(), raised=raised, limit=limit)
    return 128 + context.stop.signal if context.stop.signal is not None else 0


def _patiently(context: Context, prepare: Callable[[], None], backoff: Backoff) -> None:
    """Prepare; a failure of the surroundings is waited out, but not for ever: somebody may be looking on."""
    for failures in range(1, PREPARE_ATTEMPTS):
        try:
            return prepare()
        except errors.EnvironmentFailure as error:
            seconds = backoff.seconds(failures)
            context.emit(EventKind.BACKING_OFF, f"waiting {format_duration(seconds)}: {error}", seconds=seconds)
            if context.stop.wait(seconds):
                raise errors.Interrupted(f"stopped while waiting for: {error}") from error
    return prepare()


def _leave(
    context: Context, state: SessionState, reason: str, active_seconds: float, *, raised: bool, limit: bool
) -> None:
    """limit: whether it ends because a limit was reached."""
    notify(STOPPING="1", STATUS=reason)
    context.ended()
    context.emit(
        EventKind.SESSION_STOPPED, f"{state.value}: {reason}",
        reason=reason, state=state.value, raised=raised, limit=limit,
    )  # fmt: skip
    try:
        context.store.heartbeat(context.session_id, context.clock.now(), active_seconds)
        context.store.set_state(context.session_id, state, context.clock.now(), pid=None, reason=reason)
    except errors.AutoresearchdError as error:
        context.emit(EventKind.WARNING, f"the end of the session could not be written down: {error}")
    context.left()


LOG_BYTES = 8 * 2**20


class Fanout:
    """Gives each event to every sink, without the secrets that may be in it."""

    def __init__(self, sinks: Sequence[EventSink], redactor: Redactor | None = None) -> None:
        self._sinks, self._redactor = tuple(sinks), redactor or Redactor()

    def emit(self, event: Event) -> None:
        event = self._redactor.value(event)
        for sink in self._sinks:
            sink.emit(event)


class _SharedLog(logging.handlers.RotatingFileHandler):
    """Of all daemons in a repository: none writes on into what another one has rotated, or rotates that once more."""

    def shouldRollover(self, record: logging.LogRecord) -> bool:
        if self.stream is not None:
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(Path(self.baseFilename).stat(), os.fstat(self.stream.fileno())):
                    return bool(super().shouldRollover(record))
            self.stream.close()
            self.stream = self._open()
        return bool(super().shouldRollover(record))


class FileSink:
    """Lines for people in a rotating file, with the session's tag and the traceback of faults."""

    def __init__(self, path: Path, tag: str) -> None:
        self._tag = tag
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handler = _SharedLog(
            path, maxBytes=LOG_BYTES, backupCount=2, encoding="utf-8", errors="backslashreplace", delay=True
        )
        self._handler.setFormatter(logging.Formatter("%(message)s"))
        self._handler.handleError = lambda record: None  # type: ignore[method-assign] # a full disk must not stop the loop

    def emit(self, event: Event) -> None:
        number = f" #{event.experiment}" if event.experiment is not None else ""
        text = printable(event.message, keep="\n\t", instead="�")
        text = text.removeprefix(f"{event.kind.value} ")  # "committed 1a2b3c4" is a line without the kind, too
        line = f"{event.at:%Y-%m-%d %H:%M:%S}Z {self._tag} {event.kind.value}{number} {text}"
        if trace := str(event.data.get("traceback", "")):
            line += "\n" + trace.rstrip()
        self._handler.handle(logging.LogRecord("autoresearchd", logging.INFO, "", 0, line, None, None))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._handler.close()
