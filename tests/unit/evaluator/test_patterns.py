"""A pattern of the task cannot be made to stop the daemon."""

from __future__ import annotations

import time

from autoresearchd.evaluator.text import LINE_S, LineMatcher


def test_a_pattern_of_many_small_repeats_cannot_keep_the_daemon_at_one_line() -> None:
    matcher = LineMatcher(r"\w*\s*\w*\s*\w*\s*\w*\s*[=:]\s*([\d.]+)", key="scoring.pattern")
    began = time.process_time()
    assert matcher.search("a" * 512) is None
    assert time.process_time() - began < 20 * LINE_S, "it would take minutes"
    found = matcher.search("METRIC val_loss=1.5")
    assert found is not None and found.group(1) == "1.5"
