"""The commands plot, report, export and import."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import typer

from autoresearchd import keys
from autoresearchd.app.project import Project
from autoresearchd.cli.command_options import SessionOption
from autoresearchd.cli.repository_here import Place, find_place, here, shown_path
from autoresearchd.cli.terminal_text import say
from autoresearchd.domain.errors import UsageError, unwritable
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.task import Direction
from autoresearchd.report.log_files import Format, SessionHead, read_log, store_log, write
from autoresearchd.report.output_file import whole_file
from autoresearchd.workspace import layout


def plot(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="A .png, .svg or .pdf file.")] = Path(
        "progress.png"
    ),
    session: SessionOption = None,
) -> None:
    """Draw the progress chart.

    The thick line is the confirmed program, the thin one the tip, which is only believed to be where it is drawn, with
    its standard error.
    """
    from autoresearchd.report.plot import draw

    place = find_place(here())
    tag = place.pick(session)
    metric = place.status(tag)["metric"]
    chart = draw(
        place.reader.experiments(tag),
        output,
        metric=metric["name"] or "metric",
        direction=metric["direction"],
        confirmations=place.reader.confirmations(tag),
        beliefs=place.reader.beliefs(tag),
    )
    kept = f"{len(chart.kept):,} kept, {chart.proven:,} confirmed"
    say(f"wrote {output}: {counted(chart.tried, 'experiment')} beside the baseline, {kept}")


ReportFormat = Literal["html", "markdown"]
_SUFFIXES: Mapping[str, ReportFormat] = {".html": "html", ".htm": "html", ".md": "markdown"}


def report(
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="A .html or .md file (default: report.html)."),
    ] = None,
    format_name: Annotated[
        ReportFormat | None,
        typer.Option("--format", help="As the file's name says; markdown without a file goes to stdout."),
    ] = None,
    session: SessionOption = None,
) -> None:
    """Write what was tried, what held and why: one HTML file, or Markdown for a pull request.

    The file needs no script and no network. `autoresearchd report --format markdown | gh pr create --body-file -`
    """
    from autoresearchd.report.session_report import SessionReport, render
    from autoresearchd.store.story_reader import StoryReader

    form = format_name or (_SUFFIXES.get(output.suffix.lower()) if output else "html")
    if form is None:
        raise UsageError(f"{output}: a report is a .html or .md file", hint="for example: -o report.html")
    place = find_place(here())
    tag = place.pick(session)
    reader = StoryReader(place.project.journal)
    told = SessionReport.read(reader, tag, place.status(tag), datetime.now(UTC))
    text = render(told, keys.redactor().text, markdown=form == "markdown")
    if output is None and form == "markdown":
        sys.stdout.write(text)
        return
    target = output or Path("report.html")
    try:
        with whole_file(target) as part:
            part.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise unwritable(target, error) from error
    say(f"wrote {target}: {told.verdict}")


Tracker = Literal["mlflow", "optuna", "otel", "tensorboard", "trackio", "wandb"]
_TRACKERS: Mapping[Tracker, tuple[str, str]] = {
    "mlflow": ("mlflow_runs", "mlflow.db"),
    "optuna": ("optuna_study", "optuna.log"),
    "otel": ("otel_spans", "otel"),
    "tensorboard": ("tensorboard_events", "tensorboard"),
    "trackio": ("trackio_runs", "trackio"),
    "wandb": ("wandb_runs", "wandb"),
}
"""The module of each, and the file or folder that it writes."""


def export(
    format_name: Annotated[
        Format | None,
        typer.Option(
            "--format", help="jsonl: the skill's log; tsv: karpathy's columns; parquet (default: by -o's name)."
        ),
    ] = None,
    to: Annotated[
        Tracker | None,
        typer.Option(
            "--to", help="To an experiment tracker instead: what is not there yet, in files (otel: to your collector)."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Where to (default: stdout; for trackers: .autoresearchd/trackers/)."
        ),
    ] = None,
    session: SessionOption = None,
) -> None:
    """Write all experiments for other tools."""
    place = find_place(here())
    tag = place.pick(session)
    if to is not None:
        if format_name is not None:
            raise UsageError("--format and --to exclude each other", hint="leave out one of them")
        _send(place, tag, to, output)
        return
    suffix = output.suffix.lower() if output else ""
    format_name = format_name or next((f for f in Format if suffix == f".{f}"), None if suffix else Format.JSONL)
    if format_name is None:
        hint = "spreadsheets read .tsv; or say with --format what is to be in it"
        raise UsageError(f"{output}: an export is a .jsonl, .tsv or .parquet file", hint=hint)
    try:
        write(format_name, _head(place, tag), place.reader.experiments(tag), output or sys.stdout)
    except OSError as error:
        if output is None or isinstance(error, BrokenPipeError):
            raise
        raise unwritable(output, error) from error
    if output is not None:
        say(f"wrote {output}")


def _send(place: Place, tag: str, to: Tracker, output: Path | None) -> None:
    from autoresearchd.report.trackers.book import read_book
    from autoresearchd.store.story_reader import StoryReader

    module, name = _TRACKERS[to]
    target = output or layout.public_dir(place.root) / "trackers" / name
    if output is not None and (target.is_dir() if "." in name else target.is_file()):
        kind = "one file" if "." in name else "a folder of files"
        raise UsageError(f"{output} cannot be taken: {to} is {kind}", hint=f"for example: -o {name}")
    book = read_book(StoryReader(place.project.journal), tag, place.status(tag), keys.redactor().text)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        new, known, look = import_module(f"autoresearchd.report.trackers.{module}").send(book, target)
    except OSError as error:
        raise unwritable(target, error) from error
    say(f"{counted(new, 'new experiment')} in {shown_path(target)}, {known:,} were there; see them with\n  {look}")


def import_log(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .jsonl log, a results.tsv, or a .parquet file.")],
    metric: Annotated[str, typer.Option("--metric", metavar="NAME", help="Of a table: the column to compare by.")] = "",
    direction: Annotated[
        Direction | None, typer.Option("--direction", help="Of a table: which way is better (else told by its rows).")
    ] = None,
) -> None:
    """Read a log of experiments back.

    One of this program, of pi-autoresearch, of the autoresearch skill, or karpathy's results.tsv; a fork's with other
    columns is read by its header.
    """
    if not file.is_file():
        what = f"{file} is a folder" if file.is_dir() else f"there is no file {file}"
        raise UsageError(what, hint="name a .jsonl, .tsv or .parquet file")
    project, log = Project.at(here()), read_log(file, metric, direction or "")
    with project.open_store() as store:
        say(store_log(store, log))


def _head(place: Place, tag: str) -> SessionHead:
    status = place.status(tag)
    task, metric = status["session"].get("task") or tag, status["metric"].get("name") or "metric"
    return SessionHead(task, metric, status["metric"].get("direction") or "minimize")
