"""The commands experiments and show: what was tried, and everything about one of them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoresearchd import keys
from autoresearchd.cli import terminal_text
from autoresearchd.cli.command_options import LARGEST, JsonOption, SessionOption
from autoresearchd.cli.commands.logs_command import print_log
from autoresearchd.cli.repository_here import here
from autoresearchd.cli.terminal_text import (
    Paint,
    clean,
    json_text,
    measured,
    number,
    print_json_list,
    real,
    say,
    signed,
    strip_controls,
)
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.experiment import FAILURES
from autoresearchd.domain.labels import Status
from autoresearchd.evaluator.measure.log_text import tells

if TYPE_CHECKING:
    from autoresearchd.cli.repository_here import Place

_ASI_NAMES = {"next_action_hint": "next", "arch_change": "change", "expected_delta": "expected"}


def experiments(
    as_json: JsonOption = False,
    status: Annotated[Status | None, typer.Option("--status", help="Only those with this decision.")] = None,
    last: Annotated[
        int | None, typer.Option("--last", metavar="N", min=1, max=LARGEST >> 1, help="Only the newest N.")
    ] = None,
    role: Annotated[
        str | None, typer.Option("--role", metavar="NAME", help="Only those that this role proposed.")
    ] = None,
    session: SessionOption = None,
) -> None:
    """List the experiments of a session, oldest first.

    The delta is the improvement over the best before it: + is better, whichever way the metric goes. It is
    estimated from all runs of the two programs, those made side by side foremost, so it need not be the difference of
    two values of the table.
    """
    from autoresearchd.cli.commands.status_command import experiment_table
    from autoresearchd.cli.repository_here import find_place

    place = find_place(here())
    tag = place.pick(session)
    if role is not None:
        _check_role(place, tag, role)
    found = place.experiments(tag, status.value if status else None, last, role)
    if as_json:
        print_json_list(found)
        return
    records = list(found)
    if not records:
        say("no experiment yet" if status is None else f"no experiment with the status {status.value}")
        return
    total = terminal_text.terminal_width() if terminal_text.is_terminal(sys.stdout) else None
    print("\n".join(experiment_table(records, Paint(sys.stdout), total=total)))
    if terminal_text.is_terminal(sys.stdout):
        say(
            "delta: against the best before it; + is better, whichever way the metric goes. Where the incumbent was "
            "run beside it: estimated from all runs of both, so not the difference of two values shown here"
        )


def _check_role(place: Place, tag: str, role: str) -> None:
    """UsageError for a role that has proposed nothing in a session."""
    known = [str(found["name"]) for found in place.reader.status(tag)["roles"]]
    if role not in known:
        there = f"there are {', '.join(known)}" if known else "no role has taken a turn: `start --roles` has them do so"
        raise UsageError(f"no role {clean(role, 40)!r} has proposed anything in session {tag}", hint=clean(there, 400))


def show(
    experiment: Annotated[
        int, typer.Argument(metavar="N", min=0, max=LARGEST, help="Number of the experiment; 0 is the baseline.")
    ],
    diff: Annotated[
        bool, typer.Option("--diff", help="Also what it changed, as a unified diff; in a pipe the diff alone.")
    ] = False,
    log: Annotated[bool, typer.Option("--log", help="Also what its runs printed; in a pipe that alone.")] = False,
    answers: Annotated[
        bool, typer.Option("--answers", help="Also what models were asked and answered; in a pipe that alone.")
    ] = False,
    as_json: JsonOption = False,
    session: SessionOption = None,
) -> None:
    """Show everything about one experiment.

    The decision, the runs, what was learned; with --diff what it changed, with --log what its runs printed, with
    --answers what the models were asked and what they answered. The probability in the reason takes into account that
    most edits improve nothing.
    """
    from autoresearchd.cli.repository_here import find_place

    place = find_place(here())
    tag = place.pick(session)
    try:
        record = keys.redactor().value(dict(place.reader.show(tag, experiment, full=answers)))
    except KeyError:
        newest = max((int(e["experiment"]) for e in place.experiments(tag, last=1)), default=-1)
        known = f"they are numbered 0 to {newest}" if newest >= 0 else "there is none yet"
        raise UsageError(
            f"session {tag} has no experiment {experiment}: {known}",
            hint=f"see `autoresearchd experiments{_named(session)}`",
        ) from None
    logs = log_files(place.root, tag, experiment)
    if as_json:
        print(json_text({**record, "logs": [str(path) for path in logs]}, indent=2))
        return
    paint = Paint(sys.stdout)
    # In a pipe the diff and the logs stand alone, for `git apply` and the like; a reader wants to see what they are of.
    if terminal_text.is_terminal(sys.stdout) or not (diff or log or answers):
        to_show = str(record.get("diff") or "").strip() and not diff
        hint = f"autoresearchd show {experiment}{_named(session)} --diff   shows what it changed" if to_show else ""
        print("\n".join(experiment_lines(record, logs, paint, hint=hint)))
    if diff:
        show_diff(record, paint)
    if log:
        print_logs(logs, paint)
    if answers:
        show_answers(record, paint)


def _named(session: str | None) -> str:
    """The option that names the session again where the user has named one."""
    return f" --session {shlex.quote(clean(session))}" if session else ""


def experiment_lines(record: Mapping[str, Any], logs: Iterable[Path], paint: Paint, *, hint: str = "") -> list[str]:
    """All of an experiment but its diff and its logs, as text; ``hint``: what to look at next."""
    status = record.get("status") or record.get("phase") or "open"
    colour = terminal_text.colour_of(str(status))
    name = paint(f"#{record.get('experiment')}", "bold")
    head = f"{paint('●', colour)} {name} {paint(str(status), colour, 'bold')}"
    if record.get("label"):
        head += f" ({clean(record['label'])})"
    described, reason = clean(record.get("description") or ""), clean(record.get("reason") or "")
    # A failed proposal is described by its failure, which the reason tells at length.
    lines = [head if tells(reason, described) else f"{head}  {described}", ""]
    for name, words in _facts(record):
        if words:
            lines.append(f"  {paint(f'{name:<12}', 'dim')}{words}")
    for key, value in (record.get("asi") or {}).items():
        if _stands_above(record, key, value):
            continue
        lines.append(f"  {paint(f'{_asi_name(key):<11} ', 'dim')}{_value(value)}")
    lines += _run_table(record, paint)
    lines += answer_lines(record.get("answers") or [], paint)
    lines += look_lines(record.get("looks") or [], paint, ascii_only=not terminal_text.speaks_unicode(sys.stdout))
    lines += [""]
    if hint:
        lines += [paint(f"  {hint}", "dim")]
    lines += [paint(f"  {path}", "dim") for path in logs]
    return lines


def _asi_name(key: str) -> str:
    """What a piece of the ASI is called for people; a policy may have keys of its own."""
    return _ASI_NAMES.get(key) or clean(key, 40).replace("_", " ")


def _stands_above(record: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether a piece of the ASI is the daemon's own note of the label or of the reason, which are shown anyhow."""
    reason = str(record.get("reason") or "")
    if key == "result" and reason:
        return str(value) == reason or str(value).endswith(f": {reason}")
    return (key == "refused" and value == record.get("label")) or (key == "failure" and str(value) in reason)


