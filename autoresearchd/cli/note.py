"""The command note: a message to whoever proposes."""

from __future__ import annotations

from typing import Annotated

import typer

from autoresearchd.cli.failure import say
from autoresearchd.cli.options import SessionOption
from autoresearchd.cli.session import here, pick
from autoresearchd.errors import UsageError


def note(
    text: Annotated[str, typer.Argument(help="What to say; in quotes.")],
    session: SessionOption = None,
) -> None:
    """Leave a message for the agent.

    It is in the next prompt of a policy that reads prompts (command:, models); the loop does not stop for it.
    """
    if not text.strip():
        raise UsageError("the note is empty", mend='autoresearchd note "try a larger batch"')
    tag = pick(session)
    from autoresearchd.app import commands

    say(commands.note(here(), tag, text.strip()))
