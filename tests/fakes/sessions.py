"""Sessions of which nothing is opened, for what looks at them before anything of them runs."""

from __future__ import annotations

from collections.abc import Mapping
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


@dataclass
class FakeGrounds:
    """Sessions by name."""

    grounds: Mapping[str, FakeGround]

    def ground(self, session: str) -> FakeGround:
        return self.grounds[session]
