"""One nursery for all tests here, and for each a harness in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.harness import SEED, SHORT, Harness, References
from tests.chaos.nursery import Nursery
from tests.chaos.world import World


@pytest.fixture(scope="package")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("nursery")) as nursery:
        yield nursery


@pytest.fixture(scope="package")
def references() -> References:
    return {}


@pytest.fixture
def harness(tmp_path: Path, nursery: Nursery, references: References) -> Harness:
    return Harness(tmp_path, nursery, references=references)


@pytest.fixture
def world(harness: Harness) -> World:
    """A short session that has yet to begin."""
    return harness.world("world", SEED, SHORT)
