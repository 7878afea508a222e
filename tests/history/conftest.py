"""A store on a new file for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from history.builders import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def bench(place: Path) -> Iterator[Bench]:
    """A store on a new file."""
    made = Bench(place)
    yield made
    made.close()
