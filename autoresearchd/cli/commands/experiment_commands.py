"""The commands experiments and show: what was tried, and everything about one of them."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any

import typer

from autoresearchd import keys
from autoresearchd.cli import terminal_text
from autoresearchd.cli.command_options import LARGEST, JsonOption, SessionOption
from autoresearchd.cli.commands.logs_command import print_log
from autoresearchd.cli.commands.status_command import KEEPS, experiment_table, status_words
from autoresearchd.cli.repository_here import find_place, here
from autoresearchd.cli.terminal_text import (
    COLOURS,
    Paint,
    clean,
    json_text,
    measured,
    number,
    real,
    say,
    strip_controls,
)
from autoresearchd.domain.confirmation import ablates
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.labels import Status
from autoresearchd.domain.outlook import PASSED_BY, UNUSED
from autoresearchd.domain.quantities import counted, format_duration, some_of
from autoresearchd.evaluator.measure.log_text import tells
from autoresearchd.report.plain_text import diff_lines, money, names_of_runs, outcome_words, program_words
from autoresearchd.workspace import layout

Record = Mapping[str, Any]

_ASI_NAMES = {"next_action_hint": "next", "arch_change": "change", "expected_delta": "expected"}
_UNKNOWN_PRICE = "price unknown"
_CUT = 100
_MOST_LOOKS = 20
_MOST_LOGS = 6


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

    The delta is the gain expected over the tip before it: + is better, whichever way the metric goes. A lucky value
    is believed only in part, so that it is no difference of two values of the table. A keep is open until it is
    confirmed, or falls back, beside the confirmed program.
    """
    place = find_place(here())
    tag = place.pick(session)
    if role is not None:
        known = [str(found["name"]) for found in place.reader.status(tag)["roles"]]
        if role not in known:
            hint = f"there are {', '.join(known)}" if known else "no role has taken a turn: `start --roles` has them do"
            raise UsageError(f"no role {role[:40]!r} has proposed anything in session {tag}", hint=clean(hint, 400))
    found = place.reader.experiments(tag, status=status.value if status else None, last=last, role=role)
    if as_json:
        separator = "["
        for record in found:  # one on a line, written as they come
            sys.stdout.write(f"{separator}\n{json_text(record)}")
            separator = ","
        sys.stdout.write("[]\n" if separator == "[" else "\n]\n")
        return
    records, terminal = list(found), terminal_text.is_terminal(sys.stdout)
    if not records:
        say("no experiment yet" if status is None else f"no experiment with the status {status.value}")
        return
    total = terminal_text.terminal_width() if terminal else None
    print("\n".join(experiment_table(records, Paint(sys.stdout), total=total)))
    if terminal:
        signs = "; ".join(f"keep {sign}: {word}" for word, _, sign in KEEPS.values())
        say(f"delta: expected gain over the tip before it, + is better; {signs}; --help says more")


