"""Whether what a metric rests on stayed as it was: seals of the protected files, and the version of the evaluator.

A seal is taken before a run and compared after it. It holds a digest of the content of each protected file and, while
one daemon watches, the stamp that the kernel keeps of it (inode, size, times): a file that was altered and put
back has the old content and a new stamp, for nobody but the kernel sets the time of a status change (inode(7), ctime).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autoresearchd.domain.experiment import Measurement
from autoresearchd.domain.labels import RULES, Label
from autoresearchd.domain.task import Task

CODE_SUFFIXES = (".py", ".pyc", ".pyd", ".so", ".pth", ".sh")
"""What could run in the place of something else when it appears beside the evaluation."""
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Seal:
    """The state of a folder. digests: of the protected files, by path; stamps: theirs; code: what else could run."""

    digests: Mapping[str, str]
    stamps: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    code: frozenset[str] = frozenset()


def broken(before: Seal, after: Seal) -> list[str]:
    """What differs between two seals, in words; stamps are compared where both have them (not across restarts)."""
    found: dict[str, str] = {}
    for path in {*before.digests, *after.digests}:
        old, new = before.digests.get(path), after.digests.get(path)
        if old != new:
            found[path] = "appeared" if old is None else "is gone" if new is None else "was changed"
        elif path in before.stamps and path in after.stamps and before.stamps[path] != after.stamps[path]:
            found[path] = "was changed and put back"
    found.update((path, "appeared") for path in after.code - before.code if path not in found)
    return [f"{path} {what}" for path, what in sorted(found.items())]


def tampering(measurement: Measurement, where: Mapping[str, list[str]]) -> Measurement:
    """The measurement of a run, or what takes its place when something that it rests on was changed."""
    found = [f"{path} in {folder}" for folder, paths in where.items() for path in paths]
    if not found or RULES[measurement.label].status is None:
        return measurement
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    detail = "what the metric rests on did not stay as it was: " + "; ".join(found[:_NAMED]) + more
    return Measurement(Label.METRIC_TAMPERING, detail=detail, curve=measurement.curve)


def evaluator_version(task: Task, seal: Seal) -> str:
    """Names the evaluator: 16 hexadecimal digits of a SHA-256 over the protected files and its commands."""
    evaluation = task.evaluation
    commands = (evaluation.command, evaluation.model_command or "") if evaluation else ()
    return digest_of((*commands, *(f"{path}={seal.digests[path]}" for path in sorted(seal.digests))))[:16]


def digest_of(parts: Iterable[str]) -> str:
    """SHA-256 over texts, each with its length before it."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
