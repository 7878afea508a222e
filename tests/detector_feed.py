"""Detectors fed with series, many samples at once or one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.detectors.base import Column, Context

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.detectors.base import Detection, Detector


class Fed(NamedTuple):
    """A finding, its index in the whole series and not in the part that was fed."""

    at: int
    alert: str
    severity: str
    text: str
    over: bool


def feed(
    detector: Detector,
    values: Sequence[float],
    *,
    steps: Sequence[int] | None = None,
    times: Sequence[float] | None = None,
    parts: int | None = None,
    context: Context | None = None,
) -> list[Fed]:
    """Feed values to *detector*, *parts* samples at a time or all at once if None; return the findings.

    Steps count from 0 by default; the default times are NaN, for unknown.
    """
    steps = range(len(values)) if steps is None else steps
    times = [float("nan")] * len(values) if times is None else times
    context = context or Context()
    size = parts or max(1, len(values))
    fed: list[Fed] = []
    for first in range(0, len(values), size):
        part = slice(first, first + size)
        found = detector.evaluate(Column(steps[part], times[part], values[part]), context)
        fed += [_whole(finding, first) for finding in found]
    return fed


def alarms(fed: list[Fed]) -> list[int]:
    """Return the places of the findings that are not over."""
    return [finding.at for finding in fed if not finding.over]


def same_in_parts_and_beforehand(
    make: Callable[[], Detector], values: Sequence[float], parts: int, *, steps: Sequence[int] | None = None
) -> None:
    """Assert that the findings are the same in parts, and that those of the first half need no second half."""
    whole = feed(make(), values, steps=steps)
    assert feed(make(), values, steps=steps, parts=parts) == whole
    half = len(values) // 2
    early = feed(make(), values[:half], steps=None if steps is None else steps[:half])
    assert early == [finding for finding in whole if finding.at < half]


def _whole(finding: Detection, first: int) -> Fed:
    return Fed(finding.at + first, finding.alert, finding.severity, finding.text, finding.over)
