"""Decided experiments for tests of prompts: short to write, and as the store would give them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from autoresearchd.domain.experiment import Decision, Experiment
from autoresearchd.domain.labels import RULES, Label, Phase, Status
from autoresearchd.domain.proposal import ASI, Proposal


def experiment(
    number: int,
    description: str,
    label: Label = Label.NO_GAIN,
    *,
    value: float | None = None,
    delta: float | None = None,
    reason: str = "",
    hint: str = "",
    arch_change: str = "",
    changes: Mapping[str, object] | None = None,
    role: str = "",
    hypothesis: str = "",
    policy: str = "litellm:m",
    extra: Mapping[str, object] | None = None,
) -> Experiment:
    """A decided experiment; its status is the label's."""
    hypothesis = hypothesis or f"{description} may help"
    asi = ASI(hypothesis=hypothesis, arch_change=arch_change, next_action_hint=hint, extra=extra or {})
    return Experiment(
        session_id=1,
        number=number,
        segment=0,
        phase=Phase.DECIDED,
        parent="0" * 40,
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        commit=f"{number:040x}",
        proposal=Proposal({}, hypothesis, policy, description, changes=changes or {}, role=role, asi=asi),
        decision=Decision(RULES[label] or Status.DISCARD, label, value, delta, reason=reason),
        asi=asi,
    )


def session(length: int = 33) -> tuple[Experiment, ...]:
    """A baseline and experiments of all sorts."""
    found = [experiment(0, "the program as it is", Label.NONE, value=1.0, policy="baseline")]
    for n in range(1, length):
        rate = 0.01 * n
        what, changes = f"MATRIX_LR 0.04 → {rate:g}", {"train.py:MATRIX_LR": rate}
        match n % 8:
            case 0:
                e = experiment(n, what, Label.NONE, value=1 - n / 1000, delta=0.004, changes=changes)
            case 3:
                reason = "oom: CUDA out of memory: tried to allocate 2.00 GiB"
                e = experiment(n, f"DEPTH 8 → {8 + n}", Label.OOM, reason=reason, hint="halve DEVICE_BATCH_SIZE")
            case 5:
                what = f"swap GELU for SwiGLU, variant {n}"
                e = experiment(n, what, delta=0.0004, value=0.9996, hint=f"gate {n}")
            case 6:
                e = experiment(n, what, Label.ABORTED_EARLY, delta=-0.02, reason="aborted_early: forecast 1.02")
            case _:
                reason = "worse than #0; no gain."
                e = experiment(n, what, value=1.01, delta=-0.01, changes=changes, reason=reason)
        found.append(e)
    return tuple(found)