def show(
    experiment: Annotated[
        int, typer.Argument(metavar="N", min=0, max=LARGEST, help="Number of the experiment; 0 is the baseline.")
    ],
    diff: Annotated[
        bool,
        typer.Option("--diff", help="Also what it changed in its parent, as a unified diff; in a pipe the diff alone."),
    ] = False,
    log: Annotated[bool, typer.Option("--log", help="Also what its runs printed; in a pipe that alone.")] = False,
    answers: Annotated[
        bool, typer.Option("--answers", help="Also what models were asked and answered; in a pipe that alone.")
    ] = False,
    as_json: JsonOption = False,
    session: SessionOption = None,
) -> None:
    """Show everything about one experiment.

    The decision, its run, the confirmations that it was in, what was learned; with --diff what it changed, with --log
    what its runs printed, with --answers what the models were asked and what they answered. The gain and the
    probability in the reason take into account that most edits improve nothing.
    """
    place = find_place(here())
    tag = place.pick(session)
    named = f" --session {shlex.quote(clean(session))}" if session else ""
    try:
        record = keys.redactor().value(dict(place.reader.show(tag, experiment, full=answers)))
    except KeyError:
        newest = max((int(e["experiment"]) for e in place.reader.experiments(tag, last=1)), default=-1)
        known = f"they are numbered 0 to {newest}" if newest >= 0 else "there is none yet"
        what = f"session {tag} has no experiment {experiment}: {known}"
        raise UsageError(what, hint=f"see `autoresearchd experiments{named}`") from None
    logs = layout.run_logs(place.root, tag, experiment)
    if as_json:
        print(json_text({**record, "logs": [str(path) for path in logs]}, indent=2))
        return
    paint = Paint(sys.stdout)
    # In a pipe the diff and the logs stand alone, for `git apply` and the like; a reader wants to see what they are of.
    if terminal_text.is_terminal(sys.stdout) or not (diff or log or answers):
        hints = [str(path) for path in logs]
        if len(logs) > _MOST_LOGS:
            hints = [f"{logs[0].parents[1]}/   the logs of its runs, those of confirmations among them"]
        if str(record.get("diff") or "").strip() and not diff:
            hints.insert(0, f"autoresearchd show {experiment}{named} --diff   shows what it changed in its parent")
        print("\n".join([*_experiment_lines(record, paint, named), "", *(paint(f"  {hint}", "dim") for hint in hints)]))
    if diff:
        _print_diff(record, paint)
    if log:
        from autoresearchd.store.page_reader import PageReader

        redactor = place.redactor(tag)
        whose = names_of_runs(record, PageReader(place.project.journal).programs(tag, experiment)) if logs else {}
        for path in logs:
            name = whose.get(int(path.parent.name), f"run {path.parent.name}")
            print(paint(f"==> {name}: {path} <==", "bold"))
            print_log(path, redactor)
        if not logs:
            say("there is no log of this experiment (any more)")
    if answers:
        _print_answers(record.get("answers") or [], paint)


# ---------------------------------------------------------------------- the experiment as text
def _experiment_lines(record: Record, paint: Paint, named: str) -> list[str]:
    """named: the option that names the session, where it was given."""
    status = str(record.get("status") or record.get("phase") or "open")
    colour = COLOURS.get(status, "")
    name = paint(f"#{record.get('experiment')}", "bold")
    if status == "keep":
        colour = KEEPS[record.get("confirmed")][1]
    head = f"{paint('●', colour)} {name} {paint(status_words({**record, 'status': status}, paint), colour, 'bold')}"
    if record.get("label"):
        head += f" ({clean(record['label'])})"
    described, reason = clean(record.get("description") or ""), clean(record.get("reason") or "")
    # A failed proposal is described by its failure, which the reason tells at length.
    lines = [head if tells(reason, described) else f"{head}  {described}", ""]
    lines += [f"  {paint(f'{name:<12}', 'dim')}{words}" for name, words in _facts(record) if words]
    for key, value in (record.get("asi") or {}).items():
        if not _stands_above(record, key, value):
            name = _ASI_NAMES.get(key) or clean(key, 40).replace("_", " ")  # a policy may have keys of its own
            lines.append(f"  {paint(f'{name:<11} ', 'dim')}{_value(value)}")
    lines += _run_table(record, paint)
    for test in record.get("confirmations") or []:
        lines += _confirmation_lines(test, int(record["experiment"]), record.get("sigma"), paint, named)
    lines += _answer_table(record.get("answers") or [], paint)
    return lines + look_lines(record.get("looks") or [], paint)


def _stands_above(record: Record, key: str, value: Any) -> bool:
    """Whether a piece of the ASI is the daemon's own note of the label or of the reason, which are shown anyhow."""
    reason = str(record.get("reason") or "")
    if key == "result" and reason:
        return str(value) == reason or str(value).endswith(f": {reason}")
    if key == "re_added" and record.get("re_added"):
        return True
    return (key == "refused" and value == record.get("label")) or (key == "failure" and str(value) in reason)


