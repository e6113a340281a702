"""The commands cloud list and cloud down: machines that sessions have rented."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated

import typer

from autoresearchd.cli.command_options import JsonOption
from autoresearchd.cli.repository_here import here
from autoresearchd.cli.terminal_text import clean, json_text, print_table, say
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.quantities import counted


def list_machines(as_json: JsonOption = False) -> None:
    """List the machines that sessions of yours have rented, wherever they run, and what they cost."""
    from autoresearchd.app import cloud
    from autoresearchd.executor.cloud.skypilot import SkyPilot

    found = [cloud.describe(machine) for machine in cloud.rented(SkyPilot())]
    if as_json:
        print(json_text(found, indent=2))
    elif not found:
        say("nothing is rented")
    else:
        rows = [
            [
                clean(one["name"], 100),
                clean(one["state"], 20),
                *("—" if one[key] is None else f"${one[key]:.2f}" for key in ("usd_per_hour", "usd")),
                f"{datetime.fromisoformat(one['since']):%Y-%m-%d %H:%M}",
                clean(one["what"], 100),
            ]
            for one in found
        ]
        print_table(("machine", "state", "an hour", "so far", "since (UTC)", "what"), rows, right=(2, 3), fits=True)


def down(
    tag: Annotated[str | None, typer.Argument(metavar="[TAG]", help="The session (default: the newest here).")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Those of all sessions, whatever repository.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """End machines that a session has left, as after a crash of its daemon.

    One that runs is stopped with `autoresearchd stop`, which ends its machines, too. Results that were not fetched are
    lost, and their runs are made again.
    """
    from autoresearchd.app import cloud
    from autoresearchd.executor.cloud.skypilot import SkyPilot

    if everything and tag is not None:
        raise UsageError(f"cloud down {tag} --all: all, or those of one session", hint="leave one of them out")
    rental = SkyPilot()
    machines = cloud.rented(rental)
    names = [machine.name for machine in (machines if everything else cloud.chosen(machines, here(), tag))]
    if not names:
        more = (
            f"; {counted(len(machines), 'machine')} of other sessions: `autoresearchd cloud list`" if machines else ""
        )
        say(f"nothing is left to be ended{more}")
        return
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("they are not ended without a yes, and nobody can be asked", hint="add --yes")
        if not typer.confirm(f"End {', '.join(names)}?", default=False, err=True):
            say("nothing was ended")
            return
    rental.down(names)
    say(f"ended {', '.join(names)}")
