"""The labels of a query's series, from its families and its operations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from grafana.boards import board_annotations, label_query, queries, variables
from grafana.promql import SETS, grouped, kind, matchers, parsed
from grafana.registry import VALUES, series

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grafana.boards import Board
    from grafana.promql import Node

LABELLESS = {"scalar", "time", "vector", "absent", "absent_over_time"}
KEEPING = {"topk", "bottomk", "limitk", "limit_ratio"}
"""Aggregations that select series and keep their labels."""


class LabelError(Exception):
    """A query uses a label that its series do not have."""


def labels(node: Node) -> set[str]:
    """Return the labels that the result may have.

    Raises:
        LabelError: The query names an unknown label or family.
    """
    if kind(node) == "VectorSelector":
        return _selected(node)
    if kind(node) == "AggregateExpr":
        return _aggregated(node)
    if kind(node) == "BinaryExpr":
        return _combined(node)
    if kind(node) == "Call":
        return _called(node)
    inner = getattr(node, "vector_selector", None) or getattr(node, "expr", None)
    return labels(inner) if inner is not None else set()


def strangers(board: Board) -> Iterator[str]:
    """Yield each query, variable, legend and annotation of a dashboard that uses an unknown name."""
    for query in queries(board):
        try:
            has = labels(parsed(query.expr))
        except LabelError as error:
            yield f"{query.where}: {error}"
            continue
        for label in sorted(_shown(query.legend) - has):
            yield f"{query.where}: the legend has {label}, and the series have {', '.join(sorted(has)) or 'no labels'}"
    for variable in variables(board):
        selector, label = label_query(variable)
        try:
            has = labels(parsed(selector)) if selector else {label}
        except LabelError as error:
            yield f"{board['uid']}: variable {variable['name']}: {error}"
            continue
        if label not in has:
            yield f"{board['uid']}: variable {variable['name']}: {selector} has no label {label}"
    yield from _marks(board)


def _marks(board: Board) -> Iterator[str]:
    for mark in board_annotations(board):
        try:
            has = labels(parsed(mark.get("expr") or mark["target"]["expr"]))
        except LabelError:
            continue  # as a query it is said already
        named = _shown(mark.get("titleFormat", "") + mark.get("textFormat", ""))
        named |= {one.strip() for one in mark.get("tagKeys", "").split(",") if one.strip()}
        for label in sorted(named - has):
            yield f"{board['uid']}: annotation {mark['name']!r}: its texts have {label}, which its series have not"


def _shown(legend: str) -> set[str]:
    return set(re.findall(r"\{\{\s*(\w+)\s*\}\}", legend)) - {"__name__"}


def _selected(node: Node) -> set[str]:
    known = series().get(node.name)
    if known is None:
        raise LabelError(f"there is no family {node.name}")
    _known(set(matchers(node)), set(known.labels), node.name)
    for label, (sign, text) in matchers(node).items():
        can = VALUES.get((node.name, label))
        for one in text.split("|") if sign in {"=~", "!~"} else [text]:
            if can and "$" not in one and not any(re.fullmatch(one, value) for value in can):
                raise LabelError(f"{node.name} has no {label} {one}; there are {', '.join(sorted(can))}")
    return set(known.labels)


def _aggregated(node: Node) -> set[str]:
    inner, named = labels(node.expr), grouped(node)
    _known(named, inner, str(node.op))
    if str(node.op) in KEEPING:
        return inner
    if node.modifier is not None and str(node.modifier.type).endswith("Without"):
        return inner - named
    made = {node.param.val} if str(node.op) == "count_values" else set()
    return named | made


def _combined(node: Node) -> set[str]:
    left, right = labels(node.lhs), labels(node.rhs)
    modifier, sign = node.modifier, str(node.op)
    if "NumberLiteral" in {kind(node.lhs), kind(node.rhs)}:
        return left or right
    matching = modifier.matching if modifier is not None else None
    on = matching is not None and str(matching.type).endswith("Include")
    named = set(matching.labels) if matching is not None else set()
    sides = left & right if on else left | right
    _known(named, sides, f"{sign} {'on' if on else 'ignoring'}")
    if sign in SETS:
        return left | right if sign == "or" else left
    card = str(modifier.card).rpartition(".")[2] if modifier is not None else "OneToOne"
    if card in {"ManyToOne", "OneToMany"}:
        many, one = (left, right) if card == "ManyToOne" else (right, left)
        brought = set(modifier.group_labels or ())
        _known(brought, one, "group_left" if card == "ManyToOne" else "group_right")
        return many | brought
    if matching is None:
        return left & right or left | right
    return named if on else left - named


def _called(node: Node) -> set[str]:
    name = node.func.name
    inner = [labels(one) for one in node.args if kind(one) not in {"NumberLiteral", "StringLiteral"}]
    if name in LABELLESS:
        return set()
    found = inner[-1] if inner else set()
    if name == "histogram_quantile":
        _known({"le"}, found, name)
        return found - {"le"}
    if name == "label_replace":
        _known({node.args[3].val} - {""}, found, name)
        return found | {node.args[1].val}
    if name == "label_join":
        _known({one.val for one in node.args[3:]}, found, name)
        return found | {node.args[1].val}
    return found


def _known(named: set[str], there: set[str], where: str) -> None:
    if named - there:
        raise LabelError(
            f"{where} names {', '.join(sorted(named - there))}; there are {', '.join(sorted(there)) or 'none'}"
        )
