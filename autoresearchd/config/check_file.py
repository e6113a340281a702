"""``check.yaml`` of a task, beside its task.yaml: read and checked as strictly as that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationError

from autoresearchd.config.problems import raise_all, raise_any
from autoresearchd.config.task_schema import (
    PROFILES,
    Conflict,
    InsidePath,
    Line,
    Number,
    Seconds,
    Section,
    Share,
    Text,
    one_or_many,
    repeated,
)
from autoresearchd.config.validation_errors import explain
from autoresearchd.config.yaml_document import Document, parse_yaml, read_text
from autoresearchd.domain.labels import RULES, Label
from autoresearchd.domain.task import Documented, Replacement, TaskCheck, Variant

CHECK_FILE = "check.yaml"
EXPECTABLE = tuple(label for label in Label if RULES[label].status is not None and label is not Label.NONE)
_SEARCHED, _WHOLE = ("replace", "before", "after"), ("append", "prepend", "text")


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

    def conflicts(self) -> Iterator[Conflict]:
        given = [name for name in (*_SEARCHED, *_WHOLE) if getattr(self, name) is not None]
        if len(given) != 1:
            yield "", " and ".join(given) or "none of them", f"give one of {', '.join((*_SEARCHED, *_WHOLE))}"
        elif (given[0] in _SEARCHED) != bool(self.search):
            hint = "give the text that is there once as `search`" if not self.search else "leave `search` out"
            yield "search", f"does not go with {given[0]}" if self.search else f"{given[0]} needs it", hint

    def replacement(self) -> Replacement:
        """This step as what it means."""
        kind = next(name for name in (*_SEARCHED, *_WHOLE) if getattr(self, name) is not None)
        return Replacement(kind, getattr(self, kind), self.search or "", self.file)


class Edit(Section):
    """An honest edit."""

    name: Line
    change: Annotated[tuple[Step, ...], Field(min_length=1)]

    def variant(self) -> Variant:
        """This edit as what it means."""
        return Variant(self.name, tuple(step.replacement() for step in self.change), self._expected())

    def _expected(self) -> frozenset[Label]:
        return frozenset()


class Cheat(Edit):
    """A dishonest one, and how it may end."""

    expect: Annotated[tuple[Line, ...], BeforeValidator(one_or_many)] = (Label.NO_GAIN.value,)

    def conflicts(self) -> Iterator[Conflict]:
        known = {label.value for label in EXPECTABLE}
        for name in self.expect:
            if name not in known:
                yield "expect", f"there is no label {name!r}", f"take one of {', '.join(sorted(known))}"
        if not self.expect:
            yield "expect", "an empty list", "leave it out for no_gain"

    def _expected(self) -> frozenset[Label]:
        return frozenset(Label(name) for name in self.expect)


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
    """What the task of a folder is held to; None where it has no check.yaml.

    Raises:
        ConfigError: the file cannot be used; all its problems are told.
    """
    path = folder / CHECK_FILE
    if not path.exists():
        return None
    file = str(path)
    document = parse_yaml(read_text(path), file)
    raise_any(file, document.problems)
    try:
        found = CheckFile.model_validate(document.root)
    except ValidationError as error:
        raise_all(file, explain(error, document, top=CheckFile))
    return TaskCheck(
        baseline={name: _documented(figures, document, name) for name, figures in found.baseline.items()},
        budget=found.budget,
        edits=tuple(edit.variant() for edit in found.edits),
        cheats=tuple(cheat.variant() for cheat in found.cheats),
    )


def _documented(figures: Figures, document: Document, profile: str) -> Documented:
    value, sigma = (document.texts[("baseline", profile, key)] for key in ("value", "sigma"))
    return Documented(figures.value, figures.sigma, f"{value} ± {sigma}", figures.budget, figures.within)
