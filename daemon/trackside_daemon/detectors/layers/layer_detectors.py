"""All detectors of the layers of one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trackside_daemon.detectors.layers.activation_outliers import ActivationOutliers
from trackside_daemon.detectors.layers.attention_collapse import AttentionCollapse
from trackside_daemon.detectors.layers.dead_layer import DeadLayer
from trackside_daemon.detectors.layers.layer_updates import LayerUpdates
from trackside_daemon.detectors.layers.saturated_layer import SaturatedLayer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Found
    from trackside_daemon.detectors.layers.streaks import Layers


class LayerDetector(Protocol):
    """Detector of one kind of trouble in all layers of a rank.

    Attributes:
        alerts: The alerts that it can detect.
    """

    alerts: tuple[str, ...]

    def evaluate(self, kind: str, step: int, layers: Layers) -> Iterator[Found]:
        """Yield the detections in the layers that were measured at a step, with their names as keys."""


_DETECTORS = (DeadLayer, SaturatedLayer, AttentionCollapse, ActivationOutliers, LayerUpdates)

ALERTS = tuple(alert for made in _DETECTORS for alert in made.alerts)


class LayerDetectors:
    """The detectors of one rank of one attempt."""

    def __init__(self) -> None:
        self._detectors: tuple[LayerDetector, ...] = tuple(made() for made in _DETECTORS)

    def evaluate(self, kind: str, step: int, layers: Layers) -> Iterator[Found]:
        """Yield the detections in the next measurement; see `LayerDetector`."""
        for detector in self._detectors:
            yield from detector.evaluate(kind, step, layers)