def _facts(record: Record) -> Iterator[tuple[str, str]]:
    sigma = record.get("sigma")

    def text(key: str) -> str:
        return clean(record.get(key) or "")

    yield "value", measured(record.get("metric"), sigma)
    gain = measured(record.get("expected_gain"), sigma, sign="+")
    yield (
        "gain",
        f"{gain} expected over the tip before it (+ is better)" if record.get("expected_gain") is not None else "",
    )
    if record.get("status") == "keep":
        yield "confirmed", _confirmed_words(record)
    metrics = record.get("metrics") or {}
    yield "metrics", ", ".join(f"{clean(name)} {_value(value)}" for name, value in metrics.items())
    yield "reason", text("reason")
    yield "hypothesis", "" if (record.get("asi") or {}).get("hypothesis") else text("hypothesis")
    yield "re-added", _back_words(record.get("re_added") or {})
    attempts = record.get("attempts") or []
    for i, (before, _) in enumerate(pairwise(attempts), 2):
        why = ": ".join(filter(None, (clean(before.get("label") or ""), clean(before.get("reason") or "", _CUT))))
        yield "repair", f"attempt {i} of {len(attempts)}: a repair after {why or 'a failure'}"
    role, adapter = text("role"), text("adapter")
    yield "refused", _refused_words(record)
    yield "policy", text("policy") + (f" as {role}" if role else "") + (f" + {adapter}" if adapter else "")
    yield "commit", text("commit")
    yield "parent", text("parent")
    confidence = record.get("confidence")
    beside = "the best gain by the spread of all values; for comparison, it decides nothing"
    yield "confidence", "" if confidence is None else f"{number(confidence, 2)} ({beside})"
    yield "reward", number(record["reward"], 3, sign="+") if record.get("reward") is not None else ""
    yield "cost", _cost_words(record)
    overhead = real(record.get("overhead_ms"))
    yield "overhead", "" if overhead is None else f"{overhead:.0f} ms"
    for name in ("started", "finished"):
        at = terminal_text.read_time(record.get(f"{name}_at"))
        yield name, "" if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _back_words(back: Record) -> str:
    """Lines that an earlier keep had removed, with some of them, and constants that go back to an earlier value."""
    words = []
    if back.get("lines"):
        by = some_of([f"#{n}" for n in sorted({one["by"] for one in back["removed"]})])
        shown = some_of([f"`{clean(one['line'], _CUT)}`" for one in back["removed"]], 2, "; ")
        share = f"{back['lines']} of {counted(back['added'], 'added line')} ({back['share']:.0%})"
        words.append(f"{share} had been removed by {by}: {shown}")
    if back.get("values"):
        words.append(f"{counted(back['values'], 'constant')} set back to an earlier value")
    return "; ".join(words)


def _refused_words(record: Record) -> str:
    """Of who passed: what it had proposed before, and was told of it."""
    said = record.get("asi") or {}
    refused = [clean(answer["error"], _CUT) for answer in record.get("answers") or [] if answer.get("error")]
    if not refused or PASSED_BY not in said or UNUSED in said:
        return ""
    return f"{counted(len(refused), 'answer')} before {clean(said[PASSED_BY], 40)} passed: {refused[-1]}"


def _cost_words(record: Record) -> str:
    """What an experiment cost; what is not known is said, and is not taken for nothing."""
    answers, usd = record.get("answers") or [], real(record.get("cost_usd"))
    if usd is not None:
        return _price(usd) if usd else ""
    prices = [real(answer.get("cost_usd")) for answer in answers]
    if known := sum(price or 0.0 for price in prices):
        return f"at least {_price(known)}, {_UNKNOWN_PRICE} for {prices.count(None)} of {len(answers)} answers"
    return _UNKNOWN_PRICE if answers or record.get("policy") else ""


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], paint: Paint, **how: Any) -> list[str]:
    return ["  " + line for line in terminal_text.table(headers, rows, paint=paint, **how)]


def _confirmed_words(record: Record) -> str:
    """Whether a keep is more than believed, and since which confirmation."""
    confirmed, number = record.get("confirmed"), int(record["experiment"])
    if confirmed is None:
        return "not yet: that it is better is only believed"
    wanted = "confirmed" if confirmed else "fell"
    tests = [one for one in record.get("confirmations") or [] if one.get("moved") and int(one["against"]) < number]
    by = next((one for one in tests if one.get("outcome") == wanted), None)
    held = "yes" if record.get("policy") == "imported" else "yes, the branch has it"
    words = held if confirmed else "no, it fell back"
    if by is None:  # the baseline, or one of a session before there were confirmations
        return words
    chain = f" with the keeps up to #{by['experiment']}" if by["experiment"] != number else ""
    return f"{words}: confirmation {by['number']}{chain}"


