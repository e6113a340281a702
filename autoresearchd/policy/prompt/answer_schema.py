"""Answers as JSON: the schema that a reply is made to obey where the model has that, and how it is to be filled in.

What comes back is read like any other answer, by ``edits.parse``: the schema spares questions, and is never relied on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    """An object with exactly these properties, which is all that strict schemas allow."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _text(words: str) -> dict[str, str]:
    return {"type": "string", "description": words}


SCHEMA: Mapping[str, Any] = _object(
    {
        "hypothesis": _text("why the change may help"),
        "description": _text("what changes, in one line"),
        "expected_delta": {"type": "number", "description": "the expected improvement, positive for better"},
        "next_action_hint": _text("what to try next; may be empty"),
        "edits": {
            "type": "array",
            "items": _object(
                {
                    "file": _text("exact name of an editable file"),
                    "search": _text("whole lines copied from the file as shown; they are in it exactly once"),
                    "replace": _text("what these lines become"),
                }
            ),
        },
    }
)
"""The words before the edits: a model that has said why writes another change than one that has still to find out.

Of JSON Schema it takes what all providers know: no unions, no bounds, no references, every property required.
"""

FORMS = """\
Answer with one JSON object and nothing else:

{"hypothesis": "why it may help", "description": "what changes", "expected_delta": 0.01, "next_action_hint": "…",
 "edits": [{"file": "train.py", "search": "learning_rate = 3e-4", "replace": "learning_rate = 1e-3"}]}

"search" holds whole lines copied exactly from the file as shown, indentation included, and must be in it exactly once:
add the lines around it until it is. "replace" holds what they become; to insert, repeat the line next to it; to delete,
leave it empty. Several edits are allowed; each is matched against the file as shown. Every file keeps its exact name;
only editable files may be changed. Line feeds within a text are written as \\n. "expected_delta" is the expected
improvement, positive for better. "edits" is empty only where you are allowed to give an edit up, and do.
"""
"""In the place of ``edits.forms.FORMS``: the other forms cannot be written in a reply that obeys the schema."""
