"""Status and cause of a run that ends by an exception, or without one."""

from __future__ import annotations

import pytest

from trackside.environment.exit_status import outcome


class Stopped(KeyboardInterrupt):
    """A Ctrl-C of the user's own kind."""


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (None, ("finished", "")),
        (SystemExit(), ("finished", "")),
        (SystemExit(0), ("finished", "")),
        (SystemExit(3), ("failed", "exit status 3")),
        (SystemExit(-1), ("failed", "exit status 255")),
        (SystemExit(256), ("finished", "")),
        (SystemExit("no data in /data\nat all"), ("failed", "exit status 1: no data in /data")),
        (SystemExit(""), ("failed", "exit status 1")),
        (SystemExit([]), ("failed", "exit status 1: []")),
        (KeyboardInterrupt(), ("stopped", "KeyboardInterrupt")),
        (Stopped(), ("stopped", "Stopped")),
        (ValueError("a\nb"), ("failed", "ValueError: a")),
    ],
)
def test_the_exception_determines_how_a_run_ended(error: BaseException | None, found: tuple[str, str]) -> None:
    assert outcome(None if error is None else type(error), error) == found