def _run_table(record: Record, paint: Paint) -> list[str]:
    """The runs; in a session before confirmations others were run beside the experiment, whose program is named."""
    runs = record.get("runs") or []
    if not runs:
        return []
    beside = any(run.get("of") is not None for run in runs)
    away = any(run.get("host") not in (None, "", "local", platform.node()) for run in runs)
    rows = [
        [*_run_cells(run, record.get("sigma")), "—" if run.get("exit_code") is None else str(run["exit_code"]),
         *([_program(run, "its own")] if beside else []), *([clean(run.get("host") or "", 40)] if away else []),
         clean(run.get("label") or "")]
        for run in runs
    ]  # fmt: skip
    more = *(("program",) if beside else ()), *(("host",) if away else ())
    headers = ("seed", "value", "time", "exit", *more, "label")
    return ["", *_table(headers, rows, paint, right=(0, 1, 2, 3))]


def _run_cells(run: Record, sigma: Any) -> list[str]:
    return [str(run.get("seed", "")), measured(run.get("metric"), sigma), _seconds(run.get("duration_s"))]


def _program(run: Record, own: str) -> str:
    return own if run.get("of") is None else f"#{run['of']}"


def _confirmation_lines(test: Record, number: int, sigma: Any, paint: Paint, named: str) -> list[str]:
    """A confirmation: what was compared, each run, the mean gain after each pair, and the verdict."""
    outcome, tip, ablation = outcome_words(test), program_words(test), ablates(str(test.get("why")))
    colour = {"confirmed": "green", "fell back": "red"}.get(outcome, "cyan")
    head = f"{'ablation' if ablation else 'confirmation'} {test['number']}: {tip} against #{test['against']}"
    if budget := real(test.get("budget")):
        head += f", with {format_duration(budget)} of training"
    path, seen, rows = list(test.get("path") or []), set[Any](), []
    for run in test.get("runs") or []:
        good = run.get("metric") is not None and not run.get("label")
        paired = good and run.get("seed") in seen and bool(path)
        seen |= {run.get("seed")} if good else set()
        gain = measured(path.pop(0), sigma, sign="+") if paired else ""
        rows.append([*_run_cells(run, sigma), _program(run, tip), gain, clean(run.get("label") or "")])
    headers = ("seed", "value", "time", "program", "gain so far", "label")
    lines = ["", f"  {paint(head, 'bold')}  {paint(outcome, colour)}"]
    lines += [f"  {clean(test['reason'], 600)}"] if test.get("reason") else []
    if number not in (test["experiment"], test["against"]):
        return [*lines, paint(f"  its runs: autoresearchd show {test['experiment']}{named}", "dim")]
    return lines + (_table(headers, rows, paint, right=(0, 1, 2, 4)) if rows else [])


def _answer_table(answers: Sequence[Record], paint: Paint) -> list[str]:
    if not answers:
        return []
    rows = [
        [str(i), clean(answer.get("model") or "", 40), _count(answer.get("tokens_in")),
         _count(answer.get("tokens_out")), _price(answer.get("cost_usd")), _seconds(answer.get("seconds")),
         clean(answer.get("finish") or "", 20), _outcome(answer) or "—"]
        for i, answer in enumerate(answers, 1)
    ]  # fmt: skip
    colours = [{7: "red" if answer.get("error") else "green"} for answer in answers]
    headers = ("#", "model", "in", "out", "cost", "time", "finish", "gave")
    return ["", *_table(headers, rows, paint, right=(0, 2, 3, 4, 5), colours=colours)]


