"""The layers of an observed model by how far they stand out, from the last measurement of each kind."""

from __future__ import annotations

from math import inf, log10
from statistics import median
from typing import TYPE_CHECKING, Any

from trackside_daemon.model.text import number, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Values = Mapping[str, Any]

HEADER = ("layer", "norm", "update ratio", "gradient", "zeros", "largest output", "entropy", "alert")


def alerts_by_layer(alerts: Iterable[Values]) -> dict[str, list[str]]:
    """Return the names of alerts by the layer, or other key, that they are about."""
    found: dict[str, dict[str, None]] = {}
    for one in alerts:
        found.setdefault(one["labels"].get("key", ""), {})[one["alert"]] = None
    return {key: list(names) for key, names in found.items()}


def ranked(kinds: Values, alerts: Mapping[str, list[str]]) -> list[dict[str, Any]]:
    """Return the layers that stand out most first.

    Args:
        kinds: What `history.read.layers.newest` has as ``kinds``.
        alerts: Names of alerts by layer; layers with one come first, then those without a gradient, then those whose update
            ratio is furthest from the median of all, whose largest output furthest above it, or whose entropy furthest below.

    Returns:
        ``layer``, ``norm``, ``update_ratio``; of the gradient ``gradient``, its norm, and ``zeros``, the share of zeros; of
        the output ``largest``; of attention ``entropy``, the lowest of the layer's heads; None for what was not measured; and
        ``alerts``.
    """
    weights, gradients, outputs, heads = (
        kinds[kind]["layers"] if kind in kinds else {} for kind in ("weights", "gradients", "activations", "attention")
    )
    entropies = dict(_entropies(heads))
    ratios = {name: one.get("update_ratio") for name, one in weights.items() if one.get("update_ratio") != "nan"}
    moved = _apart(ratios)
    large = _apart({name: one.get("largest") for name, one in outputs.items()})
    spread = _apart(entropies)

    def order(name: str) -> tuple[bool, bool, float]:
        apart = max(abs(moved.get(name, 0.0)), large.get(name, 0.0), -spread.get(name, 0.0))
        return name not in alerts, gradients.get(name, {}).get("norm", inf) != 0, -apart

    return [
        {
            "layer": name,
            "norm": weights.get(name, {}).get("norm"),
            "update_ratio": ratios.get(name),
            "gradient": gradients.get(name, {}).get("norm"),
            "zeros": gradients.get(name, {}).get("zeros"),
            "largest": outputs.get(name, {}).get("largest"),
            "entropy": entropies.get(name),
            "alerts": alerts.get(name, []),
        }
        for name in sorted(dict.fromkeys([*weights, *gradients, *outputs, *entropies]), key=order)
    ]


def row(layer: Values) -> tuple[str, ...]:
    """Return the cells of a layer for a table with `HEADER`."""
    *values, alerts = list(layer.values())[1:]
    return shown(layer["layer"]), *map(number, values), shown(", ".join(alerts))


def _entropies(heads: Mapping[str, Values]) -> Iterator[tuple[str, float]]:
    """Yield the lowest entropy of the heads of each layer."""
    lowest: dict[str, float] = {}
    for head, one in heads.items():
        if isinstance(one["entropy"], int | float):
            layer = head.rpartition("/")[0]
            lowest[layer] = min(lowest.get(layer, inf), one["entropy"])
    yield from lowest.items()


def _apart(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the decimal logarithm of each positive value as a multiple of their median."""
    positive = {name: value for name, value in values.items() if _is_positive(value)}
    usual = median(positive.values()) if positive else 1.0
    return {name: log10(value / usual) for name, value in positive.items()}


def _is_positive(ratio: object) -> bool:
    return isinstance(ratio, int | float) and 0 < ratio < inf
