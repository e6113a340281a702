"""One nursery for all tests here, and for each a harness in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.harness import Harness
from tests.chaos.invariants import Journal
from tests.chaos.nursery import Nursery


@pytest.fixture(scope="package")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("nursery")) as nursery:
        yield nursery


@pytest.fixture(scope="package")
def references() -> dict[tuple[int, int], Journal]:
    return {}


@pytest.fixture
def harness(tmp_path: Path, nursery: Nursery, references: dict[tuple[int, int], Journal]) -> Harness:
    return Harness(tmp_path, nursery, references=references)
