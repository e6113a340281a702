"""The foreground display: a live picture in a terminal, one line for each event elsewhere; both are event sinks."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

from autoresearchd.cli import render
from autoresearchd.cli.render import Paint, clean, number
from autoresearchd.cli.status import experiment_table
from autoresearchd.domain.events import Event, EventKind
from autoresearchd.ports import EventSink

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

_ROWS = 10
_LOUD = {EventKind.WARNING: "warning: ", EventKind.FAULT: "fault: ", EventKind.BACKING_OFF: "backing off: "}
_QUIET = {EventKind.HOUSEKEEPING, EventKind.OPENED}
_BESIDE = {EventKind.HOUSEKEEPING, EventKind.WARNING, EventKind.FAULT}
"""What may happen while something else goes on."""

Known = Callable[[str], Mapping[str, Any]]
"""The status of a session, by its tag, as ``status --json`` has it; empty where it cannot be read."""


@dataclass
class Picture:
    """What the live display knows; ``apply`` takes events in any order and with anything missing.

    best: the value that the incumbent was kept with, as ``status`` has it. meanwhile: what goes on while no experiment
    does, since meanwhile_began: set-up commands, a learner that is waited for.
    """

    task: str = ""
    tag: str = ""
    policy: str = ""
    metric: str = "metric"
    minimize: bool = True
    source: str = ""
    tier: str = ""
    experiment: int | None = None
    phase: str = "starting"
    description: str = ""
    run: str = ""
    budget: float | None = None
    wall: float | None = None
    run_began: float | None = None
    baseline: float | None = None
    best: float | None = None
    sigma: float | None = None
    experiments: int = 0
    keeps: int = 0
    max_experiments: int | None = None
    notice: str = ""
    meanwhile: str = ""
    meanwhile_began: float = 0.0
    rows: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_ROWS))
    first_opened: float | None = None
    decided: int = 0

    def apply(self, event: Event, now: float) -> None:
        """Take an event at ``now`` (monotonic seconds)."""
        data = event.data if isinstance(event.data, Mapping) else {}
        if event.experiment is not None:
            self.experiment = event.experiment
        if event.kind not in _BESIDE:
            self.meanwhile = ""
        match event.kind:
            case EventKind.SESSION_STARTED | EventKind.SESSION_RESUMED:
                self._head(data)
            case EventKind.OPENED:
                self.phase, self.description, self.run, self.run_began = "proposing", "", "", None
                if self.first_opened is None and event.experiment:
                    self.first_opened = now
            case EventKind.PROPOSED:
                self.phase = "proposed"
                self.description = clean(data.get("description") or data.get("hypothesis") or event.message)
            case EventKind.COMMITTED:
                self.phase = "committed"
            case EventKind.RUN_STARTED:
                self._run_started(data, now)
            case EventKind.RUN_FINISHED:
                self.phase, self.run_began = "measured", None
            case EventKind.DECIDED:
                self._decided(event, data)
            case EventKind.SETUP | EventKind.WAITING:
                self.phase = "setting up" if event.kind is EventKind.SETUP else "waiting"
                self.meanwhile, self.meanwhile_began = clean(event.message), now
            case EventKind.SESSION_STOPPED:
                self.phase, self.run_began, self.notice = "stopped", None, ending(event)
            case EventKind.HOUSEKEEPING:
                pass
            case _:
                self.notice = _LOUD.get(event.kind, "") + clean(event.message)
                if event.kind in (EventKind.PAUSED, EventKind.BACKING_OFF):
                    self.phase = event.kind.value.replace("_", " ")

    def know(self, status: Mapping[str, Any]) -> None:
        """Take over how the session stood before this process, from what ``status --json`` says."""
        metric, session = status.get("metric"), status.get("session")
        for name in ("best", "baseline", "sigma"):
            value = render.real(metric.get(name)) if isinstance(metric, Mapping) else None
            setattr(self, name, value if value is not None else getattr(self, name))
        for name in ("experiments", "keeps"):
            if isinstance(session, Mapping) and isinstance(session.get(name), int):
                setattr(self, name, session[name])

    def _head(self, data: Mapping[str, Any]) -> None:
        for name in ("task", "tag", "policy", "metric", "source", "tier"):
            if data.get(name):
                setattr(self, name, clean(data[name], 60))
        self.minimize = data.get("direction", "minimize") == "minimize"

    def _run_started(self, data: Mapping[str, Any], now: float) -> None:
        self.phase, self.run_began, self.notice = "running", now, ""
        self.budget, self.wall = render.real(data.get("budget_s")), render.real(data.get("wall_s"))
        index, runs = data.get("run"), data.get("runs")
        several = isinstance(index, int) and isinstance(runs, int) and runs > 1
        self.run = f"run {index + 1} of {runs}" if several and isinstance(index, int) else ""

    def _decided(self, event: Event, data: Mapping[str, Any]) -> None:
        self.phase, self.run_began = "decided", None
        for name in ("baseline", "sigma"):
            value = render.real(data.get(name))
            if value is not None:
                setattr(self, name, value)
        # The event's own ``best`` moves with each further run of the incumbent; shown is what it was kept with.
        kept = render.real(data.get("value" if data.get("status") == "keep" else "best"))
        if kept is not None and (self.best is None or data.get("status") == "keep" or data.get("fallen")):
            self.best = kept
        for name in ("experiments", "keeps"):
            if isinstance(data.get(name), int):
                setattr(self, name, data[name])
        if isinstance(data.get("max_experiments"), int):
            self.max_experiments = data["max_experiments"]
        self.decided += 1 if event.experiment else 0
        self.rows.append(
            {
                "experiment": "" if event.experiment is None else event.experiment,
                "status": clean(data.get("status") or "", 20),
                "label": clean(data.get("label") or "", 20),
                "metric": data.get("value"),
                "delta": data.get("delta"),
                "description": clean(data.get("description") or self.description or event.message),
            }
        )

    def eta(self, now: float) -> float | None:
        """Seconds until ``max_experiments``, from the pace so far; None when nobody can know."""
        if self.max_experiments is None or self.first_opened is None or self.decided < 1 or self.experiment is None:
            return None
        pace = (now - self.first_opened) / self.decided
        done = self.experiment if self.phase == "decided" else self.experiment - 1
        return max(0.0, (self.max_experiments - done) * pace)

    def gain(self) -> str:
        """The improvement in words: percent and, where the noise is known, how many times its σ."""
        if self.best is None or self.baseline is None:
            return ""
        delta = self.baseline - self.best if self.minimize else self.best - self.baseline
        words = [render.change_word(100 * delta / abs(self.baseline))] if delta > 0 and self.baseline else []
        if delta > 0 and self.sigma:
            words.append(render.in_sigma(delta / self.sigma))
        return ", ".join(words) or "no better yet"


class PlainDisplay:
    """One line for each event: the time, the experiment, what happened."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._lock = threading.Lock()

    def emit(self, event: Event) -> None:
        if event.kind in _QUIET:
            return
        line = plain_line(event)
        with self._lock:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # nobody reads any more: the research goes on
                return


