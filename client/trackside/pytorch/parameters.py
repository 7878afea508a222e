"""The parameters of a watched model and what of them this rank counts; none is kept alive."""

from __future__ import annotations

import weakref
from fnmatch import fnmatchcase
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside.pytorch.device_scalars import local

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Names that compiling and wrapping put into a parameter's name."""

LAYERS = 256
"""So many layers are told apart; of deeper models the names are cut until there are so few."""

SAMPLED = 4096
"""Of a parameter so many weights are looked at, evenly spaced, to see how far they move."""
SAMPLED_IN_ALL = 2**19


class UncountableError(Exception):
    """The norm of all ranks' gradients does not follow from what each rank has."""


class Named(NamedTuple):
    """One parameter: its name, a weak reference, and whether this rank counts it where others have the same."""

    name: str
    parameter: weakref.ref[Any]
    counts: bool


class Parameters:
    """Those of a model, in its order.

    Args:
        model: Is kept by a weak reference.
        rank: The process's rank in the run.

    Attributes:
        sharded: Ranks have different parts, so that a norm of one rank's is not the whole one.
    """

    def __init__(self, model: Any, rank: int) -> None:
        self._model = weakref.ref(model)
        self._rank = rank
        self._named: list[Named] = []
        self.sharded = False
        self.look()

    @property
    def gone(self) -> bool:
        """The model is not there any more."""
        return self._model() is None

    def look(self) -> None:
        """Look at the model anew."""
        model = self._model()
        if model is None:
            self._named = []
            return
        every = [(_plain(name), one) for name, one in model.named_parameters()]  # a frozen one may be trained later
        flat = _is_flat(model)
        self.sharded = flat or any(_is_sharded(one) for _, one in every)
        first = flat or (self._rank == 0 and not _is_replica(model))
        self._named = [
            Named(name, weakref.ref(one), not self.sharded or _counts(one, model, plain=first)) for name, one in every
        ]

    def living(self) -> list[tuple[str, Any]]:
        """Names and parameters that this rank counts, of those that are trained now."""
        found = [(name, reference(), counts) for name, reference, counts in self._named]
        if any(one is None for _, one, _ in found):  # sharded or replaced since
            self.look()
            found = [(name, reference(), counts) for name, reference, counts in self._named]
        return [(name, one) for name, one, counts in found if counts and one is not None and one.requires_grad]

    def holds(self, optimizer: Any) -> bool:
        """Whether an optimizer has any of them."""
        own = {id(one.parameter()) for one in self._named}
        return any(id(one) in own for one in of(optimizer))

    def layers(self, patterns: Sequence[str] | None) -> list[tuple[str, list[str]]]:
        """Layers and the names of their parameters; of *patterns* those that fit, of None all.

        A name stands for all that is below it; a pattern for each layer of its own, which is a module with parameters.
        """
        trained = [(name, reference()) for name, reference, _ in self._named]
        names = [name for name, one in trained if one is not None and one.requires_grad]
        if patterns is None:
            return _grouped(names)
        found: dict[str, list[str]] = {}
        for pattern in patterns:
            below = [name for name in names if name == pattern or name.startswith(f"{pattern}.")]
            if below:
                found[pattern] = below
                continue
            for name in names:
                layer = name.rpartition(".")[0] or name
                if fnmatchcase(layer, pattern) or fnmatchcase(name, pattern):
                    group = found.setdefault(layer if fnmatchcase(layer, pattern) else name, [])
                    group.extend([name] if name not in group else [])
        return list(found.items())[:LAYERS]


def of(optimizer: Any) -> Iterable[Any]:
    """An optimizer's parameters."""
    return (one for group in optimizer.param_groups for one in group["params"])


