"""What a learner run is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autoresearchd.workspace import layout


@dataclass(frozen=True, slots=True)
class LearnRequest:
    """What ``learn`` is asked for.

    algo: ``grpo``, ``ppo`` or ``sdpo``. mode: ``replay`` (stored answers) or ``live`` (new experiments). model: folder
    or name of the base model, empty: local.model of config.yaml. steps: of the optimiser, None: the algorithm's own
    number. places: other repositories to read. options: further ones by name, as they were given.
    """

    algo: str
    mode: str = "replay"
    model: str = ""
    steps: int | None = None
    places: tuple[Path, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


def stopped_mark(root: Path) -> Path:
    """A file that is there while a learner was stopped together with its session, and none has begun since."""
    return layout.state_dir(root) / "learner" / "stopped"
