"""Problems of a task.yaml, each with its line and its remedy, and the one error that tells all of them together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn

from autoresearchd.domain.errors import ConfigError

MISSING = "this key is missing"
"""What is wrong with a key that has to be there."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong in a file. line is 1-based; None where the file as a whole is meant."""

    what: str
    hint: str
    key: str = ""
    line: int | None = None

    def error(self, file: str) -> ConfigError:
        """This problem alone, as an error."""
        return ConfigError(self.what, file=file, line=self.line, key=self.key, hint=self.hint)


def raise_all(file: str, problems: Iterable[Problem]) -> NoReturn:
    """Raise one ConfigError: for the first problem by line, the others following it, one a line with its remedy."""
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem.line or 0)
    meant = {(problem.key.rpartition(".")[0], problem.hint) for problem in ordered}
    ordered = [problem for problem in ordered if not _only_misspelt(problem, meant)]
    first, *others = ordered
    error = first.error(file)
    if not others:
        raise error
    error.hint = "\n".join([error.hint, *(str(problem.error(file)) for problem in others)])
    raise error


def raise_any(file: str, problems: Iterable[Problem]) -> None:
    """As ``raise_all``; nothing is raised where there is no problem."""
    if known := list(problems):
        raise_all(file, known)


def _only_misspelt(problem: Problem, meant: set[tuple[str, str]]) -> bool:
    """Whether a key is missing because the one that stands for it is misspelt, which another problem says."""
    within, _, key = problem.key.rpartition(".")
    return problem.what == MISSING and (within, _question(key)) in meant


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that ``word`` is nearly; empty where there is none."""
    lowered = {choice.lower(): choice for choice in reversed(list(known))}
    near = get_close_matches(word.lower().replace("-", "_"), list(lowered), n=1, cutoff=0.6)
    return lowered[near[0]] if near else ""


def _question(near: str) -> str:
    return f"did you mean {near!r}?"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A remedy for a word that is not known: the nearest known one, or all of them."""
    choices = list(known)
    near = nearest(word, choices)
    return _question(near) if near else f"known here: {', '.join(choices)}"


def shown(value: object) -> str:
    """A value as it is quoted in a message: short, on one line."""
    words = {"None": "nothing", "True": "true", "False": "false"}
    text = words.get(str(value), repr(value)) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
