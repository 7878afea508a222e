"""Failures of commands: one line on standard error and an exit status, never a traceback.

The errors of a history are imported once something fails, since that takes as long as the start of Python.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from trackside.os_errors import file_error_text
from trackside_daemon.cli.sources.source import SourceError
from trackside_daemon.model.text import shown


class CommandError(Exception):
    """Wrong usage of a command; the message says in one line what to write instead."""


@contextmanager
def errors_reported() -> Iterator[None]:
    """Report failures in a line each, and exit: 2 for wrong usage or a missing run, 1 for a failure of the work."""
    try:
        yield
    except SourceError as error:
        fail(str(error), error.status)
    except CommandError as error:
        fail(str(error))
    except BrokenPipeError:  # click ends quietly when the reader of the output is gone
        raise
    except (OSError, ValueError) as error:
        fail(_reason(error), 1)
    except Exception as error:
        _fail_of_history(error)
        raise


def _fail_of_history(error: Exception) -> None:
    """Report a failure of a history; return if it is none."""
    import sqlite3
    from concurrent.futures import TimeoutError as FutureTimeoutError

    from trackside_daemon.history.directory import HistoryError
    from trackside_daemon.history.read.reader import UnknownRunError

    if isinstance(error, (HistoryError, UnknownRunError)):
        fail(str(error))
    if isinstance(error, (sqlite3.Error, FutureTimeoutError)):
        fail(_reason(error), 1)


def fail(message: str, status: int = 2) -> NoReturn:
    """Print what is wrong and how to fix it, and exit; 2 means wrong usage, or that the daemon cannot start."""
    warn(message)
    raise typer.Exit(status)


def warn(message: str) -> None:
    """Print a line on standard error."""
    typer.echo(f"trackside: {shown(message)}", err=True)


def _reason(error: BaseException) -> str:
    return file_error_text(error) if isinstance(error, OSError) and error.strerror else f"the history: {error}"
