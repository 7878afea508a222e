"""Series that the tests of the loss detectors share, and the places of detections in them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from trackside_daemon.detectors.base import Column, Context, Detection, Detector

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def falling(count: int, *, start: float = 8.0, end: float = 2.0, noise: float = 0.02, seed: int = 0) -> list[float]:
    """Return a loss like that of a healthy training: it falls ever more slowly, with noise in proportion to it."""
    draw = random.Random(seed)
    return [(end + (start - end) * 0.5 ** (i / (count / 8))) * (1 + draw.gauss(0, noise)) for i in range(count)]


def column(values: Sequence[float], steps: Sequence[int] | None = None) -> Column:
    """Return a column of *values*, by default with steps that count from 0."""
    return Column(steps or range(len(values)), [float(i) for i in range(len(values))], values)


def found(detector: Detector, samples: Column, context: Context | None = None) -> list[Detection]:
    """Return the detections in all samples at once."""
    return list(detector.evaluate(samples, context or Context()))


def one_by_one(make: Callable[[], Detector], samples: Column) -> list[Detection]:
    """Return the detections when each sample comes alone."""
    detector, context = make(), Context()
    return [
        finding._replace(at=i)
        for i, (step, at, value) in enumerate(zip(*samples, strict=True))
        for finding in detector.evaluate(Column([step], [at], [value]), context)
    ]


def alarms(findings: Sequence[Detection], alert: str) -> list[int]:
    """Return the indices at which *alert* was found."""
    return [finding.at for finding in findings if finding.alert == alert and not finding.over]


def ends(findings: Sequence[Detection], alert: str) -> list[int]:
    """Return the indices at which *alert* was over."""
    return [finding.at for finding in findings if finding.alert == alert and finding.over]