def plain_line(event: Event) -> str:
    """An event as one line of plain text."""
    at = event.at.astimezone().strftime("%H:%M:%S") if isinstance(event.at, datetime) else "--:--:--"
    where = f"#{event.experiment:<4} " if event.experiment is not None else ""
    message = ending(event) if event.kind is EventKind.SESSION_STOPPED else clean(event.message)
    return f"{at}  {where}{_LOUD.get(event.kind, '')}{message}"


def ending(event: Event) -> str:
    """How a session ended; where an error ended it not why: the command says that itself, with how to mend it."""
    data = event.data if isinstance(event.data, Mapping) else {}
    state = data.get("state")
    return clean(state) if state == "crashed" or data.get("raised") is True else clean(event.message)


class LiveDisplay:
    """A picture that is drawn anew four times a second (rich); use as a context manager.

    known: asked once when a session is gone on with, for how it stood.
    """

    def __init__(self, console: Console | None = None, *, known: Known | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._picture = Picture()
        self._known = known
        self._lock = threading.Lock()
        self._console = console or Console(stderr=True, highlight=False)
        self._live = Live(
            get_renderable=self._draw, console=self._console, refresh_per_second=4, redirect_stdout=False,
            redirect_stderr=False, vertical_overflow="crop",
        )  # fmt: skip

    def emit(self, event: Event) -> None:
        before: Mapping[str, Any] = {}
        if self._known is not None and event.kind is EventKind.SESSION_RESUMED:
            before = self._known(str(event.data.get("tag") or ""))
        with self._lock:
            self._picture.know(before)
            self._picture.apply(event, time.monotonic())
        if event.kind in (EventKind.WARNING, EventKind.FAULT):
            from rich.text import Text

            with contextlib.suppress(OSError, ValueError):  # nobody looks any more: the research goes on
                self._console.print(Text(plain_line(event), style="yellow"))

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def _draw(self) -> RenderableType:
        with self._lock:
            return draw(self._picture, time.monotonic(), self._console.width)


def draw(picture: Picture, now: float, columns: int) -> RenderableType:
    """The picture as rich sees it; texts are never markup, so a description cannot style or link anything."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [_header(picture), Text(), *_current(picture, now, columns)]
    parts += _score(picture, now, columns)
    if picture.notice:
        parts.append(Text(f"  {picture.notice}", style="yellow"))
    if picture.rows:
        parts += [Text(), *_rows(picture, columns)]
    return Group(*parts, Text())


def _header(picture: Picture) -> Text:
    from rich.text import Text

    text = Text("● ", style="green").append(picture.task or "autoresearchd", style="bold")
    for part in (picture.tag, f"policy {picture.policy}" if picture.policy else "", picture.tier):
        if part:
            text.append(" · ", style="dim").append(part)
    return text


def _current(picture: Picture, now: float, columns: int) -> Iterator[RenderableType]:
    from rich.text import Text

    if picture.phase == "stopped":
        return
    if picture.meanwhile:
        lasted = f" ({render.format_duration(now - picture.meanwhile_began)})"
        shown = render.fit(picture.meanwhile, max(20, columns - 10 - len(lasted)))
        yield Text("  now    ", style="dim").append(shown, style="cyan").append(lasted)
        yield Text()
        return
    name = "baseline" if picture.experiment == 0 else f"#{picture.experiment}" if picture.experiment is not None else ""
    text = Text("  now    ", style="dim").append(name, style="bold").append(f"  {picture.phase}", style="cyan")
    if picture.run:
        text.append(f"  {picture.run}", style="dim")
    if picture.description:
        text.append(f"  {picture.description}")
    text.truncate(max(20, columns - 1), overflow="ellipsis")
    yield text
    if picture.run_began is not None and picture.budget:
        elapsed = now - picture.run_began
        if elapsed <= picture.budget:
            left = f"{render.format_duration(picture.budget - elapsed)} left"
        else:
            left = f"budget spent, finishing ({render.format_duration(elapsed)})"
        done = Text("         ").append(render.bar(elapsed / picture.budget, 32), style="green")
        yield done.append(f"  {left} of {render.format_duration(picture.budget)}", style="dim")
    else:
        yield Text()


def _score(picture: Picture, now: float, columns: int) -> Iterator[Text]:
    from rich.text import Text

    text = Text("  best   ", style="dim")
    if picture.best is None:
        if picture.meanwhile:
            yield text.append("the baseline is measured next", style="dim")
        elif picture.experiment is not None:
            yield text.append("measuring the baseline", style="dim")
        return
    whole = render.all_whole((picture.best, picture.baseline))
    best, baseline = (number(value, whole=whole) for value in (picture.best, picture.baseline))
    text.append(f"{picture.metric} ").append(best, style="bold green").append(f"  {picture.gain()}")
    text.append(f"  (baseline {baseline})", style="dim")
    if picture.source == "self-reported":
        mark = "self-reported"
        text.append("  " if text.cell_len + 2 + len(mark) < columns else "\n         ").append(mark, style="yellow")
    yield text
    counts = Text("  tried  ", style="dim").append(f"{picture.experiments:,}")
    if picture.max_experiments is not None:
        counts.append(f" (to end after {picture.max_experiments:,})")
    counts.append(f", {picture.keeps:,} kept")
    eta = picture.eta(now)
    if eta is not None and picture.phase != "stopped":
        counts.append(f"  about {render.format_duration(eta)} to go", style="dim")
    yield counts


def _rows(picture: Picture, columns: int) -> Iterator[Text]:
    """The table of ``status``: when the terminal is narrow, descriptions alone are cut."""
    from rich.text import Text

    for line in experiment_table(list(picture.rows), Paint(enabled=True), total=columns - 3):
        text = Text("  ").append_text(Text.from_ansi(line))
        text.truncate(max(20, columns - 1))
        yield text


@contextlib.contextmanager
def foreground_sink(
    *, live: bool = True, stream: TextIO | None = None, known: Known | None = None
) -> Iterator[EventSink]:
    """The sink for a command that stays: live in a terminal (unless ``live`` is off), plain lines elsewhere.

    known: see LiveDisplay.
    """
    import os

    out = stream if stream is not None else sys.stderr
    if live and render.is_terminal(out) and os.environ.get("TERM", "") not in ("", "dumb"):
        with LiveDisplay(known=known) as display:
            yield display
    else:
        yield PlainDisplay(out)
