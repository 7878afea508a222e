"""Describe a model: its parameters by module, with their types and devices."""

from __future__ import annotations

import json
from typing import Any

from trackside.pytorch.parameters import plain_name

KIND = "model"  # kind of the event that has the description
LENGTH = 3000  # most characters of the modules as JSON, so that the event has room


def architecture(model: Any) -> dict[str, Any]:
    """Return the architecture of a ``torch.nn.Module``, wherever its parameters are: nothing is read from a device.

    Returns:
        ``class``; ``parameters``, ``trainable`` and ``bytes`` of all parameters, shared ones once; ``modules``: name, class,
        parameters, data type and device of each module with parameters, or of their parents if there are too many.
    """
    named = [(plain_name(name), one) for name, one in model.named_parameters()]
    owners = [(_owner(name), one) for name, one in named]
    # Of a wrapper and what it wraps, which have the same name, the latter comes last.
    classes = {_owner(plain_name(f"{name}.weight")): type(module).__name__ for name, module in model.named_modules()}
    depth = max((owner.count(".") + 1 for owner, _ in owners), default=1)
    while len(json.dumps(modules := _grouped(owners, classes, depth))) > LENGTH and depth > 1:
        depth -= 1
    while (length := len(json.dumps(modules))) > LENGTH:
        modules = modules[: len(modules) * LENGTH // length]  # fewer each time, without a try for each of many
    return {
        "class": classes[""],
        "parameters": sum(one.numel() for _, one in named),
        "trainable": sum(one.numel() for _, one in named if one.requires_grad),
        "bytes": sum(one.numel() * one.element_size() for _, one in named),
        "modules": modules,
    }


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _grouped(owners: list[tuple[str, Any]], classes: dict[str, str], depth: int) -> list[list[Any]]:
    groups: dict[str, list[Any]] = {}
    for owner, one in owners:
        groups.setdefault(".".join(owner.split(".")[:depth]), []).append(one)
    return [
        [
            name,
            classes.get(name, ""),
            sum(one.numel() for one in group),
            ", ".join(dict.fromkeys(str(one.dtype).removeprefix("torch.") for one in group)),
            ", ".join(dict.fromkeys(str(one.device) for one in group)),
        ]
        for name, group in groups.items()
    ]
