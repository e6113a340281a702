"""The command status: how a session stands, what holds its experiments up, and how it ended."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from autoresearchd.cli import terminal_text
from autoresearchd.cli.command_options import JsonOption, SessionOption
from autoresearchd.cli.repository_here import Place, find_place, here, shown_path, way_to
from autoresearchd.cli.terminal_text import (
    COLOURS,
    Paint,
    all_whole,
    clean,
    json_text,
    measured,
    number,
    read_time,
    real,
)
from autoresearchd.domain.confirmation import ablates
from autoresearchd.domain.errors import MissingCapability, UsageError
from autoresearchd.domain.experiment import explain_noise, noise_has_grown
from autoresearchd.domain.labels import LIVING
from autoresearchd.domain.quantities import counted, format_duration
from autoresearchd.loop.upkeep.session_lock import process_began
from autoresearchd.report.plain_text import asked_words, cut, gained, price, short_count
from autoresearchd.store.failed_start import FailedStart
from autoresearchd.workspace import layout

Record = Mapping[str, Any]

_RECENT = 5
_START_S = 60.0
"""A process that is younger than its session by more than this has gone on with it."""
_NAMES = (("keeps", "kept", "green"), ("discards", "discarded", "grey"), ("crashes", "crashed", "red"),
          ("checks_failed", "failed a check", "magenta"))  # fmt: skip
_BEYOND_COMPARE, _LONGEST = 1000, 600


def status(
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Stay and refresh until the session stops.")] = False,
    session: SessionOption = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="The repository (default: the one here).")
    ] = None,
) -> None:
    """Show how a session stands.

    Baseline, the best that is confirmed, the tip, which is only believed to be better, what runs now, what was tried
    last, what it has cost.
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
            if failed is None and tag in [row.tag for row in place.reader.sessions()]:
                raise
            if failed is None:
                what = f"session {clean(tag)} was removed meanwhile"
                raise UsageError(what, hint="`autoresearchd sessions list` tells which are left") from None
    if as_json:
        print(json_text(failed.status, indent=2))
    else:
        print("\n".join(_failed_start_lines(place.root, failed, Paint(sys.stdout))))
    raise typer.Exit(failed.exit_code)


def top(session: SessionOption = None) -> None:
    """Show all sessions of the repository, live, in the whole terminal.

    The runs under way with the curves of their loss, and the latest experiments. Keys: p pauses and goes on, n leaves a
    note, s stops after the running experiment, q quits; Enter in the upper table shows another session.
    """
    if find_spec("textual") is None:
        raise MissingCapability("top needs the package textual", hint="pip install 'autoresearchd[top]'")
    if not (terminal_text.is_terminal(sys.stdin) and terminal_text.is_terminal(sys.stdout)):
        raise UsageError("top needs a terminal", hint="`autoresearchd status` and `experiments` print the same")
    place = find_place(here())
    tag = place.pick(session)
    place.reader.close()
    from autoresearchd.cli.top_app import Top

    Top(place.project, tag).run()


def _watch(place: Place, tag: str) -> None:
    """Show the status anew every second until the session stops. Without a terminal: whenever something has changed."""
    paint, terminal = Paint(sys.stdout), terminal_text.is_terminal(sys.stdout)
    before = None
    while True:
        status = place.status(tag)
        session = status.get("session") or {}
        key = [session.get(name) for name in ("state", "experiments", "confirmed")]
        for current in status.get("under_way") or ():
            key += [current.get(name) for name in ("experiment", "phase", "confirmation")]
        if terminal or key != before:
            lines = lines_now(place, tag, status, paint)
            if terminal:  # what is more than a screen would scroll away what stands above it
                lines = lines[: max(5, shutil.get_terminal_size().lines - 1)]
            # From the top of the screen on, over what was there; wrapped lines and a resized window do no harm.
            at_top = "\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J"
            print(at_top if terminal else "\n".join(lines), flush=True)
            before = key
        if session.get("state") not in LIVING and not place.alive(tag):  # else it is still about to leave
            return
        time.sleep(1.0)


