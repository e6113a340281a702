"""A program that ignores the daemon's seed may be kept for the luck of its own one, so its user is told."""

from __future__ import annotations

import pytest

from autoresearchd.evaluator.rules.program_text import about_seed, reads
from tests.unit.evaluator.builders import task

OWN = {"train.py": "import random\nrandom.seed(1234)\n"}


@pytest.mark.parametrize(
    ("path", "text", "named"),
    [
        ("train.py", "seed = int(os.environ['AUTORESEARCHD_SEED'])", True),
        ("train.py", "# ignores AUTORESEARCHD_SEED\nx = 1", False),
        ("conf/config.yaml", "seed: ${oc.env:AUTORESEARCHD_SEED}", True),
        ("train.py", "limit = os.environ['AUTORESEARCHD_TIME_BUDGET']", False),
    ],
)
def test_a_variable_is_read_where_the_code_names_it(path: str, text: str, named: bool) -> None:
    assert reads("AUTORESEARCHD_SEED", {path: text}) is named
    assert about_seed(task(), {path: text}) is not named


def test_the_user_of_a_program_with_its_own_seed_is_told_that_luck_may_be_kept_and_what_to_do() -> None:
    [told] = about_seed(task(), OWN)
    assert "does not read AUTORESEARCHD_SEED" in told
    assert "luck of that seed" in told
    assert "`--seed $AUTORESEARCHD_SEED` in run_command" in told
