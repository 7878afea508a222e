"""What the client says to people, through `logging`: one line each, none of which can cost the training anything."""

from __future__ import annotations

from contextlib import suppress


def warn(message: str) -> None:
    """Log a warning. A handler that raises, or an interpreter that is going down, does not reach the caller."""
    with suppress(Exception):
        import logging

        logging.getLogger("trackside").warning("trackside: %s", message)
