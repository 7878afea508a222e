"""Active silences: the alerts that are muted, and until when."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trackside_daemon.model.records import Alert, Silence
from trackside_daemon.model.text import matches_wildcards

MAX_SILENCE_SECONDS = 30 * 86400.0  # longest duration of a silence, in seconds
MAX_SILENCES = 100  # most silences at a time: each alert is compared with all of them


class TooManySilencesError(Exception):
    """The limit of silences is reached; the message states it."""


class Silences:
    """Silences of one daemon; may be used from any thread.

    Args:
        stored: Silences in the history from earlier daemons, including some that have ended.
    """

    def __init__(self, stored: Iterable[Silence] = ()) -> None:
        self._lock = threading.Lock()
        self._silences = {silence.id: silence for silence in stored}

    def add(self, silence: Silence) -> None:
        """Add or replace a silence.

        Raises:
            TooManyError: `MAX_SILENCES` other silences are active.
        """
        with self._lock:
            # Ended silences are dropped here, so the dict stays bounded.
            active = {other.id: other for other in self._silences.values() if other.until > silence.started}
            if len(active.keys() - {silence.id}) >= MAX_SILENCES:
                raise TooManySilencesError(
                    f"{MAX_SILENCES} silences are active already; end one with trackside silence --end ID"
                )
            self._silences = {**active, silence.id: silence}

    def end(self, id_: str, now: float) -> Silence | None:
        """End an active silence at *now*, in Unix seconds.

        Returns:
            The changed silence; None if no active silence has this id.
        """
        with self._lock:
            silence = self._silences.get(id_)
            if silence is None or silence.until <= now:
                return None
            self._silences[id_] = replace(silence, until=now)
            return self._silences[id_]

    def active(self, now: float) -> list[Silence]:
        """Return the silences that are active at *now*, ordered by their end."""
        with self._lock:
            active = [silence for silence in self._silences.values() if silence.until > now]
        return sorted(active, key=lambda silence: (silence.until, silence.id))

    def mutes(self, alert: str, labels: Mapping[str, str], now: float) -> bool:
        """Return True if an active silence matches this alert."""
        return silenced_until(self.active(now), alert, labels) is not None

    def mark(self, records: Iterable[Alert], now: float) -> list[Alert]:
        """Return the records of alerts of an earlier daemon with `silenced` as of *now*, or as of their end."""
        at = [(record, now if record.ended is None else record.ended) for record in records]
        return [replace(record, silenced=self.mutes(record.alert, record.labels, then)) for record, then in at]

    def has_muted(self, alert: Alert, *, before: float) -> bool:
        """Return True if a silence that ended by *before* matched this alert while it fired, so no sink may have sent it."""
        with self._lock:
            ended = [silence for silence in self._silences.values() if alert.started < silence.until <= before]
        return silenced_until(ended, alert.alert, alert.labels) is not None


def silenced_until(silences: Iterable[Silence], alert: str, labels: Mapping[str, str]) -> float | None:
    """Return the latest end, in Unix seconds, of the *silences* that match an alert; None if none does."""
    return max((silence.until for silence in silences if matches(silence, alert, labels)), default=None)


def with_silenced_until(alerts: Iterable[dict[str, Any]], active: Sequence[Silence]) -> list[dict[str, Any]]:
    """Return alerts of the history with ``silenced_until``, None for those that are not silenced or have ended."""
    return [
        {
            **alert,
            "silenced_until": silenced_until(active if alert["ended"] is None else (), alert["alert"], alert["labels"]),
        }
        for alert in alerts
    ]


def matches(silence: Silence, alert: str, labels: Mapping[str, str]) -> bool:
    """Return True if all patterns of a silence match; a pattern for a label that the alert lacks does not match."""
    values = {**labels, "alert": alert}
    return all(name in values and matches_wildcards(values[name], pattern) for name, pattern in silence.labels.items())
