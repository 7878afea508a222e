"""Turn symptoms of layers into detections: only what lasts for some measurements and steps counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside.packing import unpack
from trackside_daemon.detectors.base import Detection, Found

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trackside.wire import DistributionFrame
    from trackside_daemon.model.finding import Severity

MEASURED, STEPS = 3, 20  # measurements in a row, and steps that they cover, with which a symptom counts
CALM = 2  # measurements without it that end the alert
LAYERS = 8192  # layers to remember

Layers = dict[str, dict[str, float]]
"""Columns by layer, as `trackside.wire.DistributionFrame` has them."""


def by_layer(frame: DistributionFrame) -> Layers:
    """Return the columns of a frame by layer."""
    columns: dict[str, Any] = {name: unpack("f", column) for name, column in frame.columns.items()}
    return {layer: {name: columns[name][place] for name in columns} for place, layer in enumerate(frame.names)}


class Streaks:
    """The layers with one symptom.

    Args:
        alert: The alert that it raises.
        severity: How severe it is.
        cured: What to report at its end.
    """

    def __init__(self, alert: str, severity: Severity, cured: str) -> None:
        self._alert = alert
        self._severity = severity
        self._cured = cured
        self._since: dict[str, tuple[int, int]] = {}
        self._calm: dict[str, int] = {}

    def update(self, step: int, symptoms: Mapping[str, str]) -> Iterator[Found]:
        """Yield the detections at a step.

        Args:
            step: The step.
            symptoms: Text by layer, for every measured layer; empty without the symptom.
        """
        for layer, text in symptoms.items():
            if not text:
                self._since.pop(layer, None)
                if layer in self._calm:
                    self._calm[layer] += 1
                    if self._calm[layer] >= CALM:
                        del self._calm[layer]
                        yield Found(layer, Detection(self._alert, self._severity, 0, self._cured, over=True))
                continue
            count, first = self._since.get(layer, (0, step))
            self._since[layer] = count + 1, min(first, step)
            if layer in self._calm:
                self._calm[layer] = 0
            elif count + 1 >= MEASURED and step - first >= STEPS:
                self._calm[layer] = 0
                yield Found(layer, Detection(self._alert, self._severity, 0, text.format(since=f"{first:,}")))
        if len(self._since) > LAYERS:
            self._since.clear()
