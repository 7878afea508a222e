"""Check that a panel which shows the value of an alert has the alert's thresholds.

The value of an alert is read from its PromQL: families, matchers, and rate, increase, quotient or difference. Joins,
windows, the dashboard's variables and the extreme of a group are ignored. A mean or sum of values that an alert evaluates one
by one may omit its thresholds, but may not have others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from grafana.boards import panels
from grafana.promql import SETS, kind, matchers, parsed, selectors

from trackside_daemon.alerts.rules import builtin
from trackside_daemon.alerts.settings import ThresholdsSection

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from grafana.boards import Board
    from grafana.promql import Node


class Family(NamedTuple):
    """A family with its matchers, except those of variables."""

    name: str
    matchers: frozenset[tuple[str, str, str]]


Shape = Family | tuple[object, ...] | float | None
"""A family, an operation with its operands, or a number."""

RATES = {"irate": "rate", "increase": "increase", "rate": "rate", "delta": "increase"}
COMPARING = {"==", "!=", "<", ">", "<=", ">="}
COUNTING = {"count", "count_values", "group"}
WORST = {"max", "min", "topk", "bottomk"}
DEFAULTS = ThresholdsSection()
DATA = 'trackside_training_phase_seconds_total{phase="data"}[1m]'
DETECTED: list[tuple[str, float]] = [
    ("trackside_training_straggler_ratio", DEFAULTS.straggler_ratio),
    ("rate(trackside_training_data_wait_seconds_sum[1m])", DEFAULTS.data_wait_ratio),
    (f"sum(rate({DATA})) / sum(rate(trackside_training_phase_seconds_total[1m]))", DEFAULTS.data_wait_ratio),
]
"""Values on the page that detectors evaluate, and their thresholds."""


def shape(node: Node) -> Shape:
    """Return the shape of an expression."""
    name = kind(node)
    if name == "VectorSelector":
        fixed = {(label, *what) for label, what in matchers(node).items() if "$" not in what[1]}
        return Family(node.name, frozenset(fixed))
    if name == "Call":
        return _called(node)
    if name == "AggregateExpr":
        return _aggregated(node)
    if name == "BinaryExpr":
        return _combined(node)
    inner = getattr(node, "vector_selector", None) or getattr(node, "expr", None)
    return shape(inner) if inner is not None else getattr(node, "val", None)


def bounds() -> list[tuple[Shape, float]]:
    """Return the shape that each alert evaluates, and its threshold."""
    queries = [(replace(one.query, fresh=False), one.threshold) for one in builtin.rules(DEFAULTS) if not one.absent]
    rules = [(shape(parsed(query.promql())), bound) for query, bound in queries]
    return [*rules, *((shape(parsed(expr)), bound) for expr, bound in DETECTED)]


def same(shown: Shape, queried: Shape) -> bool:
    """Return True if a panel shows exactly what an alert evaluates."""
    return shown == queried


def like(shown: Shape, queried: Shape) -> bool:
    """Return True if a panel shows what an alert evaluates and more, or its mean or sum."""
    if shown == queried:
        return True
    if isinstance(shown, tuple) and shown[0] == "spread":
        return like(shown[1], queried)  # type: ignore[arg-type]
    if isinstance(shown, Family) and isinstance(queried, Family):
        return shown.name == queried.name and shown.matchers <= queried.matchers
    if isinstance(shown, tuple) and isinstance(queried, tuple) and len(shown) == len(queried):
        return all(like(one, other) for one, other in zip(shown, queried, strict=True))  # type: ignore[arg-type]
    return False


def strange(board: Board) -> Iterator[str]:
    """Yield each panel or column whose thresholds differ from those of the alerts on its value."""
    known = bounds()
    for title, exprs, given in coloured(board):
        shapes = [shape(parsed(one)) for one in exprs]
        wanted = {bound for what, bound in known if any(same(one, what) for one in shapes) and not is_step(what, bound)}
        allowed = {
            1.0 if is_step(what, bound) else bound for what, bound in known if any(like(one, what) for one in shapes)
        }
        if allowed and not given <= allowed:
            yield f"{title}: thresholds {sorted(given)}, and its alerts have {sorted(allowed)}"
        elif wanted and not wanted & given:
            yield f"{title}: thresholds {sorted(given)}, and its alerts have {sorted(wanted)}"


def met(boards: Iterable[Board]) -> set[tuple[Shape, float]]:
    """Return the bounds that apply to a shape, shown alone or as a mean or sum."""
    shown = [(shape(parsed(expr)), given) for board in boards for _, exprs, given in coloured(board) for expr in exprs]
    return {
        (what, bound) for what, bound in bounds() if any(like(one, what) and bound in given for one, given in shown)
    }


def coloured(board: Board) -> Iterator[tuple[str, list[str], set[float]]]:
    """Yield each panel and each of its columns with own thresholds: title, queries and thresholds."""
    for panel in panels(board):
        exprs = {one["refId"]: one["expr"] for one in panel.get("targets", ())}
        config = panel.get("fieldConfig", {})
        own: set[str] = set()
        for override in config.get("overrides", ()):
            steps = [one["value"]["steps"] for one in override["properties"] if one["id"] == "thresholds"]
            letters = _letters(panel, override["matcher"]) & exprs.keys() or exprs.keys()
            if steps:
                own |= letters
                title = f"{panel['title']}, {override['matcher']['options']}"
                yield title, [exprs[one] for one in sorted(letters)], _values(steps[-1])
        rest = [expr for letter, expr in exprs.items() if letter not in own]
        yield panel["title"], rest, _values(config.get("defaults", {}).get("thresholds", {}).get("steps", ()))


def _letters(panel: Board, matcher: Board) -> set[str]:
    """Return the query to which an override applies, if any."""
    if matcher["id"] == "byFrameRefID":
        return {matcher["options"]}
    renamed: dict[str, str] = {}
    for one in panel.get("transformations", ()):
        renamed |= {new: old for old, new in one["options"].get("renameByName", {}).items()}
    source = renamed.get(matcher.get("options", ""), "")
    return {"A"} if source == "Value" else {source.removeprefix("Value #")}


def _values(steps: Iterable[Board]) -> set[float]:
    return {float(one["value"]) for one in steps if one.get("value") is not None}


def is_step(what: Shape, bound: float) -> bool:
    """Return True if a bound separates 0 from more, so that a color from 1 on, or none, is equivalent."""
    return bound == 0 or (bound == 0.5 and (isinstance(what, Family) or what[0] == "-"))  # type: ignore[index]


def _aggregated(node: Node) -> Shape:
    if str(node.op) in COUNTING:
        return ("count", shape(node.expr))
    return shape(node.expr) if str(node.op) in WORST else ("spread", shape(node.expr))


def _called(node: Node) -> Shape:
    vectors = [one for one in node.args if kind(one) not in {"NumberLiteral", "StringLiteral"}]
    if not vectors:
        return (node.func.name,)
    inner = shape(vectors[-1])
    return (RATES[node.func.name], inner) if node.func.name in RATES else inner


def _combined(node: Node) -> Shape:
    sign, left, right = str(node.op), shape(node.lhs), shape(node.rhs)
    if sign in SETS:
        # A rule's "has begun, or has grown" is about what has grown.
        grown = sign == "or" and kind(node.rhs) == "Call" and node.rhs.func.name in RATES
        return right if grown else left
    if sign in COMPARING:
        return left
    if sign == "*" and _is_info(node.lhs) != _is_info(node.rhs):
        return right if _is_info(node.lhs) else left
    return (sign, left, right)


def _is_info(node: Node) -> bool:
    """Return True if an operand is 1 and only adds labels."""
    names = [one.name for one, _ in selectors(node)]
    return bool(names) and all(name.endswith("_info") for name in names)