def lines_now(place: Place, tag: str, status: Record, paint: Paint, *, hints: bool = True) -> list[str]:
    """A status as text, with the newest experiments of the session. hints: what to do next.

    For a terminal no line is longer than it is wide.
    """
    lines = _lines_now(place, tag, status, paint, hints=hints)
    if not paint.wraps:
        return lines
    columns = terminal_text.terminal_width()
    return [part for i, line in enumerate(lines) for part in terminal_text.wrap(line, columns, 10 if i else 2)]


def _lines_now(place: Place, tag: str, status: Record, paint: Paint, *, hints: bool) -> list[str]:
    under_way = status.get("under_way") or []
    newest = list(place.reader.experiments(tag, last=_RECENT + max(1, len(under_way))))
    columns, now = terminal_text.terminal_width(), datetime.now(UTC)
    session, metric = status["session"], status["metric"]
    words = {record["experiment"]: record.get("description") for record in newest if not record.get("status")}
    current = [{**one, "description": words.get(one["experiment"])} for one in under_way]
    sigma, first = real(metric.get("sigma")), real(metric.get("baseline_sigma"))
    noise = ""
    if sigma is not None and first is not None and noise_has_grown(sigma, first):
        noise = explain_noise(sigma, first)
    held_up = clean(session.get("reason") or "") if session["state"] == "running" and not current else ""
    asked = asked_words(status.get("asked"))
    rows = (
        ("metric", _metric_words(metric, paint)),
        ("tip", _tip_words(metric)),
        ("noise", paint(noise, "yellow")),
        ("tried", _tried_words(session, paint)),
        ("now", paint(terminal_text.fit(held_up, columns - 10), "cyan")),
        *(("" if i else "now", now_words(one, session, paint)) for i, one in enumerate(current)),
        ("slots", _slots_words(status.get("slots") or {})),
        ("abort", _abort_words(status.get("abort") or {})),
        ("cost", _cost_words(status)),
        *(("asked", words) for words in asked[:1]),
        *(("", paint(terminal_text.fit(words, columns - 10), "yellow")) for words in asked[1:]),
    )
    when = _since(session, place.reader.heartbeat(tag), now, paint)
    parts = ["" if held_up else clean(session.get("reason") or "", 120), _policy_words(status.get("policy") or {})]
    parts.append(f"branch {clean(session['branch'])}" if session.get("branch") else "")
    lines = [_head(session, [*when, *parts], paint), "", *_named(rows, paint)]
    if roles := status.get("roles"):
        cells = [
            [clean(role.get("name") or "", 30), f"{role.get('experiments') or 0:,}", f"{role.get('keeps') or 0:,}",
             number(role.get("reward"), 3, sign="+")]
            for role in roles
        ]  # fmt: skip
        table = terminal_text.table(("role", "tried", "kept", "mean reward"), cells, paint=paint, right=(1, 2, 3))
        lines += ["", *("  " + line for line in table)]
    if recent := [record for record in newest if record.get("status")][-_RECENT:]:
        lines += ["", *("  " + line for line in experiment_table(recent, paint, total=columns - 2))]
        if (more := int(session.get("experiments") or 0) - len(recent)) > 0:
            lines.append(paint(f"  {more:,} before these: autoresearchd experiments", "dim"))
    return [*lines, "", *_hints(status, place.root, paint)] if hints else lines


def _named(rows: Iterable[tuple[str, str]], paint: Paint) -> list[str]:
    return [f"  {paint(f'{name:<8}', 'dim')}{words}" for name, words in rows if words]


KEEPS = {True: ("confirmed", "green", "✓"), None: ("open", "cyan", "…"), False: ("fell", "grey", "✗")}
"""Of a keep, by ``confirmed``: in a word, its colour, and as a sign."""


