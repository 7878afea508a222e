"""Detect layers whose outputs are at their bounds, where their activation function has no gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.detectors.layers.streaks import Streaks
from trackside_daemon.model.text import percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Found
    from trackside_daemon.detectors.layers.streaks import Layers

SATURATED = 0.8  # share of the outputs within 2 % of the largest
CONSTANT = (
    0.02  # deviation, as a share of the largest, of outputs that are all alike, as of a linear layer with a large bias
)
LEAST = 256  # outputs: of few ones many may be equal


class SaturatedLayer:
    """`SaturatedLayer`: most outputs of a layer are as large as its largest one."""

    alerts: tuple[str, ...] = ("SaturatedLayer",)

    def __init__(self) -> None:
        self._streaks = Streaks("SaturatedLayer", "warning", "most of its outputs are below the largest again")

    def evaluate(self, kind: str, step: int, layers: Layers) -> Iterator[Found]:
        """Yield what the next measurement shows."""
        if kind == "activations":
            yield from self._streaks.update(step, {name: _text(one) for name, one in layers.items()})


def _text(layer: dict[str, float]) -> str:
    share = layer.get("saturated", 0.0)
    if share < SATURATED or layer["size"] < LEAST or layer["std"] <= CONSTANT * layer["largest"]:
        return ""
    return (
        f"{percent(share)} of its outputs are within 2 % of {layer['largest']:.4g}, the largest, since step {{since}}"
    )
