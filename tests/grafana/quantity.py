"""The quantity that a query measures, from the units of its families and its operations.

A quantity has dimensions, powers of base units, and a scale: joules divided by 3.6e6 are kilowatt-hours. A point in time,
such as ``*_timestamp_seconds`` and ``time()``, is not a duration; the difference of two is one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isclose
from typing import TYPE_CHECKING

from grafana.promql import MAGIC, kind, selectors
from grafana.registry import series

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grafana.promql import Node

BASES: dict[str, dict[str, int]] = {
    "": {},
    "ratio": {},
    "cores": {},
    "lanes": {},
    "cycles": {},
    "bytes": {"B": 1},
    "bytes_per_second": {"B": 1, "s": -1},
    "celsius": {"°C": 1},
    "flops_per_second": {"s": -1},
    "hertz": {"Hz": 1},
    "joules": {"J": 1},
    "seconds": {"s": 1},
    "watts": {"J": 1, "s": -1},
}
MOMENT = {"moment": 1}
_KEEPING = """
abs avg_over_time ceil clamp clamp_max clamp_min floor last_over_time max_over_time min_over_time round sort sort_desc
sum_over_time stddev_over_time label_replace label_join increase delta idelta quantile_over_time scalar vector predict_linear
"""
KEEPING = set(_KEEPING.split())
"""Functions whose result has the quantity of their argument."""
COMPARISONS = {"trackside_training_straggler_ratio"}
"""Ratios that are not shares of a whole and may exceed 1."""
RATES = {"rate", "irate", "deriv"}
COUNTS = {"count_over_time", "changes", "resets", "absent", "absent_over_time", "present_over_time"}
COUNTING = {"count", "count_values", "group"}
COMPARING = {"==", "!=", "<", ">", "<=", ">="}


class QuantityError(Exception):
    """The result of a query is meaningless or unknown here."""


@dataclass(frozen=True)
class Quantity:
    """The quantity of a value.

    Attributes:
        dimensions: Powers of base units, without zeros.
        share: ``part`` of a whole, 0 to 1; ``quotient`` of two of a kind; ``time``, seconds per second; else empty.
        scale: The number of this unit in a base unit.
        literal: True for a literal number, which fits every quantity.
    """

    dimensions: Mapping[str, int] = field(default_factory=dict)
    share: str = ""
    scale: float = 1.0
    literal: bool = False

    def fits(self, other: Quantity) -> bool:
        """Return True if two quantities can be added and compared."""
        alike = self.dimensions == other.dimensions and isclose(self.scale, other.scale)
        return alike or self.literal or other.literal


def measured(node: Node) -> Quantity:
    """Return the quantity of a query.

    Raises:
        QuantityError: The query is meaningless, such as bytes added to seconds.
    """
    rule = {
        "AggregateExpr": _aggregated,
        "BinaryExpr": _combined,
        "Call": _called,
        "MatrixSelector": lambda one: measured(one.vector_selector),
        "NumberLiteral": _literal,
        "ParenExpr": lambda one: measured(one.expr),
        "SubqueryExpr": lambda one: measured(one.expr),
        "UnaryExpr": lambda one: measured(one.expr),
        "VectorSelector": _selected,
    }.get(kind(node))
    if rule is None:
        raise QuantityError(f"{kind(node)} is no quantity")
    return rule(node)


def _literal(node: Node) -> Quantity:
    if node.val == float(MAGIC["__range_s"]):
        return Quantity({"s": 1})
    if node.val == float(MAGIC["__interval_ms"]):
        return Quantity({"s": 1}, scale=1000)
    return Quantity(scale=node.val, literal=True)


def _selected(node: Node) -> Quantity:
    known = series().get(node.name)
    if known is None:
        raise QuantityError(f"{node.name} is no family")
    if known.family.endswith(("_timestamp_seconds", "start_time_seconds")):
        return Quantity(MOMENT)
    ratio = "quotient" if known.family in COMPARISONS else "part"
    return Quantity(BASES[known.unit], share=ratio if known.unit == "ratio" else "")


def _aggregated(node: Node) -> Quantity:
    inner, name = measured(node.expr), str(node.op)
    if name in COUNTING:
        return Quantity()
    return replace(inner, share="quotient") if name == "sum" and inner.share == "part" else inner


def _called(node: Node) -> Quantity:
    name = node.func.name
    if name == "time":
        return Quantity(MOMENT)
    if name == "timestamp":
        return Quantity(MOMENT)
    if name in COUNTS:
        return Quantity()
    vectors = [one for one in node.args if kind(one) not in {"NumberLiteral", "StringLiteral"}]
    if name == "histogram_quantile":
        [bucket] = {one.name for one, _ in selectors(vectors[-1])}
        return Quantity(BASES[series()[bucket.removesuffix("_bucket") + "_sum"].unit])
    inner = measured(vectors[0]) if vectors else Quantity(literal=True)
    if name in RATES:
        slowed = _power(inner, {"s": -1})
        return replace(slowed, share="time" if inner.dimensions == {"s": 1} else "")
    if name in KEEPING:
        return inner
    raise QuantityError(f"{name}() is not known here")


def _combined(node: Node) -> Quantity:
    left, right, sign = measured(node.lhs), measured(node.rhs), str(node.op)
    if sign in {"*", "/"}:
        return _product(left, right, 1 if sign == "*" else -1)
    if sign in {"and", "unless"}:
        return left
    if not left.fits(right):
        raise QuantityError(f"{dict(left.dimensions)} {sign} {dict(right.dimensions)}")
    if sign in COMPARING:
        compared = node.modifier is not None and node.modifier.return_bool
        return Quantity() if compared else left
    if sign == "-" and left.dimensions == right.dimensions == MOMENT:
        return Quantity({"s": 1})
    if sign in {"+", "-", "or", "%"}:
        return right if left.literal else left
    raise QuantityError(f"{sign} is not known here")


def _product(left: Quantity, right: Quantity, sign: int) -> Quantity:
    """Return the quantity of a product, or of a quotient with a sign of -1."""
    if left.literal and right.literal:
        return Quantity(scale=left.scale * right.scale**sign, literal=True)
    if right.literal:
        return _scaled(left, right.scale**sign)
    if left.literal and sign == 1:
        return _scaled(right, left.scale)
    found = _power(left, {name: sign * power for name, power in right.dimensions.items()})
    shared = (left.share or right.share) if sign == 1 else "quotient"
    return replace(found, share="" if found.dimensions else shared, scale=left.scale * right.scale**sign, literal=False)


def _scaled(one: Quantity, scale: float) -> Quantity:
    """Return True if the number of things is a plain count."""
    return replace(one, scale=one.scale * scale) if one.dimensions or one.share else one


def _power(one: Quantity, more: Mapping[str, int]) -> Quantity:
    powers = {name: one.dimensions.get(name, 0) + more.get(name, 0) for name in {*one.dimensions, *more}}
    return replace(one, dimensions={name: power for name, power in powers.items() if power})
