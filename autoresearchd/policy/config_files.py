"""The constants of a YAML, JSON or TOML file that a program reads: ``config.yaml:optimizer.lr``."""

from __future__ import annotations

from autoresearchd.config.markup import MarkupError, kind_of, scalars
from autoresearchd.domain.labels import Label
from autoresearchd.errors import PolicyError
from autoresearchd.policy.comments import FIXED, fixed_above
from autoresearchd.policy.gather import BY_COMMENT, Gatherer, Hints, Space
from autoresearchd.policy.ranges import is_not_own


def look(text: str, path: str, hints: Hints) -> Space:
    """All constants of the file; PolicyError where it cannot be read."""
    try:
        found = scalars(path, text)
    except MarkupError as error:
        where = f"{path}, line {error.line}" if error.line else path
        raise PolicyError(
            f"{where}: the file cannot be searched for constants: {error.what}",
            label=Label.ERROR,
            mend="correct the file, or take another policy",
        ) from error
    gathered = Gatherer(path, text, hints, comments=kind_of(path) != "JSON")
    for scalar in found:
        held = any(fixed_above(gathered.above(a)) or FIXED.search(gathered.beside(b)) for a, b in scalar.heads)
        why = BY_COMMENT if held else ""
        if scalar.name in {word.lstrip("+") for word in hints.given}:
            why = f"execution.run_command gives {scalar.name}"
        group = scalar.name.rpartition(".")[0]
        against = f"in {group}, which is about data, results or logs" if group and is_not_own(group) else ""
        gathered.take(scalar.name, scalar.value, scalar.start, scalar.end, why=why, against=against)
    return gathered.space()
