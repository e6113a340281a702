"""An edit that brings a secret into the program is refused; what the user's own program holds is no leak."""

from __future__ import annotations

import pytest

from autoresearchd.domain.labels import Label
from autoresearchd.domain.redaction import Redactor, mark
from autoresearchd.errors import PolicyError
from autoresearchd.evaluator.legality import check_no_secret
from tests.unit.domain.canaries import TOKENS, letters

VALUE = letters(20)
REDACTOR = Redactor([VALUE])
OLD = {"train.py": f"KEY = '{TOKENS['npm']}'\nX = 1\n", "b.py": "Y = 1\n"}


@pytest.mark.parametrize("secret", [VALUE, TOKENS["anthropic"], f"API_KEY = '{letters(30, seed=9)}'"])
def test_a_new_secret_is_refused_and_named_by_its_place_only(secret: str) -> None:
    with pytest.raises(PolicyError) as raised:
        check_no_secret(REDACTOR, OLD, {"b.py": f"Y = 1\n# {secret}\n"})
    assert raised.value.label is Label.ILLEGAL_EDIT
    assert "b.py, line 2" in str(raised.value)
    assert secret[-12:] not in str(raised.value)


def test_a_secret_of_the_users_own_may_stay_move_and_go() -> None:
    check_no_secret(REDACTOR, OLD, {"train.py": OLD["train.py"] + "Z = 2\n"})
    check_no_secret(REDACTOR, OLD, {"b.py": OLD["train.py"]})
    check_no_secret(REDACTOR, OLD, {"train.py": "X = 1\n"})


def test_a_mark_that_was_copied_from_a_prompt_is_refused() -> None:
    with pytest.raises(PolicyError, match="stands for a secret") as raised:
        check_no_secret(REDACTOR, OLD, {"train.py": f"KEY = '{mark('npm')}'\nX = 2\n"})
    assert raised.value.label is Label.ILLEGAL_EDIT
    marked = {"train.py": f"MARK = '{mark('npm')}'\n"}
    check_no_secret(REDACTOR, marked, {"train.py": marked["train.py"] + "X = 2\n"})
