"""PromQL as the parser reads it: what a query selects, and what it does with that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import promql_parser
from grafana.boards import substituted

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = {
    "__rate_interval": "123457s",
    "__interval": "123461s",
    "__range": "123479s",
    "__range_s": "123479",
    "__interval_ms": "123461000",
}
"""Durations that nobody writes, in place of Grafana's own variables, by which they are known again."""

SETS = {"and", "or", "unless"}
"""Operators that choose series."""

Node = Any
"""Of the parser's tree."""


def parsed(expr: str) -> Node:
    """The tree of a query; variables in quotes stay, as labels' values may be anything.

    Raises:
        ValueError: It is no PromQL.
    """
    return promql_parser.parse(substituted(expr, MAGIC))


def kind(node: Node) -> str:
    """What a node is, by its class in the parser."""
    return type(node).__name__


def children(node: Node) -> list[Node]:
    """The nodes right below."""
    below = {
        "AggregateExpr": ("expr", "param"),
        "BinaryExpr": ("lhs", "rhs"),
        "MatrixSelector": ("vector_selector",),
        "ParenExpr": ("expr",),
        "SubqueryExpr": ("expr",),
        "UnaryExpr": ("expr",),
    }.get(kind(node), ())
    arguments = node.args if kind(node) == "Call" else ()
    return [one for one in (*(getattr(node, name) for name in below), *arguments) if one is not None]


def walk(node: Node, parents: tuple[Node, ...] = ()) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Every node with those above it, from the root."""
    yield node, parents
    for child in children(node):
        yield from walk(child, (*parents, node))


def selectors(node: Node) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Every selector of series, likewise."""
    return ((one, parents) for one, parents in walk(node) if kind(one) == "VectorSelector")


def matchers(selector: Node) -> dict[str, tuple[str, str]]:
    """What a selector asks of labels: by the label, the operator and the value."""
    signs = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}
    return {one.name: (signs[str(one.op).rpartition(".")[2]], one.value) for one in selector.matchers.matchers}


def grouped(node: Node) -> set[str]:
    """The labels that a node itself names: by, without, on, ignoring, group_left, label_replace."""
    modifier = getattr(node, "modifier", None)
    if kind(node) == "AggregateExpr" and modifier is not None:
        return set(modifier.labels)
    if kind(node) == "BinaryExpr" and modifier is not None:
        matching = modifier.matching.labels if modifier.matching is not None else ()
        return {*matching, *(modifier.group_labels or ())}
    return set()
