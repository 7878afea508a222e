"""Log to people through `logging`, one line a message, without any effect on the training."""

import logging  # not when it is needed: an import fails when no file descriptor is left
from contextlib import suppress


def info(message: str) -> None:
    """Log what happens as it should: not shown, unless the training configures its logging so."""
    with suppress(Exception):
        logging.getLogger("trackside").info("trackside: %s", message)


def warn(message: str) -> None:
    """Log a warning. Exceptions of a log handler, or at interpreter shutdown, do not reach the caller."""
    with suppress(Exception):
        logging.getLogger("trackside").warning("trackside: %s", message)