def status_words(record: Record, paint: Paint) -> str:
    """The status of an experiment, and of a keep what became of it: a sign beside the colour, else a word."""
    status = str(record.get("status") or record.get("phase") or "…")
    if status != "keep":
        return status
    word, _, sign = KEEPS[record.get("confirmed")]
    return f"keep {sign if paint.enabled and terminal_text.can_show(sign) else word}"


def experiment_table(records: Sequence[Record], paint: Paint, *, total: int | None = None) -> list[str]:
    """Experiments as a table: number, status, label, metric, delta, role and policy where they differ, description."""
    rows, colours = [], []
    roles, sources = any(record.get("role") for record in records), {_source(record) for record in records} - {""}
    metrics, deltas = (all_whole(record.get(name) for record in records) for name in ("metric", "delta"))
    for record in records:
        status = record.get("status")
        figures = number(record.get("metric"), whole=metrics), number(record.get("delta"), whole=deltas, sign="+")
        head = str(record.get("experiment", "")), status_words(record, paint)
        role = [clean(record.get("role") or "", 20)] if roles else []
        source = [_source(record)] if len(sources) > 1 else []
        words = clean(record.get("description") or "")
        rows.append([*head, clean(record.get("label") or ""), *figures, *role, *source, words])
        colour = COLOURS.get(status or "", "") if status != "keep" else KEEPS[record.get("confirmed")][1]
        colours.append(dict.fromkeys((1, 3, 4) if status == "keep" else (1,), colour))
    more = *(("role",) if roles else ()), *(("by",) if len(sources) > 1 else ())
    headers = ("#", "status", "label", "metric", "delta", *more, "description")
    return terminal_text.table(headers, rows, paint=paint, right=(0, 3, 4), colours=colours, total=total)


def _source(record: Record) -> str:
    """What sort of policy proposed it, in a narrow column's word; empty: no policy did."""
    kind = clean(record.get("policy") or "", 60).partition(":")[0]
    return "" if kind == "baseline" else cut(kind, 7)


def _head(session: Record, parts: Sequence[str], paint: Paint) -> str:
    state = str(session.get("state") or "unknown")
    task = paint(clean(session.get("task") or "autoresearch"), "bold")
    first = f"{paint('●', COLOURS.get(state, ''))} {task}", clean(session.get("tag") or "")
    return paint(" · ", "dim").join(filter(None, (*first, *parts)))


def _policy_words(policy: Record) -> str:
    adapter = f" + {clean(policy['adapter'])}" if policy.get("adapter") else ""
    return f"policy {clean(policy['name'], 60)}{adapter}" if policy.get("name") else ""


def _since(session: Record, last: datetime, now: datetime, paint: Paint) -> list[str]:
    """The state, and since when it runs, counted from the process that runs it, or when it ended.

    last: when a daemon of the session last wrote.
    """
    state, started = str(session["state"]), read_time(session.get("started_at")) or last
    shown, begun = paint(state.replace("_", " "), COLOURS.get(state, ""), "bold"), f"begun {_clock(started, now)}"
    if state not in LIVING:
        return [f"{shown} {_clock(last, now)}" if (last - started).total_seconds() >= 1 else shown, begun]
    pid, since, marks = session.get("pid"), started, []
    host = session.get("host")
    began = process_began(pid) if isinstance(pid, int) and not host else None
    if began is not None and (began - started).total_seconds() > _START_S:
        since, marks = began, [begun]
    seconds = (now - since).total_seconds()
    lasted = format_duration(seconds) if seconds < 2 * 86400 else f"{seconds / 86400:.0f} days"
    marks = [lasted, *marks, *([f"pid {pid}{f' on {clean(host)}' if host else ''}"] if pid else [])]
    # It has not been paused, or waited, for that long.
    word = "since" if state == "running" else "· up since"
    return [f"{shown} {word} {_clock(since, now)} ({', '.join(marks)})"]


def _clock(at: datetime, now: datetime) -> str:
    local = at.astimezone()
    return local.strftime("%H:%M" if local.date() == now.astimezone().date() else "%d %b %H:%M")


