"""A fake daemon for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from terminal.fake import Fake, serving

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def plain_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without the user's terminal settings and web credentials."""
    for name in ("NO_COLOR", "COLUMNS", "LINES", "TRACKSIDE_WEB__CREDENTIALS_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def fake() -> Iterator[Fake]:
    """One that answers."""
    with serving(Fake()) as made:
        yield made
