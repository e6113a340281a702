"""The command finalize."""

from __future__ import annotations

from typing import Annotated

import typer

from autoresearchd.cli.command_options import JsonOption, SessionOption
from autoresearchd.cli.repository_here import here
from autoresearchd.cli.terminal_text import clean, json_text, print_table, say


def finalize(
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="NAME", help="Name of the branches (default: final/TAG).", show_default=False),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="REV", help="The commit to stand on (default: where the session began)."),
    ] = None,
    squash: Annotated[bool, typer.Option("--squash", help="One commit, on the branch NAME alone.")] = False,
    ablate: Annotated[
        bool,
        typer.Option("--ablate", help="First run the program without each improvement, and drop what brings nothing."),
    ] = False,
    as_json: JsonOption = False,
    session: SessionOption = None,
) -> None:
    """Make branches to review and merge from what is confirmed.

    Each improvement is a commit of its own with its evidence in the message: NAME-1, NAME-2, … stand one on the other,
    and NAME is the whole. No branch that is there is changed, nor what you have checked out; the command that takes all
    of it back is printed. A daemon may be at work meanwhile, but not with --ablate, which takes about 10 runs for each
    improvement; cut short, the same command goes on with it.
    """
    from autoresearchd.app.finalize import FinalizeOptions, finalize
    from autoresearchd.cli.foreground import foreground_sink

    with foreground_sink(live=ablate) as sink:
        done = finalize(here(), session, FinalizeOptions(into, base, squash, ablate), [sink])
    if as_json:
        print(json_text(done.as_dict(), indent=2))
        return
    rows = [
        [made.name, made.commit[:10], ", ".join(f"#{number}" for number in made.experiments), clean(made.subject, 80)]
        for made in done.branches
    ]
    print_table(("branch", "commit", "experiments", "what"), rows)
    for number, why in sorted(done.notes.items()):
        print(f"#{number} {clean(why, 600)}")
    if done.remark:
        print(clean(done.remark, 800))
    say(f"on {done.base[:10]}; {done.undo}   takes it back")