def _metric_words(metric: Record, paint: Paint) -> str:
    name = paint(clean(metric.get("name") or "metric"), "bold")
    own = f", {paint('self-reported', 'yellow')}" if metric.get("source") == "self-reported" else ""
    direction = f"({'lower' if metric.get('direction') == 'minimize' else 'higher'} is better{own})"
    baseline, best = metric.get("baseline"), metric.get("best")
    if baseline is None:
        return f"{name}  no baseline yet  {direction}"
    sigma, confirmed, found = real(metric.get("sigma")), metric.get("confirmed") or {}, gained(metric)
    percent, baseline = (found.percent, found.base) if found else (None, baseline)
    whole, noise = all_whole((baseline, best)), f"σ {sigma:.2g}" if sigma else ""
    if best is None or confirmed.get("experiment") == metric.get("baseline_experiment"):
        told = " · ".join(filter(None, ("nothing better is confirmed yet", noise)))
        return f"{name}  {paint(number(baseline, whole=whole), 'bold')}  {told}  {direction}"
    better = found is not None and found.gain > 0
    gain = "no better" if found else ""
    if found and better:
        gain = "better"
        if percent is not None:
            gain = f"{percent:.2f}% better" if percent < _BEYOND_COMPARE else f"over {_BEYOND_COMPARE}% better"
        gain += " side by side" if real(confirmed.get("gain")) is not None else ""
        if sigma:
            times = found.gain / sigma
            gain += f" ({times:.1f}σ)" if times < _BEYOND_COMPARE else f" (over {_BEYOND_COMPARE}σ)"
    runs = f" over {counted(confirmed['runs'], 'run')}" if confirmed.get("runs") else ""
    gain = ", ".join(filter(None, (gain, f"confirmed in #{confirmed.get('experiment')}{runs}")))
    told = " · ".join(filter(None, (gain, noise)))
    shown = paint(number(best, whole=whole), "green" if better else "", "bold")
    return f"{name}  {number(baseline, whole=whole)} → {shown}  {told}  {direction}"


def _tip_words(metric: Record) -> str:
    """What the next edit is made on, where that is not confirmed."""
    tip = metric.get("tip") or {}
    if not tip or tip.get("experiment") == metric.get("best_experiment"):
        return ""
    error = real(tip.get("standard_error"))
    value = f"{measured(tip.get('estimate'), error)} ± {error:.2g}" if error else number(tip.get("estimate"))
    return f"#{tip['experiment']} is believed to be at {value}, not confirmed yet"


def _tried_words(session: Record, paint: Paint) -> str:
    parts = [paint(f"{session[key]:,} {word}", colour) for key, word, colour in _NAMES if session.get(key)]
    if session.get("keeps"):
        parts[0] += f" ({session.get('confirmed') or 0:,} confirmed)"
    words = counted(session.get("experiments") or 0, "experiment") + (": " + " · ".join(parts) if parts else "")
    return words + paint("  beside the baseline", "dim")


def now_words(current: Record, session: Record, paint: Paint) -> str:
    """What is under way, in a line."""
    words = f"#{current.get('experiment')} {paint(str(current.get('phase') or ''), 'cyan')}"
    if test := current.get("confirmation"):
        doing = "ablating" if ablates(str(test.get("why"))) else "confirming"
        words = f"{paint(doing, 'cyan')} #{current.get('experiment')} against #{test.get('against')}"
        words += f" · {counted(test.get('runs') or 0, 'run')} done"
    if session["state"] == "crashed":
        return f"nothing: the daemon is gone; it left {words}"
    elapsed, budget = real(current.get("elapsed_s")), real(current.get("budget_s"))
    if elapsed is not None and budget:
        if current.get("phase") == "running":
            filled = round(min(1.0, max(0.0, elapsed / budget)) * 24)
            full, empty = ("█", "░") if terminal_text.can_show("█░") else ("#", "-")
            words += f"  {paint(full * filled + empty * (24 - filled), 'green')}"
        words += f"  {format_duration(elapsed)} of {format_duration(budget)}"
    elif elapsed is not None:
        words += f"  {format_duration(elapsed)}"
    if current.get("forecast") is not None:
        words += f"  forecast {number(current['forecast'])}"
    if current.get("abort_probability") is not None:
        words += f"  abort {100 * current['abort_probability']:.0f}%"
    return words + (f"  {clean(current['description'], 60)}" if current.get("description") else "")