def own_part(tensor: Any) -> Any:
    """What of a gradient or a parameter is on this rank, as plain numbers.

    Raises:
        UncountableError: It is sparse and on a device, where to make it plain would have the host wait.
    """
    tensor = local(tensor).detach()
    if tensor.is_sparse:
        if tensor.is_cuda:
            raise UncountableError("a sparse gradient on a GPU cannot be read without waiting for it")
        tensor = tensor.coalesce().values()
    if tensor.is_complex():
        import torch

        return torch.view_as_real(tensor.resolve_conj())
    return tensor


def gradient(name: str, parameter: Any) -> Any:
    """What of a parameter's gradient is on this rank, as `own_part`.

    Raises:
        UncountableError: Its ranks have other parts of it than of the parameter, or it is as `own_part` says.
    """
    grad = parameter.grad
    placements = getattr(parameter, "placements", None)
    if getattr(grad, "placements", placements) != placements:  # as under sequence parallelism: a sum not yet made
        raise UncountableError(f"{name} is {placements} over the ranks and its gradient {grad.placements}")
    return own_part(grad)


def sampled(tensor: Any, most: int) -> Any:
    """At most so many of a tensor's numbers, evenly spaced; a view, if its memory has no gaps."""
    count = tensor.numel()
    if not count:
        return tensor.reshape(-1)
    stride, width = -(-count // most), max(1, tensor.shape[-1] if tensor.dim() else 1)
    while stride > 1 and gcd(stride, width) != 1:  # else it would only ever see the same columns
        stride += 1
    dense = tensor if tensor.is_contiguous() else tensor.reshape(-1)
    return dense.as_strided((-(-count // stride),), (stride,), dense.storage_offset())


def spans(layers: Iterable[tuple[str, list[str]]], names: Sequence[str]) -> Mapping[str, list[int]]:
    """Where in *names* the parameters of each layer are; layers of which none is there are left out."""
    places = {name: place for place, name in enumerate(names)}
    found = {layer: [places[name] for name in own if name in places] for layer, own in layers}
    return {layer: own for layer, own in found.items() if own}


def _plain(name: str) -> str:
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    return ".".join(parts[1:] if parts[0] == "module" and len(parts) > 1 else parts)


def _grouped(names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """By the module that has them, or by one above it where there are too many of those."""
    owners = [name.rpartition(".")[0] or name for name in names]
    depth = max((owner.count(".") + 1 for owner in owners), default=1)
    while depth > 1 and len({_cut(owner, depth) for owner in owners}) > LAYERS:
        depth -= 1
    found: dict[str, list[str]] = {}
    for name, owner in zip(names, owners, strict=True):
        found.setdefault(_cut(owner, depth), []).append(name)
    return list(found.items())[:LAYERS]


def _cut(name: str, depth: int) -> str:
    return ".".join(name.split(".")[:depth])


def _is_sharded(parameter: Any) -> bool:
    mesh = getattr(parameter, "device_mesh", None)
    return mesh is not None and any(
        not place.is_replicate() and mesh.size(dim) > 1 for dim, place in enumerate(parameter.placements)
    )


def _is_flat(model: Any) -> bool:
    """Whether FSDP1 has made its parameters flat, of which each rank has a piece as a plain tensor.

    Raises:
        UncountableError: In groups that hold the same, where nothing tells which of them counts.
    """
    ways = {
        getattr(getattr(one, "sharding_strategy", None), "name", "")
        for one in model.modules()
        if type(one).__name__ == "FullyShardedDataParallel"
    }
    if ways - {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"}:
        raise UncountableError(f"FSDP1 shards in groups ({', '.join(sorted(ways))}); use fully_shard")
    return bool(ways - {"NO_SHARD"})


def _is_replica(model: Any) -> bool:
    """Whether DDP has it in copies, and this is not the first of them."""
    group = getattr(model, "process_group", None)
    return type(model).__name__ == "DistributedDataParallel" and group is not None and group.rank() > 0


def _counts(parameter: Any, model: Any, *, plain: bool) -> bool:
    """Whether this rank counts a parameter: of those that have the same part of it the first one does."""
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
