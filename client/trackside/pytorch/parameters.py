"""The parameters of a watched model: the part that this rank counts, and all by module. None is kept alive."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from math import gcd
from typing import Any, NamedTuple

from trackside.numbers import local_part

# Parts of a parameter's name that compiling and wrapping insert.
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")

LAYERS = 256  # limit of layers with a norm each; in deeper models the names are cut until there are so few
SAMPLED = 4096  # weights of a parameter that are sampled, evenly spaced, to estimate how far they move
SAMPLED_IN_ALL = 2**19  # weights that are sampled of all parameters together


class UncountableError(Exception):
    """The norm over all ranks cannot be computed from each rank's part."""


class NamedParameter(NamedTuple):
    """One parameter."""

    name: str  # its name without the parts that wrappers insert
    parameter: weakref.ref[Any]  # a weak reference
    counts: bool  # this rank counts it; of ranks with the same part only one does


class Parameters:
    """The parameters of a model, in its order.

    Args:
        model: A ``torch.nn.Module``. It is not kept alive.
        rank: Rank of this process in the run.

    Attributes:
        sharded: Ranks have different parts, so that one rank's norm is not the whole norm.
    """

    def __init__(self, model: Any, rank: int) -> None:
        self._model = weakref.ref(model)
        self._rank = rank
        self._named: list[NamedParameter] = []
        self.sharded = False
        self.refresh()

    @property
    def is_gone(self) -> bool:
        """The model was deleted."""
        return self._model() is None

    def refresh(self) -> None:
        """Read the model's parameters anew."""
        model = self._model()
        if model is None:
            self._named = []
            return
        # A frozen one may be trained later.
        every = [(plain_name(name), one) for name, one in model.named_parameters()]
        flat = _is_flat(model)
        self.sharded = flat or any(_is_sharded(one) for _, one in every)
        first = flat or (self._rank == 0 and not _is_replica(model))
        self._named = [
            NamedParameter(name, weakref.ref(one), not self.sharded or _counts(one, model, plain=first))
            for name, one in every
        ]

    def trained(self) -> list[tuple[str, Any]]:
        """Return names and parameters that this rank counts and that are trained now."""
        every = [(name, reference(), counts) for name, reference, counts in self._named]
        if any(one is None for _, one, _ in every):  # sharded or replaced since
            self.refresh()
            every = [(name, reference(), counts) for name, reference, counts in self._named]
        return [(name, one) for name, one, counts in every if counts and one is not None and one.requires_grad]

    def has_any_of(self, optimizer: Any) -> bool:
        """Return whether an optimizer has any of the parameters."""
        own = {id(one.parameter()) for one in self._named}  # by identity: `==` of tensors compares their elements
        return any(id(one) in own for one in optimizer_parameters(optimizer))

    def layers(self, patterns: Sequence[str] | None) -> list[tuple[str, list[str]]]:
        """Return layers with the names of their parameters: those that match *patterns*, or all for None.

        A name selects everything below it, as one layer. A pattern selects each matching module with parameters.
        """
        trained = [(name, reference()) for name, reference, _ in self._named]
        names = [name for name, one in trained if one is not None and one.requires_grad]
        if patterns is None:
            return _grouped(names)
        layers: dict[str, list[str]] = {}
        for pattern in patterns:
            below = [name for name in names if name == pattern or name.startswith(f"{pattern}.")]
            if below:
                layers[pattern] = below
                continue
            for name in names:
                layer = name.rpartition(".")[0] or name
                if fnmatchcase(layer, pattern) or fnmatchcase(name, pattern):
                    group = layers.setdefault(layer if fnmatchcase(layer, pattern) else name, [])
                    group.extend([name] if name not in group else [])
        return list(layers.items())[:LAYERS]


def optimizer_parameters(optimizer: Any) -> Iterable[Any]:
    """Return an optimizer's parameters."""
    return (one for group in optimizer.param_groups for one in group["params"])


def local_values(tensor: Any) -> Any:
    """Return this rank's part of a gradient or a parameter, as a dense real tensor.

    Raises:
        UncountableError: It is sparse and on a device: the host would have to wait to make it dense.
    """
    tensor = local_part(tensor).detach()
    if tensor.is_sparse:
        if tensor.is_cuda:
            raise UncountableError("a sparse gradient on a GPU cannot be read without waiting for it")
        tensor = tensor.coalesce().values()
    if tensor.is_complex():
        import torch

        return torch.view_as_real(tensor.resolve_conj())
    return tensor


