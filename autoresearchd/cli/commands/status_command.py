"""The command status: how a session stands, what holds its experiments up, and how it ended."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from autoresearchd.cli import terminal_text
from autoresearchd.cli.command_options import JsonOption, SessionOption
from autoresearchd.cli.repository_here import Place, find_place, here, way_to
from autoresearchd.cli.terminal_text import Paint, clean, json_text, number, real, signed
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.limits import explain_noise, noise_has_grown
from autoresearchd.loop.upkeep.session_lock import process_began
from autoresearchd.store.failed_start import FailedStart
from autoresearchd.workspace import layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoresearchd.cli.repository_here import Place


def status(
    as_json: JsonOption = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay and refresh every second until the session stops.")
    ] = False,
    session: SessionOption = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="The repository (default: the one here).", show_default=False),
    ] = None,
) -> None:
    """Show how a session stands.

    Baseline, best, what runs now, what was tried last, what it has cost.
    """
    from autoresearchd.cli.commands.status_command import show_status

    if as_json and watch:
        raise UsageError("--json prints one document, --watch goes on printing", hint="use one of them")
    raise typer.Exit(show_status(directory or here(), session, as_json=as_json, watch=watch))


_RECENT = 5
_LIVING = ("running", "paused", "backing_off")
_START_S = 60.0
"""A process that is younger than its session by more than this has gone on with it."""
_NAMES = (("keeps", "kept", "green"), ("discards", "discarded", "grey"), ("crashes", "crashed", "red"),
          ("checks_failed", "failed a check", "magenta"))  # fmt: skip


def show_status(directory: Path, tag: str | None, *, as_json: bool = False, watch: bool = False) -> int:
    """Print the state of a session; the exit code, which is that of its daemon where it had no first result."""
    if not directory.is_dir():
        raise UsageError(f"the folder {directory} does not exist", hint="correct --dir")
    place = find_place(directory)
    failed = place.failed_start(tag)
    if failed is not None:
        return show_failed_start(place.root, failed, as_json=as_json)
    tag = place.pick(tag)
    try:
        return _watch(place, tag) if watch else _show(place, tag, as_json=as_json)
    except KeyError:  # its baseline may have failed a moment ago, and the session is gone with it
        failed = place.failed_start(tag)
        if failed is None:
            raise
        return show_failed_start(place.root, failed, as_json=as_json)


def _show(place: Place, tag: str, *, as_json: bool) -> int:
    status = place.status(tag)
    if as_json:
        print(json_text(status, indent=2))
    else:
        print("\n".join(lines_now(place, tag, status, Paint(sys.stdout))))
    return 0


def lines_now(place: Place, tag: str, status: Mapping[str, Any], paint: Paint, *, hints: bool = True) -> list[str]:
    """A status as text, with the newest experiments of the session. hints: as for ``status_lines``."""
    newest = list(place.experiments(tag, last=_RECENT + 1))
    if status.get("current") and newest and not newest[-1].get("status"):
        status = {**status, "current": {**status["current"], "description": newest[-1].get("description")}}
    recent = [record for record in newest if record.get("status")][-_RECENT:]
    facts, log = daemon_facts(place, tag, status), place.log_hint(tag)
    return status_lines(status, recent, paint, log=log, way=way_to(place.root), facts=facts, hints=hints)


def status_lines(
    status: Mapping[str, Any],
    recent: Sequence[Mapping[str, Any]],
    paint: Paint,
    *,
    log: str = "",
    way: str = "",
    facts: DaemonFacts | None = None,
    now: datetime | None = None,
    hints: bool = True,
) -> list[str]:
    """The status as a block of lines. log: where that is; way: to where other commands are given; hints: which."""
    columns, facts, now = terminal_text.terminal_width(), facts or DaemonFacts(), now or datetime.now(UTC)
    session, metric = status.get("session") or {}, status.get("metric") or {}
    lines = [_head(session, status.get("policy") or {}, paint, facts, now), ""]
    lines += _row("metric", _metric_words(metric, paint), paint)
    lines += _row("noise", _noise_words(metric, paint), paint)
    lines += _row("tried", _tried_words(session, paint), paint)
    if facts.meanwhile is not None:
        lines += _row("now", _meanwhile_words(facts.meanwhile, paint, now, columns), paint)
    else:
        lines += _row("now", _now_words(status.get("current"), paint, dead=session.get("state") == "crashed"), paint)
    lines += _row("abort", _abort_words(status.get("abort") or {}), paint)
    lines += _row("cost", _cost_words(status), paint)
    if status.get("roles"):
        lines += ["", *("  " + line for line in role_table(status["roles"], paint))]
    if recent:
        lines += ["", *("  " + line for line in experiment_table(recent, paint, total=columns - 2))]
        more = int(session.get("experiments") or 0) - len(recent)
        if more > 0:
            lines.append(paint(f"  {more:,} before these: autoresearchd experiments", "dim"))
    imported = (status.get("policy") or {}).get("name") == "imported"
    if hints:
        lines += ["", *_hints(session, "" if imported else log, way, paint, resumable=not imported)]
    return lines


def experiment_table(records: Sequence[Mapping[str, Any]], paint: Paint, *, total: int | None = None) -> list[str]:
    """Experiments as a table: number, status, label, metric, delta, role where there are any, description."""
    rows, colours = [], []
    roles = any(record.get("role") for record in records)
    metrics, deltas = (terminal_text.all_whole(record.get(name) for record in records) for name in ("metric", "delta"))
    for record in records:
        status = record.get("status")
        rows.append(
            [
                str(record.get("experiment", "")),
                str(status or record.get("phase") or "…"),
                clean(record.get("label") or ""),
                number(record.get("metric"), whole=metrics),
                signed(record.get("delta"), whole=deltas),
                *([clean(record.get("role") or "", 20)] if roles else []),
                clean(record.get("description") or ""),
            ]
        )
        colour = terminal_text.colour_of(status)
        colours.append({1: colour, 3: colour if status == "keep" else "", 4: colour if status == "keep" else ""})
    headers = ("#", "status", "label", "metric", "delta", *(("role",) if roles else ()), "description")
    return terminal_text.table(headers, rows, paint=paint, right=(0, 3, 4), colours=colours, total=total)


def role_table(roles: Sequence[Mapping[str, Any]], paint: Paint) -> list[str]:
    """How each role does: experiments, keeps, mean reward."""
    rows = [
        [clean(role.get("name") or "", 30), f"{role.get('experiments') or 0:,}", f"{role.get('keeps') or 0:,}",
         signed(role.get("reward"), 3)]
        for role in roles
    ]  # fmt: skip
    return terminal_text.table(("role", "tried", "kept", "mean reward"), rows, paint=paint, right=(1, 2, 3))


def _row(name: str, words: str, paint: Paint) -> list[str]:
    return [f"  {paint(f'{name:<8}', 'dim')}{words}"] if words else []


def _head(
    session: Mapping[str, Any], policy: Mapping[str, Any], paint: Paint, facts: DaemonFacts, now: datetime
) -> str:
    state = str(session.get("state") or "unknown")
    colour = terminal_text.colour_of(state)
    parts = [
        f"{paint('●', colour)} {paint(clean(session.get('task') or 'autoresearch'), 'bold')}",
        clean(session.get("tag") or ""),
        paint(state.replace("_", " "), colour, "bold") + _since(session, facts, now),
        _begun(session, now) if state not in _LIVING else "",
    ]
    reason = clean(session.get("reason") or "", 120)
    if reason and not (facts.meanwhile is not None and facts.meanwhile.words.startswith(reason)):  # said below, too
        parts.append(reason)
    if policy.get("name"):
        adapter = f" + {clean(policy['adapter'])}" if policy.get("adapter") else ""
        parts.append(f"policy {clean(policy['name'], 60)}{adapter}")
    if session.get("branch"):
        parts.append(f"branch {clean(session['branch'])}")
    return paint(" · ", "dim").join(part for part in parts if part)


def _since(session: Mapping[str, Any], facts: DaemonFacts, now: datetime) -> str:
    """Since when it runs, counted from the process that runs it; when it ended, where it does not run."""
    started = _time(session.get("started_at"))
    if session.get("state") not in _LIVING:
        ended = facts.last
        known = ended is not None and (started is None or (ended - started).total_seconds() >= 1)
        return f" {_clock(ended, now)}" if known and ended is not None else ""
    if started is None:
        return ""
    resumed = facts.began is not None and (facts.began - started).total_seconds() > _START_S
    since = facts.began if resumed and facts.began is not None else started
    marks = [terminal_text.age((now - since).total_seconds())]
    marks += [_begun(session, now)] if resumed else []
    marks += [f"pid {session['pid']}"] if session.get("pid") else []
    # It has not been paused, or waited, for that long.
    word = "since" if session.get("state") == "running" else "· up since"
    return f" {word} {_clock(since, now)} ({', '.join(marks)})"


def _begun(session: Mapping[str, Any], now: datetime) -> str:
    started = _time(session.get("started_at"))
    return f"begun {_clock(started, now)}" if started is not None else ""


def _clock(at: datetime, now: datetime) -> str:
    """The local time, with the day where it is not today."""
    local = at.astimezone()
    return local.strftime("%H:%M" if local.date() == now.astimezone().date() else "%d %b %H:%M")


def _metric_words(metric: Mapping[str, Any], paint: Paint) -> str:
    name = clean(metric.get("name") or "metric")
    direction = "lower is better" if metric.get("direction") == "minimize" else "higher is better"
    marks = [direction]
    if metric.get("source") == "self-reported":
        marks.append(paint("self-reported", "yellow"))
    tail = f"  ({', '.join(marks)})"
    baseline, best = metric.get("baseline"), metric.get("best")
    if baseline is None:
        return f"{paint(name, 'bold')}  no baseline yet{tail}"
    better = (metric.get("improvement_pct") or 0) > 0
    whole = terminal_text.all_whole((baseline, best))
    first, now = number(baseline, whole=whole), number(best, whole=whole)
    words = f"{paint(name, 'bold')}  {first} → {paint(now, 'green' if better else '', 'bold')}"
    gain, sigma = terminal_text.change_word(metric.get("improvement_pct")), metric.get("sigma")
    known = isinstance(sigma, (int, float)) and sigma > 0
    if better and known and isinstance(best, (int, float)):
        gain += f" ({terminal_text.in_sigma(abs(best - baseline) / sigma)})"
    if better and metric.get("best_experiment"):
        gain += f" in #{metric['best_experiment']}"
    noise = f"σ {sigma:.2g}" if known else ""
    return f"{words}  {' · '.join(filter(None, (gain, noise)))}{tail}"


def _noise_words(metric: Mapping[str, Any], paint: Paint) -> str:
    """That hardly anything can be told from the noise any more; empty where that is not so."""
    sigma, first = real(metric.get("sigma")), real(metric.get("baseline_sigma"))
    if sigma is None or first is None or not noise_has_grown(sigma, first):
        return ""
    return paint(explain_noise(sigma, first), "yellow")


def _tried_words(session: Mapping[str, Any], paint: Paint) -> str:
    count = session.get("experiments") or 0
    parts = [paint(f"{session[key]:,} {word}", colour) for key, word, colour in _NAMES if session.get(key)]
    words = f"{count:,} experiment{'' if count == 1 else 's'}" + (": " + " · ".join(parts) if parts else "")
    return words + paint("  beside the baseline", "dim")


def _meanwhile_words(meanwhile: Meanwhile, paint: Paint, now: datetime, columns: int) -> str:
    lasted = f" ({terminal_text.format_duration(max(0.0, (now - meanwhile.began).total_seconds()))})"
    return paint(terminal_text.fit(meanwhile.words, max(20, columns - 10 - len(lasted))), "cyan") + lasted


def _now_words(current: Mapping[str, Any] | None, paint: Paint, *, dead: bool) -> str:
    if not current:
        return ""
    words = f"#{current.get('experiment')} {paint(str(current.get('phase') or ''), 'cyan')}"
    if dead:
        return f"nothing: the daemon is gone; it left {words}"
    elapsed, budget = current.get("elapsed_s"), current.get("budget_s")
    if isinstance(elapsed, (int, float)) and isinstance(budget, (int, float)) and budget > 0:
        if current.get("phase") == "running":
            progress = terminal_text.bar(elapsed / budget, ascii_only=not terminal_text.speaks_unicode(sys.stdout))
            words += f"  {paint(progress, 'green')}"
        words += f"  {terminal_text.format_duration(elapsed)} of {terminal_text.format_duration(budget)}"
    elif isinstance(elapsed, (int, float)):
        words += f"  {terminal_text.format_duration(elapsed)}"
    if current.get("forecast") is not None:
        words += f"  forecast {number(current['forecast'])}"
    if current.get("abort_probability") is not None:
        words += f"  abort {100 * current['abort_probability']:.0f}%"
    if current.get("description"):
        words += f"  {clean(current['description'], 60)}"
    return words


def _abort_words(abort: Mapping[str, Any]) -> str:
    if not abort.get("aborted") and not abort.get("audited"):
        return ""
    rate, gain = abort.get("false_abort_rate"), abort.get("throughput_gain")
    words = f"{abort.get('aborted') or 0:,} aborted early, {abort.get('audited') or 0:,} audited"
    limit = abort.get("false_abort_limit")
    if isinstance(rate, (int, float)):
        words += f", {100 * rate:.1f}% of improvements lost"
        words += f" (at most {100 * limit:.0f}%, 95% sure)" if isinstance(limit, (int, float)) else ""
    elif abort.get("audited"):
        words += ", no improvement among the audited yet"
    return words + (f", throughput ×{gain:.2f}" if isinstance(gain, (int, float)) else "")


def _cost_words(status: Mapping[str, Any]) -> str:
    cost, overhead = status.get("cost") or {}, status.get("overhead") or {}
    parts = []
    if cost.get("usd"):
        parts.append(f"${cost['usd']:,.2f}")
    if cost.get("tokens_in") or cost.get("tokens_out"):
        parts.append(f"{_count(cost.get('tokens_in'))} tokens in, {_count(cost.get('tokens_out'))} out")
    if cost.get("gpu_s"):
        parts.append(f"{terminal_text.format_duration(cost['gpu_s'])} of GPU")
    if overhead.get("median_ms"):
        high = f" (p95 {overhead['p95_ms']:.0f} ms)" if isinstance(overhead.get("p95_ms"), (int, float)) else ""
        parts.append(f"overhead {overhead['median_ms']:.0f} ms per experiment{high}")
    return " · ".join(parts)


def _count(value: Any) -> str:
    count = float(value or 0)
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count:.0f}"


def _hints(session: Mapping[str, Any], log: str, way: str, paint: Paint, *, resumable: bool) -> Iterator[str]:
    rows = [("log", log)] if log else []
    rows += [("there", f"{clean(way)}   and then:")] if way else []
    if session.get("state") in _LIVING:
        rows += [("watch", "autoresearchd status --watch   or   autoresearchd logs -f"), ("stop", "autoresearchd stop")]
    elif resumable:
        extend = f" {clean(session['extend'])}" if session.get("extend") else ""
        rows += [("go on", f"autoresearchd resume {clean(session.get('tag') or '')}{extend}".rstrip())]
    for name, words in rows:
        yield paint(f"  {name:<8}{words}", "dim")


def _time(text: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _at_top(lines: Sequence[str]) -> str:
    """The lines from the top of the screen on, over what was there; wrapped lines and a resized window do no harm."""
    return "\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J"


def _watch(place: Place, tag: str) -> int:
    """Show the status anew every second until the session stops. Without a terminal: whenever something has changed."""
    paint, terminal = Paint(sys.stdout), terminal_text.is_terminal(sys.stdout)
    before = None
    while True:
        status = place.status(tag)
        session, current = status.get("session") or {}, status.get("current") or {}
        key = (session.get("state"), session.get("experiments"), current.get("experiment"), current.get("phase"))
        if terminal or key != before:
            lines = lines_now(place, tag, status, paint)
            print(_at_top(lines) if terminal else "\n".join(lines), flush=True)
            before = key
        if session.get("state") not in _LIVING and not place.alive(tag):  # else it is still about to leave
            return 0
        time.sleep(1.0)


_TAIL_BYTES = 16 * 1024
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)Z (\S+) (\w+) ?(.*)")
_ROUNDED = timedelta(seconds=2)
"""The log knows no parts of seconds, and the start of a process is known to the second."""
_BESIDE = ("housekeeping", "warning", "fault")
"""What may be logged while something else goes on."""
_MEANWHILE = ("setup", "waiting")


class Meanwhile(NamedTuple):
    """What goes on while no experiment does: set-up commands, a learner's work. words: as the log names it."""

    words: str
    began: datetime


