"""Sessions of which nothing is opened, for what looks at them before anything of them runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autoresearchd.domain.task import Task
from tests.fakes.policies import make_task


@dataclass
class FakeGround:
    """A session. folder: the task's; scratch: where its runs would be made, ``judging/t`` below it unless given."""

    folder: Path
    task: Task = field(default_factory=make_task)
    foreign: bool = True
    executor: str = "local"
    scratch: Path = Path()

    def __post_init__(self) -> None:
        if self.scratch == Path():
            self.scratch = self.folder / "judging" / "t"


class FakeGrounds:
    """Sessions by name."""

    def __init__(self, grounds: Mapping[str, FakeGround]) -> None:
        self._grounds = dict(grounds)

    @property
    def names(self) -> Sequence[str]:
        return list(self._grounds)

    def ground(self, session: str) -> FakeGround:
        return self._grounds[session]