def local_gradient(name: str, parameter: Any) -> Any:
    """Return this rank's part of a parameter's gradient, as `local_values`.

    Raises:
        UncountableError: The gradient is split over the ranks in another way than the parameter, or is sparse on a
            device.
    """
    grad = parameter.grad
    placements = getattr(parameter, "placements", None)
    if getattr(grad, "placements", placements) != placements:  # under sequence parallelism: a sum not yet reduced
        raise UncountableError(f"{name} is {placements} over the ranks and its gradient {grad.placements}")
    return local_values(grad)


def strided_sample(tensor: Any, most: int) -> Any:
    """Return at most *most* of a tensor's elements, evenly spaced; a view if the tensor is contiguous."""
    count = tensor.numel()
    if not count:
        return tensor.reshape(-1)
    stride, width = -(-count // most), max(1, tensor.shape[-1] if tensor.dim() else 1)
    while stride > 1 and gcd(stride, width) != 1:  # else every sample would be of the same columns
        stride += 1
    dense = tensor if tensor.is_contiguous() else tensor.reshape(-1)
    return dense.as_strided((-(-count // stride),), (stride,), dense.storage_offset())


def layer_positions(layers: Iterable[tuple[str, list[str]]], names: Sequence[str]) -> Mapping[str, list[int]]:
    """Return the positions in *names* of each layer's parameters; layers without any are left out."""
    places = {name: place for place, name in enumerate(names)}
    positions = {layer: [places[name] for name in own if name in places] for layer, own in layers}
    return {layer: own for layer, own in positions.items() if own}


def plain_name(name: str) -> str:
    """Return the name of a parameter or module without the parts that wrappers insert."""
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    return ".".join(parts[1:] if parts[:1] == ["module"] and len(parts) > 1 else parts)


def _grouped(names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Group parameters by their module, or by a parent of it if there are more than `LAYERS` modules."""
    owners = [name.rpartition(".")[0] or name for name in names]
    depth = max((owner.count(".") + 1 for owner in owners), default=1)
    while depth > 1 and len({_cut(owner, depth) for owner in owners}) > LAYERS:
        depth -= 1
    groups: dict[str, list[str]] = {}
    for name, owner in zip(names, owners, strict=True):
        groups.setdefault(_cut(owner, depth), []).append(name)
    return list(groups.items())[:LAYERS]


def _cut(name: str, depth: int) -> str:
    return ".".join(name.split(".")[:depth])


def _is_sharded(parameter: Any) -> bool:
    mesh = getattr(parameter, "device_mesh", None)
    return mesh is not None and any(
        not place.is_replicate() and mesh.size(dim) > 1 for dim, place in enumerate(parameter.placements)
    )


def _is_flat(model: Any) -> bool:
    """Return whether FSDP1 has flattened the parameters: each rank has a piece of them as a plain tensor.

    Raises:
        UncountableError: Several groups have the same pieces, and nothing shows which of them counts.
    """
    strategies = {
        getattr(getattr(one, "sharding_strategy", None), "name", "")
        for one in model.modules()
        if type(one).__name__ == "FullyShardedDataParallel"
    }
    if strategies - {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"}:
        raise UncountableError(f"FSDP1 shards in groups ({', '.join(sorted(strategies))}); use fully_shard")
    return bool(strategies - {"NO_SHARD"})


def _is_replica(model: Any) -> bool:
    """Return whether DDP replicates the model, and this is not its first rank."""
    group = getattr(model, "process_group", None)
    return type(model).__name__ == "DistributedDataParallel" and group is not None and group.rank() > 0


def _counts(parameter: Any, model: Any, *, plain: bool) -> bool:
    """Return whether this rank counts a parameter: the first of the ranks with the same part does."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return plain
    placements = parameter.placements
    if any(place.is_partial() for place in placements):
        raise UncountableError("a parameter is a partial sum on each rank")
    here = mesh.get_coordinate()
    if here is None or _is_replica(model):
        return False
    return all(here[dim] == 0 for dim, place in enumerate(placements) if place.is_replicate())


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
    while len(json.dumps(modules := _modules(owners, classes, depth))) > LENGTH and depth > 1:
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


def _modules(owners: list[tuple[str, Any]], classes: dict[str, str], depth: int) -> list[list[Any]]:
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
