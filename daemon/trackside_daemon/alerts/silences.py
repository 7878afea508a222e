"""The silences that last: which alerts people are not told of, and until when."""

from __future__ import annotations

import threading
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trackside_daemon.model.records import Alert, Silence

LONGEST = 30 * 86400.0
"""Seconds that one lasts at most."""

MOST = 100
"""So many last at once: all of them are asked about each alert."""


class TooManyError(Exception):
    """No further silence can be kept; the message says why."""


class Silences:
    """Those of one daemon; may be used from any thread.

    Args:
        kept: Those that the history has, from a daemon before this one; what has ended already among them.
    """

    def __init__(self, kept: Iterable[Silence] = ()) -> None:
        self._lock = threading.Lock()
        self._known = {one.id: one for one in kept}

    def add(self, silence: Silence) -> None:
        """From now on it lasts, until its end.

        Raises:
            TooManyError: `MOST` others last.
        """
        with self._lock:
            lasting = {one.id: one for one in self._known.values() if one.until > silence.started}
            if len(lasting.keys() - {silence.id}) >= MOST:
                raise TooManyError(f"{MOST} silences last already; end one with trackside silence --end ID")
            self._known = {**lasting, silence.id: silence}

    def end(self, id_: str, now: float) -> Silence | None:
        """One that lasts ends at *now*, in Unix seconds.

        Returns:
            The silence as it is from now on; None when none of this id lasts.
        """
        with self._lock:
            silence = self._known.get(id_)
            if silence is None or silence.until <= now:
                return None
            self._known[id_] = replace(silence, until=now)
            return self._known[id_]

    def active(self, now: float) -> list[Silence]:
        """Those that last at *now*, the first to end first."""
        with self._lock:
            lasting = [one for one in self._known.values() if one.until > now]
        return sorted(lasting, key=lambda one: (one.until, one.id))

    def has(self, alert: str, labels: Mapping[str, str], now: float) -> bool:
        """Whether one that lasts has this alert."""
        return silenced_until(self.active(now), alert, labels) is not None

    def mark(self, fired: Iterable[Alert], now: float) -> list[Alert]:
        """What fired when a daemon before this one ended, with `silenced` as it is now."""
        return [replace(one, silenced=self.has(one.alert, one.labels, now)) for one in fired]

    def kept_quiet(self, alert: Alert, now: float) -> bool:
        """Whether one that has ended had this alert while it fired: perhaps nobody was told."""
        with self._lock:
            ended = [one for one in self._known.values() if alert.started < one.until <= now]
        return silenced_until(ended, alert.alert, alert.labels) is not None


def silenced_until(silences: Iterable[Silence], alert: str, labels: Mapping[str, str]) -> float | None:
    """When the last of *silences* that has this alert ends, in Unix seconds; None when none has it."""
    return max((one.until for one in silences if fits(one, alert, labels)), default=None)


def with_ends(alerts: Iterable[dict[str, Any]], lasting: Sequence[Silence]) -> list[dict[str, Any]]:
    """Alerts as the history tells them, each with ``silenced_until``: None of those that are not silenced or have ended."""
    return [
        {**one, "silenced_until": silenced_until(lasting if one["ended"] is None else (), one["alert"], one["labels"])}
        for one in alerts
    ]


def fits(silence: Silence, alert: str, labels: Mapping[str, str]) -> bool:
    """Whether a silence has an alert: all its patterns fit, and a label that the alert does not have fits none."""
    about = {**labels, "alert": alert}
    return all(name in about and _fits(about[name], pattern) for name, pattern in silence.labels.items())


def _fits(value: str, pattern: str) -> bool:
    return value == pattern or fnmatchcase(value, pattern.replace("[", "[[]"))
