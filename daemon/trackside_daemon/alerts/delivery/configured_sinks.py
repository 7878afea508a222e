"""Since when each sink is configured, in a file for the next daemon: a sink sends no alert that ended before."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trackside_daemon.alerts.sinks.sink_filter import SinkFilter  # noqa: TC001  msgspec reads it

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from trackside_daemon.alerts.sinks.sink import Sink
    from trackside_daemon.model.records import Alert

STORED = "sinks.json"  # name of the file, in the directory of the history


class _Configured(NamedTuple):
    since: float
    filter: SinkFilter


class ConfiguredSinks:
    """The sinks of this daemon, and since when each has its present filter, in Unix seconds.

    Args:
        path: The file; None to keep nothing. If it cannot be written, as on a full disk, sinks are new to the next daemon.
        wall: Unix time, in seconds.
    """

    def __init__(self, path: Path | None = None, wall: Callable[[], float] = time.time) -> None:
        self._path = path
        self._wall = wall
        self._sinks: dict[str, _Configured] = {}
        with suppress(OSError, msgspec.MsgspecError):
            if path is not None:
                self._sinks = msgspec.json.decode(path.read_bytes(), type=dict[str, _Configured])

    def register(self, sinks: Iterable[Sink]) -> None:
        """Use these sinks from now on; one with an equal filter is the one of before."""
        new = {sink.name: _Configured(self._wall(), sink.filter) for sink in sinks}
        kept = {name: known for name, known in self._sinks.items() if name in new and new[name].filter == known.filter}
        self._sinks = {**new, **kept}
        if self._path is None:
            return
        unfinished = self._path.with_suffix(".unfinished")
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(msgspec.json.encode(self._sinks))
            unfinished.replace(self._path)

    def owes(self, sink: str, alert: Alert) -> bool:
        """Return True if a sink has sent an alert of an earlier daemon, or should have: it has begun since."""
        known = self._sinks.get(sink)
        if known is None or sink in alert.notified:
            return sink in alert.notified
        accepts = known.filter.accepts if alert.ended is None else known.filter.accepts_late
        return alert.started >= known.since and accepts(alert)
