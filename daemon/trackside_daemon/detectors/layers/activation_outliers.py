"""Detect outputs of a layer that grow far beyond their own past and beyond other layers."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING

from trackside_daemon.detectors.layers.streaks import LAYERS, Streaks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Found
    from trackside_daemon.detectors.layers.streaks import Layers

GREW = 10.0  # growth over the usual
AHEAD = 4.0  # growth, and size, as a multiple of the median of the other layers
LEAST, KEPT = 3, 16  # earlier measurements, at least and at most
FIRST = 1  # measurements that are left out at the start, when outputs may be zero by initialisation


class ActivationOutliers:
    """`ActivationOutliers`: the largest output of a layer is ten times what it was, and other layers did not grow so."""

    alerts: tuple[str, ...] = ("ActivationOutliers",)

    def __init__(self) -> None:
        self._past: dict[str, deque[float]] = {}
        self._seen = 0
        self._streaks = Streaks("ActivationOutliers", "warning", "its largest output is as before")

    def evaluate(self, kind: str, step: int, layers: Layers) -> Iterator[Found]:
        """Yield what the next measurement shows."""
        if kind != "activations":
            return
        self._seen += 1
        if self._seen <= FIRST:
            return
        largest = {name: one["largest"] for name, one in layers.items()}
        growth = {name: size / self._usual(name) if self._usual(name) else 0.0 for name, size in largest.items()}
        symptoms = {name: self._text(name, largest, growth) for name in largest}
        yield from self._streaks.update(step, symptoms)
        for name, text in symptoms.items():
            if not text:  # else the growth would become usual
                self._past.setdefault(name, deque(maxlen=KEPT)).append(largest[name])
        if len(self._past) > LAYERS:
            self._past.clear()

    def _usual(self, name: str) -> float:
        past = self._past.get(name, ())
        return median(past) if len(past) >= LEAST else 0.0

    def _text(self, name: str, largest: dict[str, float], growth: dict[str, float]) -> str:
        grew, size = growth[name], largest[name]
        others = [other for other in largest if other != name]
        if grew < GREW or (others and grew < AHEAD * median(growth[other] for other in others)):
            return ""
        if others and size < AHEAD * median(largest[other] for other in others):
            return ""
        return (
            f"its largest output is {size:.4g} since step {{since}}, {grew:.3g} times the usual {self._usual(name):.4g}"
        )
