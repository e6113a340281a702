"""The commands, put together: which there are, under which names, with which examples; and mistakes in their use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from autoresearchd import __version__
from autoresearchd.cli.commands import (
    adapter_commands,
    agent_commands,
    cloud_commands,
    doctor_command,
    experiment_commands,
    finalize_command,
    learn_command,
    logs_command,
    report_commands,
    serve_command,
    service_command,
    session_commands,
    skill_commands,
    status_command,
    task_commands,
    web_command,
)
from autoresearchd.cli.terminal_text import guarded
from autoresearchd.domain.errors import UsageError

PROGRAM = "autoresearchd"
Command = tuple[Callable[..., Any], tuple[str, ...]]
"""What a command does, and examples of it without the program's name."""

_COMMANDS: Mapping[str, Command] = {
    "start": (session_commands.start, (
        "start --task autoresearch", "start --task . --budget 5m --max-time 8h --tag night1",
        "start --policy 'command:~/bin/propose.sh' --max-experiments 20 --foreground",
        "start --policy litellm:anthropic/claude-sonnet-4-5 --max-cost 5",
    )),
    "resume": (session_commands.resume, ("resume", "resume night1 --foreground", "resume night1 --max-experiments 40")),
    "stop": (session_commands.stop, ("stop", "stop --now")),
    "pause": (session_commands.pause, ("pause",)),
    "unpause": (session_commands.unpause, ("unpause",)),
    "confirm": (session_commands.confirm, ("confirm", "confirm 12 --runs 5", "confirm --budget 20m")),
    "status": (status_command.status, ("status", "status --watch", "status --json | jq .metric.best")),
    "top": (status_command.top, ("top",)),
    "note": (session_commands.note, ('note "leave the optimiser alone, try the schedule"',)),
    "experiments": (experiment_commands.experiments, ("experiments --last 20", "experiments --status keep --json")),
    "show": (experiment_commands.show, ("show 12", "show 12 --diff", "show 12 --answers")),
    "logs": (logs_command.logs, ("logs -f", "logs -n 20")),
    "sessions list": (session_commands.list_sessions, ("sessions list", "sessions list --json")),
    "sessions remove": (session_commands.remove, ("sessions remove nov21",)),
    "task list": (task_commands.list_tasks, ("task list", "task list --json")),
    "task init": (task_commands.init, (
        "task init autoresearch ./mytask",
        "task init speed ./speed --file kernel.py --command 'python bench.py' --metric time_ms",
        "task init night1 ./pi-project --no-measure",
    )),
    "task check": (task_commands.check, ("task check", "task check ./mytask --run", "task check --all --run --short")),
    "task space": (task_commands.space, ("task space", "task space ./mytask --json")),
    "finalize": (finalize_command.finalize, (
        "finalize", "finalize --into night1 --base main", "finalize --ablate --squash"
    )),
    "plot": (report_commands.plot, ("plot -o progress.png",)),
    "report": (report_commands.report, ("report -o report.html", "report --format markdown > pull-request.md")),
    "export": (report_commands.export, (
        "export --format jsonl -o autoresearch.jsonl", "export --format tsv > results.tsv", "export --to optuna",
    )),
    "import": (report_commands.import_log, ("import autoresearch.jsonl",)),
    "web": (web_command.web, ("web", "web --port 9000 --session nov21")),
    "serve": (serve_command.serve, ("serve ./models/smollm2 --port 8000", "start --policy local")),
    "learn": (learn_command.learn, (
        "learn --algo grpo --dry-run", "learn --algo ppo --model ./models/smollm2 --steps 100",
        "learn --algo sdpo --from ../other --export trajectories.parquet",
    )),
    "adapters list": (adapter_commands.list_versions, ("adapters list", "adapters list --json")),
    "adapters promote": (adapter_commands.promote, ("adapters promote v3",)),
    "adapters rollback": (adapter_commands.rollback, ("adapters rollback",)),
    "adapters prune": (adapter_commands.prune, ("adapters prune --dry-run", "adapters prune --keep 1")),
    "cloud list": (cloud_commands.list_machines, ("cloud list", "cloud list --json")),
    "cloud down": (cloud_commands.down, ("cloud down", "cloud down night1 --yes", "cloud down --all")),
    "skills list": (skill_commands.list_skills, ("skills list", "skills list --json")),
    "skills add": (skill_commands.add, ("skills add --claude", "skills add --dir .claude/skills")),
    "service install": (service_command.install, ("service install", "service install --session night1")),
    "service uninstall": (service_command.uninstall, ("service uninstall",)),
    "service status": (service_command.status, ("service status", "service status --json")),
    "mcp": (agent_commands.mcp, ("mcp", "mcp --dir ~/research")),
    "doctor": (doctor_command.doctor, ("doctor", "doctor --json")),
}  # fmt: skip
_GROUPS = {
    "sessions": "List and remove sessions.",
    "task": "List, make and check tasks, see what is tuned.",
    "adapters": "Versions of the local policy.",
    "cloud": "Machines that sessions have rented.",
    "service": "A session as a service of this system.",
    "skills": "Skills for coding agents.",
}


