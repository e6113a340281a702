"""``check.yaml`` of a task, beside its task.yaml: read and checked as strictly as that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from autoresearchd.config.problems import Conflict, validated
from autoresearchd.config.task_schema import (
    PROFILES,
    InsidePath,
    Line,
    Number,
    Seconds,
    Section,
    Share,
    Text,
    must,
    one_or_many,
    repeated,
)
from autoresearchd.config.yaml_document import parse_yaml, read_text
from autoresearchd.domain.labels import RULES, Label
from autoresearchd.domain.task import Documented, Replacement, TaskCheck, Variant

CHECK_FILE = "check.yaml"
_EXPECTABLE = tuple(label for label in Label if RULES[label].status is not None and label is not Label.NONE)
_SEARCHED, _WHOLE = ("replace", "before", "after"), ("append", "prepend", "text")
_NAMES = ", ".join(sorted(_EXPECTABLE))
_Outcome = Annotated[Line, must(_EXPECTABLE.__contains__, "is not an outcome's label", f"take one of {_NAMES}")]


class Step(Section):
    """One replacement: ``search`` with one of replace, before and after, or one of append, prepend and text alone."""

    file: InsidePath | None = None
    search: Text | None = None
    replace: Text | None = None
    before: Text | None = None
    after: Text | None = None
    append: Text | None = None
    prepend: Text | None = None
    text: Text | None = None

    @property
    def given(self) -> list[str]:
        """Which of the ways to replace it names."""
        return [name for name in (*_SEARCHED, *_WHOLE) if getattr(self, name) is not None]

    def conflicts(self) -> Iterator[Conflict]:
        given = self.given
        if len(given) != 1:
            yield "", " and ".join(given) or "none of them", f"give one of {', '.join((*_SEARCHED, *_WHOLE))}"
        elif given[0] in _SEARCHED and not self.search:
            yield "search", f"{given[0]} needs it", "give the text that is there once as `search`"
        elif given[0] in _WHOLE and self.search:
            yield "search", f"does not go with {given[0]}", "leave `search` out"


class Edit(Section):
    """An honest edit."""

    name: Line
    change: Annotated[tuple[Step, ...], Field(min_length=1)]

    def variant(self, expected: Iterable[str] = ()) -> Variant:
        """This edit as what it means."""
        steps = (Replacement(s.given[0], getattr(s, s.given[0]), s.search or "", s.file) for s in self.change)
        return Variant(self.name, tuple(steps), frozenset(map(Label, expected)))


class Cheat(Edit):
    """A dishonest one, and how it may end."""

    expect: Annotated[tuple[_Outcome, ...], BeforeValidator(one_or_many), Field(min_length=1)] = (Label.NO_GAIN,)


class Figures(Section):
    """A documented baseline."""

    value: Number
    sigma: Share
    budget: Seconds | None = None
    within: Share = 0.0


class CheckFile(Section):
    """All of check.yaml."""

    baseline: dict[str, Figures] = Field(default_factory=dict)
    budget: Seconds | None = None
    edits: tuple[Edit, ...] = ()
    cheats: tuple[Cheat, ...] = ()

    def conflicts(self) -> Iterator[Conflict]:
        for profile in self.baseline.keys() - set(PROFILES):
            yield f"baseline.{profile}", "there is no such profile", f"the profiles are {' and '.join(PROFILES)}"
        names = (variant.name for variant in (*self.edits, *self.cheats))
        yield from (("cheats", *problem) for problem in repeated("edits", names))


def load_check(folder: Path) -> TaskCheck | None:
    """What the task of a folder is held to; None where it has no check.yaml. ConfigError tells all its problems."""
    path = folder / CHECK_FILE
    if not path.exists():
        return None
    document = parse_yaml(read_text(path), str(path))
    found = validated(CheckFile, document.root, document, str(path))
    baseline = {}
    for name, figures in found.baseline.items():
        value, sigma = (document.texts[("baseline", name, key)] for key in ("value", "sigma"))
        text = f"{value} ± {sigma}"  # as it is written
        baseline[name] = Documented(figures.value, figures.sigma, text, figures.budget, figures.within)
    return TaskCheck(
        baseline=baseline,
        budget=found.budget,
        edits=tuple(edit.variant() for edit in found.edits),
        cheats=tuple(cheat.variant(cheat.expect) for cheat in found.cheats),
    )
