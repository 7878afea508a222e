"""Find the autograd nodes behind the output of a model."""

from __future__ import annotations

from typing import Any

NODES = 8  # number of tensors in the output of a forward, the first ones, whose gradients are awaited
DEPTH = 3  # depth to which nested outputs are searched for tensors


def gradient_nodes(output: Any) -> list[Any]:
    """Return the autograd nodes of the first tensors in *output*, each once."""
    nodes: list[Any] = []
    _search(output, nodes, DEPTH)
    return list(dict.fromkeys(nodes))


def _search(output: Any, nodes: list[Any], depth: int) -> None:
    if output is None or len(nodes) >= NODES:
        return
    node = getattr(output, "grad_fn", None)
    if node is not None:
        nodes.append(node)
    elif depth and type(output).__module__ != "torch":  # not into a tensor without a gradient
        for part in _parts(output):
            _search(part, nodes, depth - 1)


def _parts(output: Any) -> list[Any]:
    """Return the elements of a collection or the fields of a data class; of anything else none."""
    if isinstance(output, (tuple, list)):
        return list(output[:NODES])
    if hasattr(output, "values") and hasattr(output, "keys"):
        return list(output.values())
    return list(vars(output).values()) if hasattr(output, "__dataclass_fields__") else []