def build() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        name=PROGRAM,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        epilog=_examples("start --task autoresearch --foreground", "status --watch", "plot -o progress.png"),
    )
    app.callback()(_root)
    groups: dict[str, typer.Typer] = {}
    for words, (function, lines) in _COMMANDS.items():
        group, _, name = words.rpartition(" ")
        if group and group not in groups:
            groups[group] = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=_GROUPS[group])
            app.add_typer(groups[group], name=group)
        (groups[group] if group else app).command(name, epilog=_examples(*lines))(function)
    return app


def _examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  {PROGRAM} {line}" for line in lines)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (None: that of the process) and return its exit code."""
    return guarded(partial(_run, arguments))


def _run(arguments: Sequence[str] | None) -> int:
    given = list(arguments) if arguments else None
    try:
        code = typer.main.get_command(build()).main(args=given, prog_name=PROGRAM, standalone_mode=False)
    except typer.Abort:
        print("aborted", file=sys.stderr)
        return 1
    except typer.TyperException as error:
        if error.format_message().startswith("Usage: "):  # a group without a command is answered by its help
            print(error.format_message(), file=sys.stderr)
            return error.exit_code
        raise _explained(error) from error
    except SystemExit as end:  # completion ends so, and typer where the reader of a pipe has gone away
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        code = end.code
    return code if isinstance(code, int) else 0 if code is None else 1


def _version(wanted: bool) -> None:
    if wanted:
        print(f"{PROGRAM} {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """A daemon that does machine-learning research while you sleep: edit, run, judge, keep or revert, for ever."""


# ---------------------------------------------------------------------- mistakes
def _explained(error: typer.TyperException) -> UsageError:
    context = getattr(error, "ctx", None)
    see = f"`{context.command_path if context is not None else PROGRAM} --help` shows what it takes"
    if isinstance(error, typer.BadParameter) and error.param is not None:
        name = error.param.get_error_hint().replace("'", "")
        if not error.message:
            choices = " ".join((error.param.get_missing_message(ctx=context) or "").split())
            return UsageError(f"{name} is missing", hint=choices.replace("Choose from:", "give one of") or see)
        what, hint = _value(error.__cause__, error.message)
        return UsageError(f"{name}: {what}", hint=hint or see)
    what, _, suggestion = error.format_message().partition(" Did you mean ")
    near: Sequence[str] = getattr(error, "possibilities", None) or ()
    if near:
        what, suggestion = error.message, f"{' or '.join(sorted(near))}?"
    return UsageError(_lowered(what), hint=f"did you mean {suggestion}" if suggestion else see)


def _value(cause: BaseException | None, message: str) -> tuple[str, str]:
    """(what is wrong with a value, how to fix it); the latter is empty where only the command's help says it."""
    if not isinstance(cause, ValidationError):
        return _lowered(message), ""
    found = cause.errors(include_url=False)[0]
    given, bounds = str(found["input"])[:40], found.get("ctx", {})
    if found["type"].startswith(("int_", "float_")):
        kind = "whole number" if found["type"].startswith("int_") else "number"
        return f"{given!r} is not a {kind}", "write it in digits, e.g. 20"
    if "ge" in bounds:
        return f"{given} is less than {bounds['ge']}", f"write {bounds['ge']} or more"
    if "le" in bounds:
        return f"{given} is more than {bounds['le']}", f"write {bounds['le']} or less"
    _, among, listed = message.partition(" is not one of ")
    if not among:
        return _lowered(message.removeprefix("Value error, ")), ""
    from autoresearchd.config.problems import nearest

    choices = [choice.strip(" '\".") for choice in listed.split(",")]
    near = nearest(given, choices)
    return f"{given!r} is none of {', '.join(choices)}", f"did you mean {near}?" if near else "write one of them"


def _lowered(message: str) -> str:
    text = " ".join(message.split()).removesuffix(".")
    return text[:1].lower() + text[1:]
