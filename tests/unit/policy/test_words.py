"""What is said of a proposal names all of what it changes."""

from __future__ import annotations

from autoresearchd.policy.search.change_words import architecture
from autoresearchd.policy.search.find_constants import find


def test_the_change_line_lists_every_constant_that_changes_where_the_model_does() -> None:
    """Of two changes `show N` listed one, and its reader credited that one with the gain."""
    depth, rate = find("DEPTH = 4\nLR = 0.1\n")
    assert architecture([(depth, 6), (rate, 0.2)]) == "DEPTH 4 → 6, LR 0.1 → 0.2"
    assert architecture([(rate, 0.2), (depth, 6)]) == "LR 0.1 → 0.2, DEPTH 4 → 6"
    assert architecture([(rate, 0.2)]) == "", "it changes the training alone"
