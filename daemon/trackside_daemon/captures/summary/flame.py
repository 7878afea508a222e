"""The tree of calls of the training thread, with the time of each with all that it calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.captures.summary.calls import encloses, user_source
from trackside_daemon.captures.summary.tables import ADDRESS, TEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.captures.summary.calls import Call
    from trackside_daemon.captures.summary.trace import Event

SMALLEST = 0.005  # share of the time below which a call is left out
NODES = 500  # the most calls that are kept
DEPTH = 100


class _Node:
    def __init__(self) -> None:
        self.microseconds = 0.0
        self.children: dict[str, _Node] = {}


def flame(calls: Sequence[Call], edges: Sequence[float]) -> dict[str, Any]:
    """Return the root of the tree: ``name``, ``seconds`` per step, and ``children``, the longest first.

    Args:
        calls: Those of the training thread, by their begin.
        edges: Begin of each step and end of the last, in microseconds.
    """
    root, first, last = _Node(), edges[0], edges[-1]
    root.microseconds = last - first
    open_calls: list[tuple[Event, _Node]] = []
    for call in calls:
        event = call.event
        while open_calls and not encloses(open_calls[-1][0], event):
            open_calls.pop()
        seconds = min(event.end, last) - max(event.ts, first)
        if seconds <= 0 or len(open_calls) >= DEPTH:
            continue
        parent = open_calls[-1][1] if open_calls else root
        node = parent.children.setdefault(_name(event), _Node())
        node.microseconds += seconds
        open_calls.append((event, node))
    smallest = _smallest(root)
    return _as_json("step", root, 1e6 * (len(edges) - 1), smallest)


def _name(event: Event) -> str:
    return (user_source(event.name) or event.name.split(ADDRESS)[0])[:TEXT]


def _smallest(root: _Node) -> float:
    """Return the microseconds below which calls are left out, so that at most `NODES` are kept."""
    sizes: list[float] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        sizes.append(node.microseconds)
        waiting += [child for child in node.children.values() if child.microseconds >= SMALLEST * root.microseconds]
    return max([SMALLEST * root.microseconds, *sorted(sizes, reverse=True)[NODES : NODES + 1]])


def _as_json(name: str, node: _Node, divisor: float, smallest: float) -> dict[str, Any]:
    kept = sorted(node.children.items(), key=lambda item: -item[1].microseconds)
    children = [_as_json(own, child, divisor, smallest) for own, child in kept if child.microseconds >= smallest]
    return {"name": name, "seconds": node.microseconds / divisor, "children": children}