def _run_table(record: Mapping[str, Any], paint: Paint) -> list[str]:
    """The runs; where others were run beside the experiment, whose program each of them ran."""
    runs = record.get("runs") or []
    if not runs:
        return []
    beside = [run["of"] for run in runs if run.get("of") is not None]
    fell = {of for of in beside if sum(run.get("of") == of and bool(run.get("label")) for run in runs) >= FAILURES}
    incumbent = max((of for of in beside if of not in fell), default=-1)
    rows = [
        [str(run.get("seed", "")), measured(run.get("metric"), record.get("sigma")), _seconds(run.get("duration_s")),
         "—" if run.get("exit_code") is None else str(run["exit_code"]),
         *([_program(run, incumbent, fell)] if beside else []), clean(run.get("label") or "")]
        for run in runs
    ]  # fmt: skip
    headers = ("seed", "value", "time", "exit", *(("program",) if beside else ()), "label")
    return ["", *("  " + line for line in terminal_text.table(headers, rows, paint=paint, right=(0, 1, 2, 3)))]


def _program(run: Mapping[str, Any], incumbent: int, fell: Collection[int]) -> str:
    """Whose program a run ran: of two that were run beside the experiment, the earlier one is the baseline."""
    of = run.get("of")
    if of is None:
        return "its own"
    return f"{'failed' if of in fell else 'incumbent' if of == incumbent else 'baseline'} #{of}"


