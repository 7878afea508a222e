"""Parsed PromQL: what a query selects and what it does with it."""

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
"""Unusual durations that stand for Grafana's variables and can be recognized again."""

SETS = {"and", "or", "unless"}
"""Operators that select series."""

Node = Any
"""A node of the parser's tree."""


def parsed(expr: str) -> Node:
    """Return the syntax tree of a query; variables in quotes stay, since values of labels may be anything.

    Raises:
        ValueError: The text is not PromQL.
    """
    return promql_parser.parse(substituted(expr, MAGIC))


def kind(node: Node) -> str:
    """Return the class name of a node."""
    return type(node).__name__


def children(node: Node) -> list[Node]:
    """Return the direct children of a node."""
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
    """Yield every node with its ancestors, from the root."""
    yield node, parents
    for child in children(node):
        yield from walk(child, (*parents, node))


def selectors(node: Node) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Yield every series selector with its ancestors."""
    return ((one, parents) for one, parents in walk(node) if kind(one) == "VectorSelector")


def matchers(selector: Node) -> dict[str, tuple[str, str]]:
    """Return a selector's matchers as label, operator and value."""
    signs = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}
    return {one.name: (signs[str(one.op).rpartition(".")[2]], one.value) for one in selector.matchers.matchers}


def grouped(node: Node) -> set[str]:
    """Return the labels that a node names: by, without, on, ignoring, group_left, label_replace."""
    modifier = getattr(node, "modifier", None)
    if kind(node) == "AggregateExpr" and modifier is not None:
        return set(modifier.labels)
    if kind(node) == "BinaryExpr" and modifier is not None:
        matching = modifier.matching.labels if modifier.matching is not None else ()
        return {*matching, *(modifier.group_labels or ())}
    return set()
