"""Check of alerts that are restored from the history: invalid ones are dropped here, in one place."""

from __future__ import annotations

import logging
from math import isfinite
from typing import TYPE_CHECKING, Annotated, TypedDict

import msgspec

from trackside_daemon.alerts.active_alert import OCCURRENCES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside_daemon.model.records import Alert


class _Occurrence(TypedDict):
    number: int
    time: Annotated[float, msgspec.Meta(ge=0.0, lt=1e11)]  # until the year 5138
    summary: str


_Occurrences = Annotated[list[_Occurrence], msgspec.Meta(min_length=1)]

log = logging.getLogger("trackside")


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
