"""Alerts of the history that a daemon goes on with: what makes no sense is left out, in one place."""

from __future__ import annotations

import logging
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside_daemon.model.records import Alert

log = logging.getLogger("trackside")


def usable(kept: Iterable[Alert]) -> list[Alert]:
    """Those that detectors and the book can go on with; each of the others is logged in a line."""
    some = []
    for one in kept:
        wrong = _wrong(one)
        if wrong:
            log.warning(
                "an alert that fired before this daemon began is left out: %.80r of run %.80r: its %s is %.80r; if it fires "
                "still, it is found anew",
                *(one.alert, one.run, *wrong),
            )
        else:
            some.append(one)
    return some


def _wrong(one: Alert) -> tuple[str, object] | None:
    """What of it cannot be used, and its value."""
    for name, value in one.labels.items():
        if not isinstance(value, str) or (name == "rank" and not _is_rank(value)):
            return name, value
    since = one.evidence.get("since", 0.0)
    if not isinstance(since, (int, float)) or not isfinite(since):
        return "since", since
    return None


def _is_rank(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20
