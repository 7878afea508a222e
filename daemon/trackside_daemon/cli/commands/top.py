"""The command top: what trains, in a terminal."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from trackside_daemon.cli.commands.gpu import Url  # noqa: TC001  typer reads the annotations while running
from trackside_daemon.cli.commands.runs import WrongError, print_lines, told
from trackside_daemon.model.setting_types import seconds
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trackside_daemon.cli.sources.source import ApiSource


T = TypeVar("T")
SHORTEST, LONGEST = 0.1, 3600.0
"""Seconds of an interval."""


class Asked:
    """A daemon that may go and come back, with another token and perhaps at another port; another does not take its place.

    Args:
        url: As the user named it; empty for the first one of this machine that answers.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._file: Path | None = None
        self._found: ApiSource | None = None

    def overview(self) -> dict[str, Any]:
        """See `terminal.polling.Daemon`."""
        return self._answer(lambda source: source.overview())

    def series(self, asked: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        """See `terminal.polling.Daemon`."""
        return self._answer(lambda source: source.series(asked))

    def _answer(self, question: Callable[[ApiSource], T]) -> T:
        from trackside_daemon.cli.sources.errors import SourceError
        from trackside_daemon.terminal.polling import UnansweredError

        try:
            source = self._found = self._found or self._find()
            return question(source)
        except SourceError as error:
            self._found = None
            raise UnansweredError(str(error)) from error

    def _find(self) -> ApiSource:
        from trackside_daemon.cli.sources.daemon_lookup import daemon, here

        if self._url:
            return daemon(self._url)
        source, _, self._file = here(self._file)
        return source


def top(
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame as text, and exit: for scripts, and watch.")
    ] = False,
    interval: Annotated[str, typer.Option(help="How often the daemon is asked.", metavar="TIME")] = "1s",
    url: Url = "",
) -> None:
    """Show runs, their loss and throughput, GPUs, host and alerts in the terminal.

    Arrows choose a run, Enter shows it alone, / filters, s saves a snapshot (JSON), r shows all steps again, ? has all
    keys, q quits. $NO_COLOR is heeded. With --once, exit status 2 when no daemon answers.
    """
    with told():
        from trackside_daemon.terminal.polling import UnansweredError

        length = _length(interval)
        daemon = Asked(url)
        try:
            if once:
                from trackside_daemon.terminal.once import render_once

                print_lines(render_once(daemon))
                return
        except UnansweredError as error:
            raise WrongError(str(error)) from None
        _check_terminal()
        from trackside_daemon.terminal.app import Top

        Top(daemon, length).run()


def _length(interval: str) -> float:
    try:
        length = float(str(seconds(interval)))
    except ValueError:
        length = 0.0
    if not SHORTEST <= length <= LONGEST:
        raise WrongError(f"--interval: {shown(interval)!r} is not a duration such as 1s or 500ms, of 100ms to 1h")
    return length


def _check_terminal() -> None:
    """Whether a screen can be drawn at all."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise WrongError("top needs a terminal; --once prints one frame without")
    if os.environ.get("TERM", "") in {"", "dumb"}:
        raise WrongError("this terminal ($TERM) cannot draw a screen; --once prints one frame, also by watch")
