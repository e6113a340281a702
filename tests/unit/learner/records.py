"""Records as a reader of the store would give them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import Label, Phase
from autoresearchd.domain.proposal import Answer, Cost, Generation, Proposal
from autoresearchd.learner.data.trajectories import Record

START = datetime(2026, 11, 1, tzinfo=UTC)
SAMPLING: Mapping[str, Any] = {"temperature": 0.8, "top_p": 1.0, "top_k": 0, "logprobs_of": "sampling distribution"}


def record(number: int = 1, session: str = "one", **changed: Any) -> Record:
    """An answer of a local model that was tried and brought nothing; ``changed``: fields of any of its parts."""
    minutes = changed.pop("minutes", number)
    generation = {
        "messages": (
            {"role": "system", "content": "You do research."},
            {"role": "user", "content": f"{session} {number}"},
        ),
        "completion": "lr = 0.1",
        "token_ids": (5, 6, 7),
        "logprobs": (-0.1, -0.2, -0.3),
        "sampling": SAMPLING,
        "model_hash": "m",
        "tokenizer_hash": "t",
        "template_hash": "c",
    }
    generation |= {name: changed.pop(name) for name in list(changed) if name in generation or name == "adapter"}
    round_id, state_id = changed.pop("round_id", f"{session}/{number}"), changed.pop("state_id", f"{session}/{number}")
    proposal = Proposal({}, "a reason", "local", round_id=round_id, state_id=state_id)
    answer = Answer(
        "model", Cost(), Generation(**generation), error=changed.pop("error", ""), attempt=changed.pop("attempt", 0)
    )
    experiment = Experiment(
        1,
        number,
        0,
        Phase.DECIDED,
        "0" * 40,
        START + timedelta(minutes=minutes),
        proposal=changed.pop("proposal", proposal),
    )
    given: dict[str, Any] = {"reward": -0.5, "label": Label.NO_GAIN, "feedback": "This was not kept."} | changed
    return Record(session, experiment, answer, **given)