def _slots_words(slots: Record) -> str:
    """Of several: how many run something, how much of their time is used, and which hosts have failed."""
    count, used, hosts = slots.get("count") or 1, real(slots.get("utilisation")), slots.get("hosts") or []
    if count < 2:
        return ""
    words = f"{count} on {counted(len(hosts), 'host')}" if len(hosts) > 1 else f"{count}"
    words += f", {slots.get('busy') or 0} in use" + (f", busy {100 * used:.0f}% of the time" if used else "")
    lost = (f"{clean(host['host'], 60)} lost {counted(host['failed'], 'run')}" for host in hosts if host["failed"])
    return " · ".join((words, *lost))


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
    unpriced = bool(cost.get("unpriced"))
    parts = [price(cost.get("usd"), unpriced)] if cost.get("usd") or unpriced else []
    if cost.get("tokens_in") or cost.get("tokens_out"):
        parts.append(f"{short_count(cost.get('tokens_in'))} tokens in, {short_count(cost.get('tokens_out'))} out")
    if cost.get("gpu_s"):
        parts.append(f"{format_duration(cost['gpu_s'])} of GPU")
    if overhead.get("median_ms"):
        high = f" (p95 {overhead['p95_ms']:.0f} ms)" if real(overhead.get("p95_ms")) is not None else ""
        parts.append(f"overhead {overhead['median_ms']:.0f} ms per experiment{high}")
    return " · ".join(parts)


def _hints(status: Record, root: Path, paint: Paint) -> Iterator[str]:
    session, log, way = status["session"], layout.daemon_log(root), way_to(root)
    imported = (status.get("policy") or {}).get("name") == "imported"
    rows = [("log", shown_path(log))] if log.exists() and not imported else []
    rows += [("there", f"{clean(way)}   and then:")] if way else []
    if session["state"] in LIVING:
        rows += [("watch", "autoresearchd status --watch   or   autoresearchd logs -f"), ("stop", "autoresearchd stop")]
    elif not imported:
        extend = f" {clean(session['extend'])}" if session.get("extend") else ""
        tag = clean(session.get("tag") or "")
        rows += [("go on", f"autoresearchd resume {tag}{extend}".rstrip())]
        if _tip_words(status["metric"]):
            rows += [("confirm", f"autoresearchd confirm --session {tag}   tests what is only believed so far")]
    for name, words in rows:
        yield paint(f"  {name:<8}{words}", "dim")


def _failed_start_lines(root: Path, failed: FailedStart, paint: Paint) -> list[str]:
    """A session that ended before its first result: why, and what is left of it."""
    ended = f"{paint('ended before its first result', 'red', 'bold')} {_clock(failed.ended_at, datetime.now(UTC))}"
    session = {"task": (failed.status.get("session") or {}).get("task"), "tag": failed.tag, "state": "crashed"}
    rows = [("why", clean(failed.what, _LONGEST)), ("fix", clean(failed.hint, _LONGEST))]
    runs = layout.public_dir(root) / "runs" / failed.tag
    if layout.valid_tag(failed.tag) and runs.is_dir():
        rows.append(("runs", f"{clean(shown_path(runs), _LONGEST)}   what they printed"))
    if layout.daemon_log(root).exists():
        rows.append(("log", f"autoresearchd logs --session {clean(failed.tag)}"))
    rows.append(("again", "autoresearchd start   begins another; of this one only the logs are left"))
    return [_head(session, [ended], paint), "", *_named(rows, paint), ""]
