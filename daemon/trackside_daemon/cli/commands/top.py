"""The command top: the terminal dashboard."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from trackside_daemon.cli.errors import CommandError, errors_reported
from trackside_daemon.cli.options import Url, flag, option
from trackside_daemon.cli.output import print_lines
from trackside_daemon.model.text import duration_seconds, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trackside_daemon.cli.sources.api_source import ApiSource


T = TypeVar("T")
SHORTEST, LONGEST = 0.1, 3600.0  # bounds of the interval, in seconds


class ReconnectingDaemon:
    """A daemon that may restart, with another token or port; no other daemon replaces it.

    Args:
        url: The address that the user gave; empty for the first daemon of this machine that answers.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._file: Path | None = None
        self._source: ApiSource | None = None

    def overview(self) -> dict[str, Any]:
        """See `terminal.polling.PolledDaemon`."""
        return self._query(lambda source: source.overview())

    def series(self, query: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        """See `terminal.polling.PolledDaemon`."""
        from trackside_daemon.cli.sources.api_source import STATUS_SECONDS
        from trackside_daemon.questions.question import parse
        from trackside_daemon.questions.series import Series

        return self._query(lambda source: list(source.ask(parse(Series, {}, query), STATUS_SECONDS)["series"]))

    def machine(self, query: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        """See `terminal.polling.PolledDaemon`."""
        return self._query(lambda source: source.machine(query))

    def processes(self) -> list[dict[str, Any]]:
        """See `terminal.polling.PolledDaemon`."""
        return self._query(lambda source: source.processes())

    def end(self, pid: int, started: float) -> None:
        """See `terminal.polling.PolledDaemon`."""
        self._query(lambda source: source.end_process(pid, started))

    def record(self, run: str) -> list[str]:
        """See `terminal.polling.PolledDaemon`."""
        return list(self._query(lambda source: source.record(run, {"trigger": "person"})["text"]))

    def _query(self, question: Callable[[ApiSource], T]) -> T:
        from trackside_daemon.cli.sources.source import SourceError
        from trackside_daemon.terminal.polling import UnansweredError

        try:
            self._source = self._source or self._find()
            return question(self._source)
        except SourceError as error:
            self._source = None
            raise UnansweredError(str(error)) from error

    def _find(self) -> ApiSource:
        from trackside_daemon.cli.sources.daemon_lookup import find_daemon, find_local_daemon

        if self._url:
            return find_daemon(self._url)
        source, _, self._file = find_local_daemon(self._file)
        return source


def top(
    *,
    once: Annotated[bool, flag("--once", "Print one frame as text and exit, for scripts and watch.")] = False,
    interval: Annotated[str, option("TIME", "Time between two updates.")] = "1s",
    url: Url = "",
) -> None:
    """Show runs, their loss and throughput, GPUs, host and alerts in the terminal.

    Arrows select a run, and Enter shows only that run. p shows processes and the machine, / filters, c records some
    steps of the run, s saves a snapshot (JSON), r shows all steps again, ? lists all keys, and q quits. $NO_COLOR
    turns colours off. With --once, the exit status is 2 if no daemon answers.
    """
    with errors_reported():
        from trackside_daemon.terminal.polling import UnansweredError

        length = _length(interval)
        daemon = ReconnectingDaemon(url)
        try:
            if once:
                from trackside_daemon.terminal.once import render_once

                print_lines(render_once(daemon))
                return
        except UnansweredError as error:
            raise CommandError(str(error)) from None
        _check_terminal()
        from trackside_daemon.terminal.app import Top

        Top(daemon, length).run()


def _length(interval: str) -> float:
    length = duration_seconds(interval)
    if not SHORTEST <= length <= LONGEST:
        raise CommandError(f"--interval: {shown(interval)!r} is not a duration from 100ms to 1h, such as 1s")
    return length


def _check_terminal() -> None:
    """Raise `CommandError` if no screen can be drawn."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError("top needs a terminal; without one, use --once")
    if os.environ.get("TERM", "") in {"", "dumb"}:
        raise CommandError(
            "this terminal ($TERM) cannot draw a screen; --once prints one frame, for example with watch"
        )
