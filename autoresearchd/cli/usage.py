"""Mistakes in a command line in the words of this program: which option, what is wrong with it, how to mend it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import typer
from pydantic import ValidationError

from autoresearchd.errors import UsageError

_NEGATIVE = re.compile(r"-\d+")
_NO_NUMBER = ("int_parsing", "int_parsing_size", "int_from_float", "int_type", "float_parsing")


def explained(error: typer.TyperException, program: str) -> UsageError:
    """What typer has found wrong with a command line, as an error of our own."""
    context = getattr(error, "ctx", None)
    see = f"`{context.command_path if context is not None else program} --help` shows what it takes"
    if isinstance(error, typer.BadParameter) and error.param is not None:
        name = error.param.get_error_hint().replace("'", "")
        if not error.message:
            choices = " ".join((error.param.get_missing_message(ctx=context) or "").split())
            return UsageError(f"{name} is missing", mend=choices.replace("Choose from:", "give one of") or see)
        what, mend = _value(error.__cause__, error.message)
        return UsageError(f"{name}: {what}", mend=mend or see)
    what, _, suggestion = error.format_message().partition(" Did you mean ")
    near: Sequence[str] = getattr(error, "possibilities", None) or ()
    if near:
        what, suggestion = error.message, f"{' or '.join(sorted(near))}?"
    what = what[:1].lower() + what[1:].removesuffix(".")
    if _NEGATIVE.fullmatch(option := str(getattr(error, "option_name", ""))):
        return UsageError(
            f"{option} is read as an option, and there is none of that name",
            mend=f"numbers are 0 or more; before a text that begins so write -- first; {see}",
        )
    if getattr(error, "option_name", "") == "--dir":
        return UsageError(what, mend=f"it is about the folder that it is given in: `cd` there first; {see}")
    return UsageError(what, mend=f"did you mean {suggestion}" if suggestion else see)


def _value(cause: BaseException | None, message: str) -> tuple[str, str]:
    """(what is wrong with a value, how to mend it); the latter is empty where only the command's help says it."""
    found = cause.errors(include_url=False)[0] if isinstance(cause, ValidationError) else None
    if found is None:
        return _lowered(message), ""
    given, bounds = str(found["input"])[:40], found.get("ctx", {})
    if found["type"] in _NO_NUMBER:
        return f"{given!r} is no whole number", "write it in digits, e.g. 20"
    if "ge" in bounds:
        return f"{given} is less than {bounds['ge']}", f"write {bounds['ge']} or more"
    if "le" in bounds:
        return f"{given} is more than {bounds['le']}", f"write {bounds['le']} or less"
    return _choice(message.removeprefix("Value error, "), given)


def _choice(message: str, given: str) -> tuple[str, str]:
    """Of a word that is none of those that there are: the nearest of them."""
    from autoresearchd.config.problems import nearest

    _, among, listed = message.partition(" is not one of ")
    choices = [choice.strip(" '\".") for choice in listed.split(",")]
    if not among:
        return _lowered(message), ""
    near = nearest(given, choices)
    return f"{given!r} is none of {', '.join(choices)}", f"did you mean {near}?" if near else "write one of them"


def _lowered(message: str) -> str:
    text = " ".join(message.split()).removesuffix(".")
    return text[:1].lower() + text[1:]
