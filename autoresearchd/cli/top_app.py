"""A terminal's view of all sessions of a repository, drawn by textual: what runs, its loss, what was tried, four keys.

It reads the journal as ``status`` does; what keys ask for goes the way of the commands. All texts are shown as they
are: none is taken for markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, NamedTuple

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import DataTable, Footer, Header, Input, Sparkline, Static

from autoresearchd.app import session_requests
from autoresearchd.app.project import Project
from autoresearchd.cli.commands.status_command import KEEPS, now_words
from autoresearchd.cli.terminal_text import COLOURS, Paint, clean, number
from autoresearchd.domain.errors import AutoresearchdError
from autoresearchd.web.curves import LiveCurves
from autoresearchd.web.source import Source

REFRESH_S = 1.0
_ROWS, _RUNS, _POINTS = 50, 4, 200
_SESSION_COLUMNS = ("session", "state", "experiments", "kept", "confirmed", "baseline", "best", "policy")
_COLUMNS = ("#", "status", "label", "metric", "delta", "description")


class _Seen(NamedTuple):
    """What the journal tells: all sessions, and of the one that is shown its experiments and the losses of its runs."""

    tag: str
    statuses: dict[str, dict[str, Any]]
    records: list[dict[str, Any]]
    curves: list[list[float]]


class Top(App[None]):
    """The application. directory: a folder of the repository; tag: the session that is shown first."""

    TITLE = "autoresearchd"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #sessions { height: auto; max-height: 8; }
    #now { height: auto; padding: 0 1; }
    #now Sparkline { height: 2; width: 100%; }
    #experiments { height: 1fr; }
    #note { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "pause / go on"),
        Binding("n", "note", "note"),
        Binding("s", "stop", "stop after this experiment"),
        Binding("q", "quit", "quit"),
        Binding("escape", "leave_note", show=False),
    ]

    def __init__(self, project: Project, tag: str) -> None:
        super().__init__()
        self._project, self._tag = project, tag
        self._tags: list[str] = []
        self._paused = False
        self._reading = self._closed = False
        self._failure = ""
        self._filled: dict[str | None, list[list[Text]]] = {}
        self.sub_title = clean(str(project.root), 100)
        self._source = Source(project)
        self._curves = LiveCurves(self._source)

    def compose(self) -> ComposeResult:
        yield Header()
        yield DataTable(id="sessions", cursor_type="row")
        with Vertical(id="now"):
            for i in range(_RUNS):
                yield Static(id=f"run{i}", markup=False)
                yield Sparkline([], id=f"loss{i}")
        yield DataTable(id="experiments", cursor_type="row", zebra_stripes=True)
        yield Input(id="note", placeholder="a message to the agent; Enter sends it, Escape does not", max_length=4000)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#sessions", DataTable).add_columns(*_SESSION_COLUMNS)
        self.query_one("#experiments", DataTable).add_columns(*_COLUMNS)
        self.query_one("#experiments", DataTable).focus()
        self.refresh_now()
        self.set_interval(REFRESH_S, self.refresh_now)

    # ------------------------------------------------------------------ what is shown
    def refresh_now(self) -> None:
        """Read the journal anew, but where that is being done: a slow one is not asked again before it has answered."""
        if not self._reading:
            self._reading = True
            self._read(self._tag)

    def on_unmount(self) -> None:
        self._closed = True
        self._curves.close()
        self._source.close()

    @work(thread=True)
    def _read(self, tag: str) -> None:
        """On a thread: keys are heard meanwhile."""
        seen, failure = _Seen(tag, {}, [], []), ""
        try:
            place, reader = self._source.open()
            statuses = {row.tag: place.status(row.tag) for row in reader.sessions()}
            records = list(reader.experiments(tag, last=_ROWS)) if tag in statuses else []
            runs = statuses[tag]["under_way"][:_RUNS] if tag in statuses else []
            seen = _Seen(tag, statuses, records, [self._curve(tag, int(run["experiment"])) for run in runs])
        except (AutoresearchdError, KeyError, OSError) as error:
            failure = str(error) or "the journal cannot be read"
        self.call_from_thread(self._show, seen, failure)

    def _show(self, seen: _Seen, failure: str) -> None:
        """What was read; where nothing could be, say why, once, and go on."""
        self._reading = False
        if self._closed:
            return
        if failure != self._failure:
            self._failure = failure
            if failure:
                self._say(failure, bad=True)
        if failure:
            return
        if seen.tag != self._tag:  # another was chosen meanwhile
            self.refresh_now()
            return
        self._tags = list(seen.statuses)
        self._show_sessions(seen.statuses.values())
        if self._tag in seen.statuses:
            mine = seen.statuses[self._tag]
            self._paused = mine["session"]["state"] == "paused"
            self._show_runs(mine, seen.curves)
        table = self.query_one("#experiments", DataTable)
        self._fill(table, [self._row(record) for record in reversed(seen.records) if record.get("status")])

    def _show_sessions(self, statuses: Iterable[dict[str, Any]]) -> None:
        rows = []
        for status in statuses:
            session, metric = status["session"], status["metric"]
            state = str(session["state"])
            figures = [f"{session[name]:,}" for name in ("experiments", "keeps", "confirmed")]
            figures += [number(metric["baseline"]), number(metric["best"])]
            mark = "▶ " if session["tag"] == self._tag else "  "
            head = [Text(mark + clean(session["tag"], 30)), Text(state.replace("_", " "), COLOURS.get(state, ""))]
            rows.append([*head, *map(Text, figures), Text(clean(status["policy"]["name"] or "", 40))])
        self._fill(self.query_one("#sessions", DataTable), rows)

    def _show_runs(self, status: dict[str, Any], curves: list[list[float]]) -> None:
        runs = status["under_way"]
        for i in range(_RUNS):
            words, line = self.query_one(f"#run{i}", Static), self.query_one(f"#loss{i}", Sparkline)
            words.display = line.display = i < len(runs)
            if i < len(runs):
                words.update(now_words(runs[i], status["session"], Paint(enabled=False)))
                line.data = curves[i]
                line.display = bool(line.data)

    def _curve(self, tag: str, experiment: int) -> list[float]:
        """The latest losses of the run of an experiment that is under way."""
        runs = self._curves.of(tag, experiment)
        return list(runs[-1]["y"][-_POINTS:]) if runs else []

    def _row(self, record: dict[str, Any]) -> list[Text]:
        status = str(record["status"])
        colour = COLOURS.get(status, "")
        if status == "keep":
            _, colour, sign = KEEPS[record.get("confirmed")]
            status = f"keep {sign}"
        figures = Text(number(record.get("metric"))), Text(number(record.get("delta"), sign="+"))
        words = Text(clean(record.get("description") or "", 200))
        label = Text(clean(record.get("label") or "", 30))
        return [Text(str(record["experiment"])), Text(status, colour), label, *figures, words]

    def _fill(self, table: DataTable[Any], rows: list[list[Text]]) -> None:
        """Replace the rows where they have changed; the cursor stays where it was."""
        if self._filled.get(table.id) == rows:
            return
        at, self._filled[table.id] = table.cursor_row, rows
        with self.prevent(DataTable.RowHighlighted):
            table.clear()
            for row in rows:
                table.add_row(*row)
            table.move_cursor(row=min(at, max(0, len(rows) - 1)))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.data_table.id == "sessions" and event.cursor_row < len(self._tags):
            self._tag = self._tags[event.cursor_row]
            self.refresh_now()

    # ------------------------------------------------------------------ keys
    def action_pause(self) -> None:
        kind: Any = "unpause" if self._paused else "pause"
        self._ask(partial(session_requests.request, self._project.root, self._tag, kind))

    def action_stop(self) -> None:
        self._ask(partial(session_requests.stop, self._project.root, self._tag, False))

    def action_note(self) -> None:
        field = self.query_one("#note", Input)
        field.display = True
        field.focus()

    def action_leave_note(self) -> None:
        field = self.query_one("#note", Input)
        field.value, field.display = "", False
        self.query_one("#experiments", DataTable).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        text = event.value.strip()
        self.action_leave_note()
        if text:
            self._ask(partial(session_requests.note, self._project.root, self._tag, text))

    @work(thread=True)
    def _ask(self, request: Callable[[], str]) -> None:
        """What was asked for, on a thread: a database may be busy for seconds."""
        try:
            self.call_from_thread(self._say, request())
        except AutoresearchdError as error:
            self.call_from_thread(self._say, str(error), bad=True)

    def _say(self, text: str, *, bad: bool = False) -> None:
        self.notify(clean(text, 400), severity="error" if bad else "information", markup=False)
