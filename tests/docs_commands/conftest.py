"""One sandbox for all pages."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from docs_commands.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """One sandbox for all commands, so that a command finds the results of the earlier ones."""
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as place, Sandbox(Path(place)) as made:
        yield made
