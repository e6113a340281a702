"""Structured output: asked for where the model has it, read like any other answer, and never relied on."""

from __future__ import annotations

import json

import pytest

from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.policy.edits.read_answer import read_answer
from autoresearchd.policy.prompt import answer_schema
from tests.unit.policy.model_bench import GOOD, HIGHER, Bench


def filled(*edits: tuple[str, str], path: str = "train.py") -> str:
    """An answer as a model gives it that obeys the schema."""
    return json.dumps(
        {
            "hypothesis": "a higher rate learns faster",
            "description": "LR 0.1 to 0.2",
            "expected_delta": 0.01,
            "next_action_hint": "",
            "edits": [{"file": path, "search": old, "replace": new} for old, new in edits],
        }
    )


RAISED = filled(("LR = 0.1", "LR = 0.2"))


def knowing(bench: Bench, known: bool = True) -> Bench:
    """The bench with a client that knows about schemas."""
    bench.client.takes_schema = lambda: known  # type: ignore[attr-defined]
    return bench


def instructions(bench: Bench, question: int = 0) -> str:
    return bench.client.questions[question].messages[0]["content"]


def test_a_model_that_has_it_is_asked_for_json_and_its_edit_is_used() -> None:
    bench = knowing(Bench(RAISED))
    proposal = bench.propose()
    assert bench.client.questions[0].schema == answer_schema.SCHEMA
    assert "Answer with one JSON object" in instructions(bench)
    assert "<<<<<<< SEARCH" not in instructions(bench)
    assert proposal.files == {"train.py": HIGHER}
    assert (proposal.hypothesis, proposal.expected_delta) == ("a higher rate learns faster", 0.01)
    assert bench.answers.answers[0].form == "search_replace"


def test_a_model_of_which_nobody_knows_it_is_asked_for_text() -> None:
    for bench in (Bench(GOOD), knowing(Bench(GOOD), known=False)):
        assert bench.propose().files == {"train.py": HIGHER}
        assert bench.client.questions[0].schema is None
        assert "<<<<<<< SEARCH" in instructions(bench)


@pytest.mark.parametrize("wanted", [True, False])
def test_the_user_has_the_last_word_on_it(wanted: bool) -> None:
    bench = knowing(Bench(RAISED, settings=ModelSettings(structured=wanted)), known=not wanted)
    bench.propose()
    assert (bench.client.questions[0].schema is not None) is wanted


def test_the_example_that_the_model_is_shown_obeys_the_schema_and_can_be_read() -> None:
    example = answer_schema.FORMS[answer_schema.FORMS.index("{") : answer_schema.FORMS.rindex("}") + 1]
    assert set(json.loads(example)) == set(answer_schema.SCHEMA["required"])
    edit = read_answer(example, {"train.py": "learning_rate = 3e-4\n"})
    assert edit.files == {"train.py": "learning_rate = 1e-3\n"}
