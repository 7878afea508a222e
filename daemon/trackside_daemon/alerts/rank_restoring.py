"""Restores the detectors after a restart: of some ranks before the daemon serves, of the others while it does.

A rank costs some 3 ms, so a thousand would delay the acknowledgement of what their clients have kept for the restart.
"""

from __future__ import annotations

import logging
import time
from math import isfinite
from typing import TYPE_CHECKING, Annotated, TypedDict

import msgspec

from trackside_daemon.alerts.active_alert import OCCURRENCES
from trackside_daemon.alerts.stages import RestorableSource
from trackside_daemon.detectors.rank_feed import RankWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trackside_daemon.alerts.replay_history import PastRanks
    from trackside_daemon.alerts.stages import FindingSource
    from trackside_daemon.model.records import Alert

log = logging.getLogger("trackside")


class RankRestoring:
    """Lets the sources that learn continue from the samples of the runs that have not ended.

    Args:
        sources: The finding sources.
        past: The samples.
        fired: The alerts that fired when the earlier daemon ended.
    """

    def __init__(self, sources: Iterable[FindingSource], past: PastRanks, fired: Sequence[Alert]) -> None:
        self._past = past
        self._fired = fired
        sources = list(sources)
        self._learning = [source for source in sources if isinstance(source, RestorableSource)]
        self._holding = [source for source in sources if isinstance(source, RankWatch)]
        self._restored = 0
        self._began = time.monotonic()
        for source in self._holding:
            source.expect(past.left)
        if not self._learning:
            past.close()

    def start(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Restore as many ranks as *seconds* allow."""
        until = clock() + seconds
        while clock() < until and self.step():
            pass

    def step(self) -> bool:
        """Restore one rank; return whether more may be left."""
        past = self._past.next()
        if past is None:
            self._finish()
            return False
        for source in self._learning:
            source.restore_rank(past, self._fired)
        self._restored += 1
        return True

    def give_up(self) -> None:
        """Let the ranks that are left start without past samples."""
        if self._past.left:
            text = "the detectors of %d ranks start without past samples: reading them took too long"
            log.info(text, len(self._past.left))
        self._past.close()
        self._finish()

    def _finish(self) -> None:
        for source in self._holding:
            source.expect(())
        if self._restored:
            seconds = time.monotonic() - self._began
            log.info(
                "the detectors of %d ranks continue from their past samples, after %.1f s", self._restored, seconds
            )
            self._restored = 0


class _Occurrence(TypedDict):
    number: int
    time: Annotated[float, msgspec.Meta(ge=0.0, lt=1e11)]  # until the year 5138
    summary: str


_Occurrences = Annotated[list[_Occurrence], msgspec.Meta(min_length=1)]


def usable(records: Iterable[Alert]) -> list[Alert]:
    """Return the alerts that detectors and the active alerts can restore; log one line for each of the others."""
    valid = []
    for record in records:
        invalid = _invalid_field(record)
        if invalid:
            name, value = invalid
            log.warning(
                "not restored: alert %.80r of run %.80r, because its %s is %.80r; if the problem persists, it is found again",
                record.alert,
                record.run,
                name,
                value,
            )
        else:
            valid.append(record)
    return valid


def _invalid_field(alert: Alert) -> tuple[str, object] | None:
    """Return the name and the value of an invalid field."""
    for name, value in alert.labels.items():
        if not isinstance(value, str) or (name == "rank" and not _is_rank(value)):
            return name, value
    since = alert.evidence.get("since", 0.0)
    if not isinstance(since, (int, float)) or not isfinite(since):
        return "since", since
    occurrences = alert.evidence.get(OCCURRENCES)
    try:
        msgspec.convert(occurrences, _Occurrences | None)
    except msgspec.ValidationError:
        return OCCURRENCES, occurrences
    return None


def _is_rank(text: str) -> bool:
    # isdecimal() alone accepts the digits of all scripts. The length bounds the number.
    return text.isascii() and text.isdecimal() and len(text) < 20
