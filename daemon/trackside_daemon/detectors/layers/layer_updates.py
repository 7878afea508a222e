"""Detect layers that the optimizer moves far more or less than the others, or not at all."""

from __future__ import annotations

from math import exp, isfinite, log
from typing import TYPE_CHECKING

from trackside_daemon.detectors.layers.streaks import LAYERS, Streaks
from trackside_daemon.model.robust import middle_and_spread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trackside_daemon.detectors.base import Found
    from trackside_daemon.detectors.layers.streaks import Layers

MORE, LESS = 20.0, 1 / 100  # limits of a layer's update, as a multiple of the usual one
SCALES = 5.0  # robust standard deviations of the layers beyond which it must be, too
LEAST = 4  # layers that are needed to compare


class LayerUpdates:
    """`LayerUpdates`: a layer's weights do not change, or much more or less than those of the others.

    What is alike in all layers depends on the optimizer: Adam changes each weight by about the learning rate, SGD in
    proportion to the gradient, LAMB in proportion to the weights. So a layer must stand out by all three measures.
    """

    alerts: tuple[str, ...] = ("LayerUpdates",)

    def __init__(self) -> None:
        self._gradients: tuple[int, Layers] = -1, {}
        self._before: dict[str, tuple[float, ...]] = {}
        self._frozen = Streaks("LayerUpdates", "warning", "its weights change again")
        self._apart = Streaks("LayerUpdates", "warning", "its updates are as those of other layers again")

    def evaluate(self, kind: str, step: int, layers: Layers) -> Iterator[Found]:
        """Yield what the next measurement shows."""
        if kind == "gradients":
            self._gradients = step, layers
        if kind != "weights":
            return
        gradients = self._gradients[1] if self._gradients[0] == step else {}
        yield from self._frozen.update(step, self._unchanged(layers, gradients))
        yield from self._apart.update(step, _outliers(layers, gradients))

    def _unchanged(self, layers: Layers, gradients: Layers) -> dict[str, str]:
        """Return the layers with a gradient whose weights are exactly as before, while those of others changed."""
        now: dict[str, tuple[float, ...]] = {
            name: (one["mean"], one["std"], one["norm"], one["largest"]) for name, one in layers.items()
        }
        still = {name for name, columns in now.items() if self._before.get(name) == columns}
        moves = 2 * len(still) <= len(now)
        self._before = now if len(now) <= LAYERS else {}
        text = "its weights do not change since step {since}, although they have a gradient: no optimizer may have them"
        learns = {name for name, one in gradients.items() if one["norm"] > 0}
        return {name: text if moves and name in still and name in learns else "" for name in now}


def _outliers(layers: Layers, gradients: Layers) -> dict[str, str]:
    measures: tuple[dict[str, float], ...] = ({}, {}, {})
    for name, one in layers.items():
        moved, size = one.get("update_ratio", 0.0) * one["norm"], one["size"]
        gradient = gradients[name]["norm"] if name in gradients else 0.0
        if isfinite(moved) and moved > 0 and size > 0 and gradient > 0:
            for measure, of in zip(measures, (size**0.5, gradient, one["norm"]), strict=True):
                measure[name] = log(moved / of)
    ratios = [_deviations(measure) for measure in measures]
    return {name: _text([ratio[name] for ratio in ratios]) if name in ratios[0] else "" for name in layers}


def _deviations(measure: Mapping[str, float]) -> dict[str, float]:
    """Return how far each layer is from the median, as a ratio; 1 if it is not clear of the spread of the others."""
    if len(measure) < LEAST:
        return dict.fromkeys(measure, 1.0)
    middle, scale = middle_and_spread(measure.values())
    return {
        name: exp(value - middle) if abs(value - middle) > SCALES * scale else 1.0 for name, value in measure.items()
    }


def _text(ratios: list[float]) -> str:
    if min(ratios) > MORE:
        return f"its updates are {min(ratios):.3g} times those of other layers since step {{since}}"
    if max(ratios) < LESS:
        return f"its updates are {max(ratios):.2g} of those of other layers since step {{since}}"
    return ""
