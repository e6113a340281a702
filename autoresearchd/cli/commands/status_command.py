"""The command status: how a session stands, what holds its experiments up, and how it ended."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TextIO

import typer

from autoresearchd.cli import terminal_text
from autoresearchd.cli.command_options import JsonOption, SessionOption
from autoresearchd.cli.repository_here import Place, find_place, here, shown_path, way_to
from autoresearchd.cli.terminal_text import COLOURS, Paint, all_whole, clean, json_text, number, real
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.limits import explain_noise, noise_has_grown
from autoresearchd.domain.quantities import counted, format_duration
from autoresearchd.loop.upkeep.session_lock import process_began
from autoresearchd.store.failed_start import FailedStart
from autoresearchd.workspace import layout
from autoresearchd.workspace.files import read_tail

Record = Mapping[str, Any]

_RECENT = 5
_LIVING = ("running", "paused", "backing_off")
_START_S = 60.0
"""A process that is younger than its session by more than this has gone on with it."""
_NAMES = (("keeps", "kept", "green"), ("discards", "discarded", "grey"), ("crashes", "crashed", "red"),
          ("checks_failed", "failed a check", "magenta"))  # fmt: skip
_BEYOND_COMPARE, _LONGEST = 1000, 600
_TAIL_BYTES = 16 * 1024
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)Z (\S+) (\w+) ?(.*)")
_ROUNDED = timedelta(seconds=2)
"""The log knows no parts of seconds, and the start of a process is known to the second."""
_BESIDE = ("housekeeping", "warning", "fault")
"""What may be logged while something else goes on."""
_MEANWHILE = ("setup", "waiting")


def status(
    as_json: JsonOption = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay and refresh every second until the session stops.")
    ] = False,
    session: SessionOption = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="The repository (default: the one here)."),
    ] = None,
) -> None:
    """Show how a session stands.

    Baseline, best, what runs now, what was tried last, what it has cost.
    """
    if as_json and watch:
        raise UsageError("--json prints one document, --watch goes on printing", hint="use one of them")
    if directory is not None and not directory.is_dir():
        raise UsageError(f"the folder {directory} does not exist", hint="correct --dir")
    place = find_place(directory or here())
    failed = place.failed_start(session)
    if failed is None:
        tag = place.pick(session)
        try:
            if watch:
                _watch(place, tag)
            elif as_json:
                print(json_text(place.status(tag), indent=2))
            else:
                print("\n".join(lines_now(place, tag, place.status(tag), Paint(sys.stdout))))
            return
        except KeyError:  # its baseline may have failed a moment ago, and the session is gone with it
            failed = place.failed_start(tag)
            if failed is None:
                raise
    if as_json:
        print(json_text(failed.status, indent=2))
    else:
        print("\n".join(_failed_start_lines(place.root, failed, Paint(sys.stdout))))
    raise typer.Exit(failed.exit_code)


def _watch(place: Place, tag: str) -> None:
    """Show the status anew every second until the session stops. Without a terminal: whenever something has changed."""
    paint, terminal = Paint(sys.stdout), terminal_text.is_terminal(sys.stdout)
    before = None
    while True:
        status = place.status(tag)
        session, current = status.get("session") or {}, status.get("current") or {}
        key = (session.get("state"), session.get("experiments"), current.get("experiment"), current.get("phase"))
        if terminal or key != before:
            lines = lines_now(place, tag, status, paint)
            # From the top of the screen on, over what was there; wrapped lines and a resized window do no harm.
            at_top = "\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J"
            print(at_top if terminal else "\n".join(lines), flush=True)
            before = key
        if session.get("state") not in _LIVING and not place.alive(tag):  # else it is still about to leave
            return
        time.sleep(1.0)


def lines_now(place: Place, tag: str, status: Record, paint: Paint, *, hints: bool = True) -> list[str]:
    """A status as text, with the newest experiments of the session. hints: what to do next."""
    newest = list(place.reader.experiments(tag, last=_RECENT + 1))
    if status.get("current") and newest and not newest[-1].get("status"):
        status = {**status, "current": {**status["current"], "description": newest[-1].get("description")}}
    recent = [record for record in newest if record.get("status")][-_RECENT:]
    lines = status_lines(status, recent, paint, facts=daemon_facts(place, tag, status))
    if hints:
        log = layout.daemon_log(place.root)
        lines += ["", *_hints(status, shown_path(log) if log.exists() else "", way_to(place.root), paint)]
    return lines


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


def daemon_facts(place: Place, tag: str, status: Record) -> DaemonFacts:
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
    for line in reversed(read_tail(log, _TAIL_BYTES).splitlines()):
        found = _LINE.fullmatch(line)
        if found is None or found[2] != tag or found[3] in _BESIDE:
            continue
        began = _time(found[1])
        return Meanwhile(clean(found[4]), began) if began is not None and found[3] in _MEANWHILE else None
    return None


def status_lines(
    status: Record,
    recent: Sequence[Record],
    paint: Paint,
    *,
    facts: DaemonFacts | None = None,
    now: datetime | None = None,
) -> list[str]:
    """The status as a block of lines."""
    columns, facts, now = terminal_text.terminal_width(), facts or DaemonFacts(), now or datetime.now(UTC)
    session, metric = status.get("session") or {}, status.get("metric") or {}
    rows = (
        ("metric", _metric_words(metric, paint)),
        ("noise", _noise_words(metric, paint)),
        ("tried", _tried_words(session, paint)),
        ("now", _now_words(status, facts.meanwhile, paint, now, columns)),
        ("abort", _abort_words(status.get("abort") or {})),
        ("cost", _cost_words(status)),
    )
    lines = [_head(session, status.get("policy") or {}, paint, facts, now), ""]
    lines += [f"  {paint(f'{name:<8}', 'dim')}{words}" for name, words in rows if words]
    if roles := status.get("roles"):
        cells = [
            [clean(role.get("name") or "", 30), f"{role.get('experiments') or 0:,}", f"{role.get('keeps') or 0:,}",
             number(role.get("reward"), 3, sign="+")]
            for role in roles
        ]  # fmt: skip
        table = terminal_text.table(("role", "tried", "kept", "mean reward"), cells, paint=paint, right=(1, 2, 3))
        lines += ["", *("  " + line for line in table)]
    if recent:
        lines += ["", *("  " + line for line in experiment_table(recent, paint, total=columns - 2))]
        more = int(session.get("experiments") or 0) - len(recent)
        if more > 0:
            lines.append(paint(f"  {more:,} before these: autoresearchd experiments", "dim"))
    return lines


def experiment_table(records: Sequence[Record], paint: Paint, *, total: int | None = None) -> list[str]:
    """Experiments as a table: number, status, label, metric, delta, role where there are any, description."""
    rows, colours = [], []
    roles = any(record.get("role") for record in records)
    metrics, deltas = (all_whole(record.get(name) for record in records) for name in ("metric", "delta"))
    for record in records:
        status = record.get("status")
        rows.append(
            [
                str(record.get("experiment", "")),
                str(status or record.get("phase") or "…"),
                clean(record.get("label") or ""),
                number(record.get("metric"), whole=metrics),
                number(record.get("delta"), whole=deltas, sign="+"),
                *([clean(record.get("role") or "", 20)] if roles else []),
                clean(record.get("description") or ""),
            ]
        )
        colour = COLOURS.get(status or "", "")
        colours.append(dict.fromkeys((1, 3, 4) if status == "keep" else (1,), colour))
    headers = ("#", "status", "label", "metric", "delta", *(("role",) if roles else ()), "description")
    return terminal_text.table(headers, rows, paint=paint, right=(0, 3, 4), colours=colours, total=total)


def _head(session: Record, policy: Record, paint: Paint, facts: DaemonFacts, now: datetime) -> str:
    state = str(session.get("state") or "unknown")
    colour = COLOURS.get(state, "")
    reason = clean(session.get("reason") or "", 120)
    if facts.meanwhile is not None and facts.meanwhile.words.startswith(reason):  # said below, too
        reason = ""
    adapter = f" + {clean(policy['adapter'])}" if policy.get("adapter") else ""
    parts = (
        f"{paint('●', colour)} {paint(clean(session.get('task') or 'autoresearch'), 'bold')}",
        clean(session.get("tag") or ""),
        paint(state.replace("_", " "), colour, "bold") + _since(session, facts, now),
        _begun(session, now) if state not in _LIVING else "",
        reason,
        f"policy {clean(policy['name'], 60)}{adapter}" if policy.get("name") else "",
        f"branch {clean(session['branch'])}" if session.get("branch") else "",
    )
    return paint(" · ", "dim").join(filter(None, parts))


def _since(session: Record, facts: DaemonFacts, now: datetime) -> str:
    """Since when it runs, counted from the process that runs it; when it ended, where it does not run."""
    started = _time(session.get("started_at"))
    if session.get("state") not in _LIVING:
        known = facts.last is not None and (started is None or (facts.last - started).total_seconds() >= 1)
        return f" {_clock(facts.last, now)}" if known and facts.last is not None else ""
    if started is None:
        return ""
    resumed = facts.began is not None and (facts.began - started).total_seconds() > _START_S
    since = facts.began if resumed and facts.began is not None else started
    seconds = (now - since).total_seconds()
    marks = [format_duration(seconds) if seconds < 2 * 86400 else f"{seconds / 86400:.0f} days"]
    marks += [_begun(session, now)] if resumed else []
    marks += [f"pid {session['pid']}"] if session.get("pid") else []
    # It has not been paused, or waited, for that long.
    word = "since" if session.get("state") == "running" else "· up since"
    return f" {word} {_clock(since, now)} ({', '.join(marks)})"


def _begun(session: Record, now: datetime) -> str:
    started = _time(session.get("started_at"))
    return f"begun {_clock(started, now)}" if started is not None else ""


def _clock(at: datetime, now: datetime) -> str:
    local = at.astimezone()
    return local.strftime("%H:%M" if local.date() == now.astimezone().date() else "%d %b %H:%M")


def _metric_words(metric: Record, paint: Paint) -> str:
    name = paint(clean(metric.get("name") or "metric"), "bold")
    direction = "lower is better" if metric.get("direction") == "minimize" else "higher is better"
    own = f", {paint('self-reported', 'yellow')}" if metric.get("source") == "self-reported" else ""
    baseline, best = metric.get("baseline"), metric.get("best")
    if baseline is None:
        return f"{name}  no baseline yet  ({direction}{own})"
    percent, sigma = real(metric.get("improvement_pct")), real(metric.get("sigma"))
    better, whole = percent is not None and percent > 0, all_whole((baseline, best))
    first, now = number(baseline, whole=whole), number(best, whole=whole)
    gain = "" if percent is None else "no better yet"
    if percent is not None and better:
        gain = f"{percent:.2f}% better" if percent < _BEYOND_COMPARE else f"over {_BEYOND_COMPARE}% better"
        if sigma and real(best) is not None:
            times = abs(best - baseline) / sigma
            gain += f" ({times:.1f}σ)" if times < _BEYOND_COMPARE else f" (over {_BEYOND_COMPARE}σ)"
        gain += f" in #{metric['best_experiment']}" if metric.get("best_experiment") else ""
    noise = f"σ {sigma:.2g}" if sigma else ""
    words = f"{name}  {first} → {paint(now, 'green' if better else '', 'bold')}"
    return f"{words}  {' · '.join(filter(None, (gain, noise)))}  ({direction}{own})"


def _noise_words(metric: Record, paint: Paint) -> str:
    """That hardly anything can be told from the noise any more; empty where that is not so."""
    sigma, first = real(metric.get("sigma")), real(metric.get("baseline_sigma"))
    if sigma is None or first is None or not noise_has_grown(sigma, first):
        return ""
    return paint(explain_noise(sigma, first), "yellow")


def _tried_words(session: Record, paint: Paint) -> str:
    parts = [paint(f"{session[key]:,} {word}", colour) for key, word, colour in _NAMES if session.get(key)]
    words = counted(session.get("experiments") or 0, "experiment") + (": " + " · ".join(parts) if parts else "")
    return words + paint("  beside the baseline", "dim")


def _now_words(status: Record, meanwhile: Meanwhile | None, paint: Paint, now: datetime, columns: int) -> str:
    if meanwhile is not None:
        lasted = f" ({format_duration((now - meanwhile.began).total_seconds())})"
        return paint(terminal_text.fit(meanwhile.words, max(20, columns - 10 - len(lasted))), "cyan") + lasted
    current = status.get("current")
    if not current:
        return ""
    words = f"#{current.get('experiment')} {paint(str(current.get('phase') or ''), 'cyan')}"
    if (status.get("session") or {}).get("state") == "crashed":
        return f"nothing: the daemon is gone; it left {words}"
    elapsed, budget = real(current.get("elapsed_s")), real(current.get("budget_s"))
    if elapsed is not None and budget:
        if current.get("phase") == "running":
            words += f"  {paint(_bar(elapsed / budget, sys.stdout), 'green')}"
        words += f"  {format_duration(elapsed)} of {format_duration(budget)}"
    elif elapsed is not None:
        words += f"  {format_duration(elapsed)}"
    if current.get("forecast") is not None:
        words += f"  forecast {number(current['forecast'])}"
    if current.get("abort_probability") is not None:
        words += f"  abort {100 * current['abort_probability']:.0f}%"
    return words + (f"  {clean(current['description'], 60)}" if current.get("description") else "")


def _bar(share: float, stream: TextIO) -> str:
    filled = round(min(1.0, max(0.0, share)) * 24)
    full, empty = ("█", "░") if "utf" in (stream.encoding or "").lower() else ("#", "-")
    return full * filled + empty * (24 - filled)


def _abort_words(abort: Record) -> str:
    if not abort.get("aborted") and not abort.get("audited"):
        return ""
    rate, gain, limit = (real(abort.get(key)) for key in ("false_abort_rate", "throughput_gain", "false_abort_limit"))
    words = f"{abort.get('aborted') or 0:,} aborted early, {abort.get('audited') or 0:,} audited"
    if rate is not None:
        words += f", {100 * rate:.1f}% of improvements lost"
        words += f" (at most {100 * limit:.0f}%, 95% sure)" if limit is not None else ""
    elif abort.get("audited"):
        words += ", no improvement among the audited yet"
    return words + (f", throughput ×{gain:.2f}" if gain is not None else "")


def _cost_words(status: Record) -> str:
    cost, overhead = status.get("cost") or {}, status.get("overhead") or {}
    parts = [f"${cost['usd']:,.2f}"] if cost.get("usd") else []
    if cost.get("tokens_in") or cost.get("tokens_out"):
        parts.append(f"{_count(cost.get('tokens_in'))} tokens in, {_count(cost.get('tokens_out'))} out")
    if cost.get("gpu_s"):
        parts.append(f"{format_duration(cost['gpu_s'])} of GPU")
    if overhead.get("median_ms"):
        high = f" (p95 {overhead['p95_ms']:.0f} ms)" if real(overhead.get("p95_ms")) is not None else ""
        parts.append(f"overhead {overhead['median_ms']:.0f} ms per experiment{high}")
    return " · ".join(parts)


def _count(value: Any) -> str:
    count = float(value or 0)
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count:.0f}"


def _hints(status: Record, log: str, way: str, paint: Paint) -> Iterator[str]:
    session = status.get("session") or {}
    imported = (status.get("policy") or {}).get("name") == "imported"
    rows = [("log", log)] if log and not imported else []
    rows += [("there", f"{clean(way)}   and then:")] if way else []
    if session.get("state") in _LIVING:
        rows += [("watch", "autoresearchd status --watch   or   autoresearchd logs -f"), ("stop", "autoresearchd stop")]
    elif not imported:
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


# ---------------------------------------------------------------------- a session that ended before its first result
def _failed_start_lines(root: Path, failed: FailedStart, paint: Paint) -> list[str]:
    session = failed.status.get("session") or {}
    head = (
        f"{paint('●', 'red')} {paint(clean(session.get('task') or 'autoresearch'), 'bold')}",
        clean(failed.tag),
        f"{paint('ended before its first result', 'red', 'bold')} {_clock(failed.ended_at, datetime.now(UTC))}",
    )
    rows = [("why", clean(failed.what, _LONGEST)), ("fix", clean(failed.hint, _LONGEST))]
    runs = layout.public_dir(root) / "runs" / failed.tag if layout.valid_tag(failed.tag) else None
    if runs is not None and runs.is_dir():
        rows.append(("runs", f"{clean(shown_path(runs), _LONGEST)}   what they printed"))
    if layout.daemon_log(root).exists():
        rows.append(("log", f"autoresearchd logs --session {clean(failed.tag)}"))
    rows.append(("again", "autoresearchd start   begins another; of this one only the logs are left"))
    lines = [f"  {paint(f'{name:<8}', 'dim')}{words}" for name, words in rows if words]
    return [paint(" · ", "dim").join(head), "", *lines, ""]
