"""What is wrong with a model's edit before it becomes a proposal: illegal, or nearly what was tried before."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from autoresearchd.domain.labels import Phase
from autoresearchd.domain.ports import Store
from autoresearchd.domain.research_state import ResearchState
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.rules.legality import check_edit, check_no_secret, code_hash, required_symbols
from autoresearchd.loop.measuring.run_files import read_sources
from autoresearchd.loop.messages import unified_diff
from autoresearchd.policy.near_duplicates import WINDOW, NearDuplicates

_AT_ONCE = 64


class EditCheck:
    """Knows what may be proposed in a session, and what was tried in it."""

    def __init__(self, task: Task, store: Store, session_id: int, pristine: Path) -> None:
        self._task, self._store, self._session_id, self._pristine = task, store, session_id, pristine
        self._near = NearDuplicates()
        self._last: int | None = None
        self._segment = 0

    @cached_property
    def _required(self) -> Mapping[str, frozenset[str]]:
        """For each editable file the names that the protected programs take from it."""
        return required_symbols(self._task, read_sources(self._task, self._pristine))

    def legal(self, state: ResearchState, files: Mapping[str, str]) -> None:
        """Let the changed files of an edit pass, or raise PolicyError with what a model is to be told."""
        check_edit(self._task, state.code, {**state.code, **files}, required=self._required)
        check_no_secret(state.redactor, state.code, files)

    def near(self, state: ResearchState, files: Mapping[str, str], changes: Mapping[str, Any]) -> str:
        """Which experiment made nearly the same edit, in words; said once of a program, then it is allowed."""
        self._catch_up(state.number)
        after = {**state.code, **files}
        alike = self._near.look(unified_diff(state.code, after), changes, state.parent)
        return alike if alike and self._near.warn_once(code_hash(after)) else ""

    def _catch_up(self, number: int) -> None:
        """Take in what was decided before experiment ``number``, and since the last time."""
        segment = self._store.segment(self._session_id)
        if segment is not None and segment.number != self._segment:  # results of another one tell nothing here
            self._near, self._last, self._segment = NearDuplicates(), None, segment.number
        # Whoever stands in for a model may have made any number of experiments since it was asked last.
        count = WINDOW if self._last is None else min(WINDOW, max(_AT_ONCE, number - self._last))
        for e in self._store.experiments(self._session_id, last=count):
            if e.phase is not Phase.DECIDED or e.proposal is None or e.decision is None or e.commit is None:
                continue
            if e.segment != self._segment or (self._last is not None and e.number <= self._last):
                continue
            self._near.add(e, self._store.diff(self._session_id, e.number))
            self._last = e.number
