"""Detect layers that learn nothing: their outputs or their gradients are all zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.detectors.layers.streaks import Streaks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Found
    from trackside_daemon.detectors.layers.streaks import Layers

DEAD = 0.9999  # share of zeros of a dead layer


class DeadLayer:
    """`DeadLayer`: a layer has no gradient while others have, or its outputs are all zero."""

    alerts: tuple[str, ...] = ("DeadLayer",)

    def __init__(self) -> None:
        self._gradients: Layers = {}
        self._without = Streaks("DeadLayer", "warning", "the layer has a gradient again")
        self._outputs = Streaks("DeadLayer", "warning", "the outputs are no longer all zero")

    def evaluate(self, kind: str, step: int, layers: Layers) -> Iterator[Found]:
        """Yield what the next measurement shows."""
        if kind == "gradients":
            self._gradients = layers
            alive = any(one["norm"] > 0 for one in layers.values())
            text = "all of its gradients are zero since step {since}, while other layers have some"
            yield from self._without.update(
                step, {name: text if alive and one["norm"] == 0 else "" for name, one in layers.items()}
            )
        elif kind == "activations":
            text = "all of its outputs are zero since step {since}"
            yield from self._outputs.update(
                step, {name: text if self._is_dead(name, one["zeros"]) else "" for name, one in layers.items()}
            )

    def _is_dead(self, name: str, zeros: float) -> bool:
        """Return whether a module has only zeros, and no gradient as far as gradients are measured."""
        own = [one for layer, one in self._gradients.items() if layer == name or layer.startswith(f"{name}.")]
        return zeros >= DEAD and not any(one["norm"] > 0 for one in own)