def look_lines(looks: Sequence[Record], paint: Paint) -> list[str]:
    """What the early abort saw of a run: its last look in words, and the newest that had a forecast as a table."""
    if not looks:
        return []
    sentence = clean(looks[-1].get("sentence") or "", 400)
    verdict = f"let go on; the last look, {sentence}" if sentence else "let go on"
    if looks[-1].get("abort"):
        verdict = f"ended {sentence}".rstrip()
    names = ("forecast", "low", "high", "bar")
    rows = [
        [f"{100 * (real(look.get('progress')) or 0.0):.0f}%", *(number(look[name]) for name in names)]
        for look in looks
        if all(real(look.get(name)) is not None for name in names)
    ]
    headers = ("at", "forecast", "90% from", "to", "bar")
    table = _table(headers, rows[-_MOST_LOOKS:], paint, right=range(5)) if rows else []
    return ["", f"  {paint('early abort', 'bold')}  {verdict}", *table]


def _value(value: Any) -> str:
    if isinstance(value, float):
        return measured(value)
    return clean(value if isinstance(value, str) else json_text(value))


def _price(usd: Any) -> str:
    """US dollars; words where the price is not known."""
    return _UNKNOWN_PRICE if real(usd) is None else money(usd)


def _outcome(answer: Record) -> str:
    """How the edit was written, or why the answer could not be used."""
    form, error = clean(answer.get("form") or "", 20), clean(answer.get("error") or "", _CUT)
    attempt = answer.get("attempt") or 0
    return (error or form or ("—" if attempt else "")) + (f" (attempt {attempt + 1})" if attempt else "")


def _count(value: Any) -> str:
    found = real(value)
    return "—" if found is None else f"{found:,.0f}"


def _seconds(value: Any) -> str:
    found = real(value)
    return "—" if found is None else f"{found:.1f}s"


# ---------------------------------------------------------------------- in full
def _print_diff(record: Record, paint: Paint) -> None:
    """The diff in its usual colours, without what would steer the terminal; or why there is none.

    In a pipe it is exact, unless the user has it coloured: then somebody reads it.
    """
    terminal, colours = terminal_text.is_terminal(sys.stdout), {"add": "green", "del": "red", "hunk": "cyan"}
    lines = list(diff_lines(str(record.get("diff") or ""), exact=not (paint.enabled or terminal)))
    if lines and terminal:
        print(paint(f"==> what it changed in its parent, {clean(record.get('parent') or '')[:12]} <==", "bold"))
    for line, kind in lines:
        print(paint(line, "bold" if kind == "file" else colours.get(kind, "")))
    if not lines:
        say("there is no diff: nothing was committed or changed, or the log that was imported holds none")


def _print_answers(answers: Sequence[Record], paint: Paint) -> None:
    """Each answer in full, after the messages that it answers; messages that were shown before are not repeated."""
    if not answers:
        say("no model was asked for this experiment")
    before: Sequence[Any] = ()
    for i, answer in enumerate(answers, 1):
        messages = answer.get("messages") or []
        facts = [clean(answer.get("model") or "", 60), _outcome(answer)]
        facts.append(f"{_count(answer.get('tokens_in'))} tokens in, {_count(answer.get('tokens_out'))} out")
        facts += [
            _price(answer.get("cost_usd")),
            _seconds(answer.get("seconds")),
            clean(answer.get("finish") or "", 20),
        ]
        print(paint(f"==> answer {i} of {len(answers)}: {', '.join(filter(None, facts))} <==", "bold"))
        pairs = list(zip(before, messages, strict=False))
        shared = next((k for k, (old, new) in enumerate(pairs) if old != new), len(pairs))
        if shared:
            print(paint(f"--- {counted(shared, 'message')} as above ---", "dim"))
        for message in messages[shared:]:
            known = message if isinstance(message, Mapping) else {"content": message}
            _print_part(clean(known.get("role") or "message", 20), known.get("content"), paint)
        _print_part("answer", answer.get("completion") or "", paint)
        if answer.get("error"):
            _print_part("not usable", answer["error"], paint)
        before = messages


def _print_part(name: str, content: Any, paint: Paint) -> None:
    print(paint(f"--- {name} ---", "dim"))
    text = content if isinstance(content, str) else "" if content is None else json_text(content, indent=2)
    for line in text.rstrip("\n").split("\n"):
        print(strip_controls(line))