class DaemonFacts(NamedTuple):
    """Each None where it is not known, or not so.

    meanwhile: what holds experiments up; began: when the process that holds the session started; last: when a
    daemon of the session last wrote.
    """

    meanwhile: Meanwhile | None = None
    began: datetime | None = None
    last: datetime | None = None


def daemon_facts(place: Place, tag: str, status: Mapping[str, Any]) -> DaemonFacts:
    """The facts about the daemon of a session whose status is this."""
    session = status.get("session") or {}
    found = meanwhile_in(layout.daemon_log(place.root), tag) if session.get("state") == "running" else None
    pid = session.get("pid")
    began = process_began(pid) if isinstance(pid, int) else None
    if found is not None and began is not None and found.began < began - _ROUNDED:
        found = None  # of a daemon that was killed during it
    return DaemonFacts(found, began, place.reader.heartbeat(tag))


def meanwhile_in(log: Path, tag: str) -> Meanwhile | None:
    """The set-up or the wait that the log of the daemons ends with for a session; None where more has come after it."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL_BYTES))
            lines = stream.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        found = _LINE.fullmatch(line)
        if found is None or found[2] != tag or found[3] in _BESIDE:
            continue
        if found[3] not in _MEANWHILE:
            return None
        try:
            return Meanwhile(clean(found[4]), datetime.fromisoformat(found[1]).replace(tzinfo=UTC))
        except ValueError:
            return None
    return None


_LONGEST = 600


def show_failed_start(root: Path, failed: FailedStart, *, as_json: bool) -> int:
    """Print how the session ended; the exit code that its daemon ended with."""
    if as_json:
        print(json_text(failed.status, indent=2))
    else:
        print("\n".join(failed_start_lines(root, failed, Paint(sys.stdout))))
    return failed.exit_code


def failed_start_lines(root: Path, failed: FailedStart, paint: Paint) -> list[str]:
    """How the session ended, as a block of lines."""
    session = failed.status.get("session") or {}
    at, today = failed.ended_at.astimezone(), datetime.now().astimezone().date()
    head = (
        f"{paint('●', 'red')} {paint(clean(session.get('task') or 'autoresearch'), 'bold')}",
        clean(failed.tag),
        f"{paint('ended before its first result', 'red', 'bold')} "
        + at.strftime("%H:%M" if at.date() == today else "%d %b %H:%M"),
    )
    rows = [f"  {paint(f'{name:<8}', 'dim')}{words}" for name, words in _failed_start_rows(root, failed)]
    return [paint(" · ", "dim").join(head), "", *rows, ""]


def _failed_start_rows(root: Path, failed: FailedStart) -> Iterator[tuple[str, str]]:
    yield "why", clean(failed.what, _LONGEST)
    if failed.hint:
        yield "fix", clean(failed.hint, _LONGEST)
    runs = layout.public_dir(root) / "runs" / failed.tag if layout.valid_tag(failed.tag) else None
    if runs is not None and runs.is_dir():
        yield "runs", f"{_relative(runs)}   what they printed"
    if layout.daemon_log(root).exists():
        yield "log", f"autoresearchd logs --session {clean(failed.tag)}"
    yield "again", "autoresearchd start   begins another; of this one only the logs are left"


def _relative(path: Path) -> str:
    relative = os.path.relpath(path)
    return clean(str(path) if relative.startswith("..") else relative, _LONGEST)