def _facts(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    delta, sigma = record.get("delta"), record.get("sigma")
    gain = f"  {measured(delta, sigma, sign='+')} against the best before it (+ is better)"
    yield "value", measured(record.get("metric"), sigma) + (gain if delta is not None else "")
    metrics = record.get("metrics") or {}
    yield "metrics", ", ".join(f"{clean(name)} {_value(value)}" for name, value in metrics.items())
    yield "reason", clean(record.get("reason") or "")
    hypothesis = (record.get("asi") or {}).get("hypothesis")
    yield "hypothesis", "" if hypothesis else clean(record.get("hypothesis") or "")
    for words in attempt_rows(record.get("attempts") or []):
        yield "repair", words
    policy, role = clean(record.get("policy") or ""), clean(record.get("role") or "")
    adapter = clean(record.get("adapter") or "")
    yield "policy", policy + (f" as {role}" if role else "") + (f" + {adapter}" if adapter else "")
    yield "commit", clean(record.get("commit") or "")
    yield "parent", clean(record.get("parent") or "")
    confidence = record.get("confidence")
    beside = "the best gain by the spread of all values; for comparison, it decides nothing"
    yield "confidence", "" if confidence is None else f"{number(confidence, 2)} ({beside})"
    yield "reward", signed(record["reward"], 3) if record.get("reward") is not None else ""
    yield "cost", cost_words(record)
    yield "overhead", f"{record['overhead_ms']:.0f} ms" if isinstance(record.get("overhead_ms"), (int, float)) else ""
    yield "started", clean(terminal_text.local_time(record.get("started_at") or ""))
    yield "finished", clean(terminal_text.local_time(record.get("finished_at") or ""))


def show_answers(record: Mapping[str, Any], paint: Paint) -> None:
    """The answers of models in full, or why there are none."""
    found = record.get("answers") or []
    if found:
        print_answers(found, paint)
    else:
        say("no model was asked for this experiment")


def show_diff(record: Mapping[str, Any], paint: Paint) -> None:
    """The diff of an experiment, or why there is none."""
    diff = str(record.get("diff") or "")
    if diff.strip():
        print_diff(diff, paint)
    elif record.get("policy") == "imported":
        commit = clean(record.get("commit") or "", 40)
        say(
            "an imported log holds no diffs"
            + (f"; where this repository has its commit: git show {commit}" if commit else "")
        )
    elif record.get("policy") == "baseline":
        say("this is the program as it was: nothing was changed")
    elif record.get("commit") is None:
        say("nothing was committed, so there is no diff: no proposal, or none that may be run; `show` says why")
    else:
        say("this experiment changed nothing")


def print_diff(diff: str, paint: Paint) -> None:
    """A unified diff in its usual colours, without what would steer the terminal."""
    for line in diff.rstrip("\n").split("\n"):
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        print(paint(strip_controls(line), "bold" if line.startswith(("+++", "---")) else colour))


def log_files(root: Path, tag: str, experiment: int) -> list[Path]:
    """The logs of an experiment's runs, in the order of the runs, training before evaluation."""
    from autoresearchd.workspace import layout

    folder = layout.run_dir(root, tag, experiment, 0).parent
    runs = sorted((run for run in folder.glob("*") if run.name.isdigit()), key=lambda run: int(run.name))
    return [
        log for run in runs for log in sorted(run.glob("*.log"), key=lambda log: (log.name != "training.log", log.name))
    ]


def print_logs(logs: Iterable[Path], paint: Paint) -> None:
    """Logs one after the other, each under its path."""
    shown = False
    for log in logs:
        print(paint(f"==> {log} <==", "bold"))
        print_log(log)
        shown = True
    if not shown:
        say("there is no log of this experiment (any more)")


def _value(value: Any) -> str:
    if isinstance(value, float):
        return measured(value)
    return clean(value if isinstance(value, str) else json_text(value))


UNKNOWN_PRICE = "price unknown"

Answer = Mapping[str, Any]

_CUT = 100


def answer_lines(answers: Sequence[Answer], paint: Paint) -> list[str]:
    """A table of the answers, the reason last where one could not be used; nothing where there is none."""
    if not answers:
        return []
    rows = [
        [
            str(i),
            clean(answer.get("model") or "", 40),
            _count(answer.get("tokens_in")),
            _count(answer.get("tokens_out")),
            price(answer.get("cost_usd")),
            _seconds(answer.get("seconds")),
            clean(answer.get("finish") or "", 20),
            _outcome(answer, _CUT) or "—",
        ]
        for i, answer in enumerate(answers, 1)
    ]
    colours = [{7: "red" if answer.get("error") else "green"} for answer in answers]
    headers = ("#", "model", "in", "out", "cost", "time", "finish", "gave")
    table = terminal_text.table(headers, rows, paint=paint, right=(0, 2, 3, 4, 5), colours=colours)
    return ["", *("  " + line for line in table)]


def attempt_rows(attempts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Of each repair, which attempt it is and what it was to repair."""
    for i, (before, _) in enumerate(pairwise(attempts), 2):
        label, reason = clean(before.get("label") or ""), clean(before.get("reason") or "", _CUT)
        why = ": ".join(part for part in (label or "a failure", reason) if part)
        yield f"attempt {i} of {len(attempts)}: a repair after {why}"


def cost_words(record: Mapping[str, Any]) -> str:
    """What an experiment cost; what is not known is said, and is not taken for nothing."""
    answers, usd = record.get("answers") or [], real(record.get("cost_usd"))
    if usd is not None:
        return price(usd) if usd else ""
    unknown = sum(1 for answer in answers if real(answer.get("cost_usd")) is None)
    known = sum(real(answer.get("cost_usd")) or 0.0 for answer in answers)
    if known:
        return f"at least {price(known)}, {UNKNOWN_PRICE} for {unknown} of {len(answers)} answers"
    return UNKNOWN_PRICE if answers or record.get("policy") else ""


def print_answers(answers: Sequence[Answer], paint: Paint) -> None:
    """Each answer in full, after the messages that it answers; messages that were shown before are not repeated."""
    before: Sequence[Any] = ()
    for i, answer in enumerate(answers, 1):
        messages = answer.get("messages") or []
        print(paint(f"==> answer {i} of {len(answers)}: {_answer_facts(answer)} <==", "bold"))
        shared = next((k for k, (old, new) in enumerate(zip(before, messages, strict=False)) if old != new), None)
        shared = min(len(before), len(messages)) if shared is None else shared
        if shared:
            print(paint(f"--- {shared} message{'s' if shared > 1 else ''} as above ---", "dim"))
        for message in messages[shared:]:
            _print_part(_role(message), message.get("content") if isinstance(message, Mapping) else message, paint)
        _print_part("answer", answer.get("completion") or "", paint)
        if answer.get("error"):
            _print_part("not usable", answer["error"], paint)
        before = messages


def price(usd: Any) -> str:
    """US dollars, with as many digits as a fraction of a cent needs; words where the price is not known."""
    found = real(usd)
    if found is None:
        return UNKNOWN_PRICE
    if found == 0:
        return "$0"
    return f"${found:,.4f}" if found >= 0.0001 else f"${found:.2g}"


def _answer_facts(answer: Answer) -> str:
    words = (
        clean(answer.get("model") or "", 60),
        _outcome(answer, _CUT),
        f"{_count(answer.get('tokens_in'))} tokens in, {_count(answer.get('tokens_out'))} out",
        price(answer.get("cost_usd")),
        _seconds(answer.get("seconds")),
        clean(answer.get("finish") or "", 20),
    )
    return ", ".join(word for word in words if word)


def _outcome(answer: Answer, limit: int) -> str:
    """How the edit was written, or why the answer could not be used; nothing for a step on the way to one."""
    form, error = clean(answer.get("form") or "", 20), clean(answer.get("error") or "", limit)
    attempt = answer.get("attempt") or 0
    return (error or form or ("—" if attempt else "")) + (f" (attempt {attempt + 1})" if attempt else "")


def _role(message: Any) -> str:
    return clean(message.get("role") or "message", 20) if isinstance(message, Mapping) else "message"


def _print_part(name: str, content: Any, paint: Paint) -> None:
    print(paint(f"--- {name} ---", "dim"))
    text = content if isinstance(content, str) else "" if content is None else json_text(content, indent=2)
    for line in text.rstrip("\n").split("\n"):
        print(strip_controls(line))


def _count(value: Any) -> str:
    found = real(value)
    return "—" if found is None else f"{found:,.0f}"


def _seconds(value: Any) -> str:
    found = real(value)
    return "—" if found is None else f"{found:.1f}s"


WIDTH = 36
LINES = 20
_SYMBOLS = ("─", "●", "┃")
_ASCII = ("-", "o", "|")


def look_lines(looks: Sequence[Mapping[str, Any]], paint: Paint, *, ascii_only: bool = False) -> list[str]:
    """Nothing where there was no look; else the last one in words, and all that had a forecast as a chart."""
    if not looks:
        return []
    lines = ["", f"  {paint('early abort', 'bold')}  {_verdict(looks[-1])}"]
    drawn = _spread([look for look in looks if None not in _ends(look)])
    values = [v for look in drawn for v in _ends(look) if v is not None]
    if not values:
        return lines
    low, high = min(values), max(values)
    line, dot, bar = _ASCII if ascii_only else _SYMBOLS
    scale = f"{number(low)} to {number(high)}; {bar} the bar, {line}{dot}{line} 90% of the forecast"
    lines.append(paint(f"  {'at':>5}  {'forecast':>10}  {scale}", "dim"))
    for look in drawn:
        mean, start, end, target = (_column(v, low, high) for v in _ends(look))
        cells = [line if start <= i <= end else " " for i in range(WIDTH)]
        cells[target], cells[mean] = bar, dot
        progress = look.get("progress")
        at = f"{100 * progress:.0f}%" if isinstance(progress, (int, float)) else ""
        lines.append(f"  {at:>5}  {number(look.get('forecast')):>10}  {''.join(cells)}".rstrip())
    return lines


def _verdict(last: Mapping[str, Any]) -> str:
    """Whether the run was ended or let go on, and what the look at it saw that this was decided by."""
    sentence = clean(last.get("sentence") or "", 400)
    if last.get("abort"):
        return f"ended {sentence}".rstrip()
    return f"let go on; the last look, {sentence}" if sentence else "let go on"


def _spread(looks: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """At most ``LINES`` of them, evenly chosen, the last one among them."""
    if len(looks) <= LINES:
        return looks
    return [looks[round(i * (len(looks) - 1) / (LINES - 1))] for i in range(LINES)]


def _ends(look: Mapping[str, Any]) -> tuple[float | None, ...]:
    """Forecast, its interval, and the bar; None for what is no finite number."""
    return tuple(real(look.get(name)) for name in ("forecast", "low", "high", "bar"))


def _column(value: float | None, low: float, high: float) -> int:
    if value is None or not high > low:
        return WIDTH // 2
    return min(WIDTH - 1, int((value - low) / (high - low) * WIDTH))
