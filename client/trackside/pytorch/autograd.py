"""What a model returns, and where in the graph of autograd it comes from."""

from __future__ import annotations

from typing import Any

NODES = 8
"""At so many of the tensors that a forward returns, the first ones, its backward is waited for."""

DEPTH = 3
"""Tensors are looked for so deep in what a forward returns."""


def nodes(output: Any) -> list[Any]:
    """The nodes of the graph that the first tensors in *output* come from, each once."""
    found: list[Any] = []
    _search(output, found, DEPTH)
    return list(dict.fromkeys(found))


def _search(output: Any, found: list[Any], depth: int) -> None:
    if output is None or len(found) >= NODES:
        return
    node = getattr(output, "grad_fn", None)
    if node is not None:
        found.append(node)
    elif depth and type(output).__module__ != "torch":
        for part in _parts(output):
            _search(part, found, depth - 1)


def _parts(output: Any) -> list[Any]:
    """What a collection or a data class holds; nothing of anything else."""
    if isinstance(output, (tuple, list)):
        return list(output[:NODES])
    if hasattr(output, "values") and hasattr(output, "keys"):
        return list(output.values())
    return list(vars(output).values()) if hasattr(output, "__dataclass_fields__") else []
