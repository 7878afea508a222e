"""Log to people through `logging`, one line a message, without any effect on the training."""

import sys
from contextlib import suppress


def info(message: str) -> None:
    """Log what happens as it should: not shown, unless the training configures its logging so."""
    with suppress(Exception):
        if (logging := sys.modules.get("logging")) is not None:  # else nobody has configured it
            logging.getLogger("trackside").info("trackside: %s", message)


def warn(message: str) -> None:
    """Log a warning. Exceptions of a log handler, or at interpreter shutdown, do not reach the caller."""
    with suppress(Exception):
        try:
            import logging  # 6 ms, which a training without warnings does not pay
        except (ImportError, OSError):  # no file descriptor is left
            sys.stderr.write(f"trackside: {message}\n")  # as logging does if nobody has configured it
        else:
            logging.getLogger("trackside").warning("trackside: %s", message)
