"""The commands, put together: which there are, under which names, with which examples."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from autoresearchd import __version__
from autoresearchd.cli import (
    adapters,
    doctor,
    experiments,
    learn,
    logs,
    report,
    serve,
    session,
    skills,
    status,
    task,
    task_space,
)
from autoresearchd.cli.options import examples
from autoresearchd.cli.render import guarded

PROGRAM = "autoresearchd"
_ABORTED = 1


def build() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        name=PROGRAM,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        epilog=examples(
            f"{PROGRAM} start --task autoresearch --foreground",
            f"{PROGRAM} status --watch",
            f"{PROGRAM} plot -o progress.png",
        ),
    )
    app.callback()(_root)
    app.command("start", epilog=examples(
        f"{PROGRAM} start --task autoresearch", f"{PROGRAM} start --task . --budget 5m --max-time 8h --tag night1",
        f"{PROGRAM} start --policy 'command:~/bin/propose.sh' --max-experiments 20 --foreground",
        f"{PROGRAM} start --policy litellm:anthropic/claude-sonnet-4-5 --max-cost 5",
    ))(session.start)  # fmt: skip
    app.command("resume", epilog=examples(
        f"{PROGRAM} resume", f"{PROGRAM} resume night1 --foreground", f"{PROGRAM} resume night1 --max-experiments 40"
    ))(session.resume)  # fmt: skip
    app.command("stop", epilog=examples(f"{PROGRAM} stop", f"{PROGRAM} stop --now"))(session.stop)
    app.command("pause", epilog=examples(f"{PROGRAM} pause"))(session.pause)
    app.command("unpause", epilog=examples(f"{PROGRAM} unpause"))(session.unpause)
    app.command("status", epilog=examples(
        f"{PROGRAM} status", f"{PROGRAM} status --watch", f"{PROGRAM} status --json | jq .metric.best"
    ))(status.status)  # fmt: skip
    app.command("note", epilog=examples(f'{PROGRAM} note "leave the optimiser alone, try the schedule"'))(session.note)
    app.command("experiments", epilog=examples(
        f"{PROGRAM} experiments --last 20", f"{PROGRAM} experiments --status keep --json"
    ))(experiments.experiments)  # fmt: skip
    app.command("show", epilog=examples(
        f"{PROGRAM} show 12", f"{PROGRAM} show 12 --diff", f"{PROGRAM} show 12 --answers"
    ))(experiments.show)  # fmt: skip
    app.command("logs", epilog=examples(f"{PROGRAM} logs -f", f"{PROGRAM} logs -n 20"))(logs.logs)
    app.add_typer(_sessions(), name="sessions")
    app.add_typer(_tasks(), name="task")
    app.command("plot", epilog=examples(f"{PROGRAM} plot -o progress.png"))(report.plot)
    app.command("export", epilog=examples(
        f"{PROGRAM} export --format jsonl -o autoresearch.jsonl", f"{PROGRAM} export --format tsv > results.tsv"
    ))(report.export)  # fmt: skip
    app.command("import", epilog=examples(f"{PROGRAM} import autoresearch.jsonl"))(report.import_log)
    app.command("serve", epilog=examples(
        f"{PROGRAM} serve ./models/smollm2 --port 8000", f"{PROGRAM} start --policy local"
    ))(serve.serve)  # fmt: skip
    app.command("learn", epilog=examples(
        f"{PROGRAM} learn --algo grpo --dry-run", f"{PROGRAM} learn --algo ppo --model ./models/smollm2 --steps 100",
        f"{PROGRAM} learn --algo sdpo --from ../other --export trajectories.parquet",
    ))(learn.learn)  # fmt: skip
    app.add_typer(_adapters(), name="adapters")
    app.add_typer(_skills(), name="skills")
    app.command("doctor", epilog=examples(f"{PROGRAM} doctor", f"{PROGRAM} doctor --json"))(doctor.doctor)
    return app


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (None: that of the process) and return its exit code."""

    def command() -> int:
        try:
            code = typer.main.get_command(build()).main(
                args=arguments and list(arguments), prog_name=PROGRAM, standalone_mode=False
            )
        except typer.Abort:
            print("aborted", file=sys.stderr)
            return _ABORTED
        except typer.TyperException as error:
            return _misused(error)
        except SystemExit as end:  # completion ends so
            code = end.code
        return code if isinstance(code, int) else 0 if code is None else 1

    return guarded(command)


def _misused(error: typer.TyperException) -> int:
    """Tell what is wrong with the command line; a group without a command is answered by its help."""
    from autoresearchd.cli.usage import explained

    message = error.format_message()
    if not message.startswith("Usage: "):
        raise explained(error, PROGRAM) from error
    print(message, file=sys.stderr)
    return error.exit_code


def _tasks() -> typer.Typer:
    tasks = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="List, make and check tasks, see what is tuned."
    )
    tasks.command("list", epilog=examples(f"{PROGRAM} task list", f"{PROGRAM} task list --json"))(task.list_tasks)
    tasks.command("init", epilog=examples(
        f"{PROGRAM} task init autoresearch ./mytask",
        f"{PROGRAM} task init speed ./speed --file kernel.py --command 'python bench.py' --metric time_ms",
        f"{PROGRAM} task init night1 ./pi-project --no-measure",
    ))(task.init)  # fmt: skip
    tasks.command("check", epilog=examples(
        f"{PROGRAM} task check", f"{PROGRAM} task check ./mytask --run", f"{PROGRAM} task check --all --run --short"
    ))(task.check)  # fmt: skip
    tasks.command("space", epilog=examples(f"{PROGRAM} task space", f"{PROGRAM} task space ./mytask --json"))(
        task_space.space
    )
    return tasks


def _sessions() -> typer.Typer:
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List and remove sessions.")
    group.command("list", epilog=examples(f"{PROGRAM} sessions list", f"{PROGRAM} sessions list --json"))(
        session.list_sessions
    )
    group.command("remove", epilog=examples(f"{PROGRAM} sessions remove nov21"))(session.remove)
    return group


def _adapters() -> typer.Typer:
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Versions of the local policy.")
    group.command("list", epilog=examples(f"{PROGRAM} adapters list", f"{PROGRAM} adapters list --json"))(
        adapters.list_versions
    )
    group.command("promote", epilog=examples(f"{PROGRAM} adapters promote v3"))(adapters.promote)
    group.command("rollback", epilog=examples(f"{PROGRAM} adapters rollback"))(adapters.rollback)
    group.command(
        "prune", epilog=examples(f"{PROGRAM} adapters prune --dry-run", f"{PROGRAM} adapters prune --keep 1")
    )(adapters.prune)
    return group


def _skills() -> typer.Typer:
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Skills for coding agents.")
    group.command("list", epilog=examples(f"{PROGRAM} skills list", f"{PROGRAM} skills list --json"))(
        skills.list_skills
    )
    group.command(
        "add", epilog=examples(f"{PROGRAM} skills add --claude", f"{PROGRAM} skills add --dir .claude/skills")
    )(skills.add)
    return group


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
