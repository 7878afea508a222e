"""Hash what several ranks of a training must have in common, one part of the model at a time; the daemon compares.

No collective: the number of a step chooses the part, the same on all ranks, and each rank sends its hash. Nothing waits for a GPU:
the hash is copied from there, and sent when it has arrived.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import partial
from itertools import accumulate
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref
from zlib import crc32

from trackside.packing import text_of
from trackside.pytorch.hooks import uncompiled
from trackside.pytorch.observer import MeasuredSender
from trackside.pytorch.overhead_budget import NEVER, OverheadBudget
from trackside.pytorch.parameters import local_values, plain_name
from trackside.rows import Measured
from trackside.training_log import warn
from trackside.wire import TensorHash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trackside.row_queue import RowQueue

SHARE = 0.0005  # share of the time that the hashes may cost
MAX_STEPS_APART = 2**16  # so many that also for steps of a millisecond the share alone decides
TIMES_MEASURED = 1.6  # what a hash costs in relation to its own time: the hooks and the watcher before and after it

ROW = 1024  # numbers of 8 bytes in a row of a part

# Bytes that are hashed at once: they take no longer than the calls of PyTorch that hash them, so that no GPU has to be timed.
PART_BYTES = {"cpu": 2**20, "cuda": 2**24}

# In each third tour over the model, columns are summed and not rows, so that errors do not cancel each other out in all of them. The
# budget chooses powers of two. Among these steps are all tours and all parts only if the numbers of both are odd.
TOURS = 3

DDP, FSDP1 = "DistributedDataParallel", "FullyShardedDataParallel"


class SharedTensor(NamedTuple):
    """A tensor that several ranks have: what `TensorHash` has of it, and a function that returns it, or None if it is gone."""

    name: str
    parts: int
    group: int
    ranks: int
    buffer: bool
    find: Callable[[], Any]


class Replicas:
    """Hashes what other ranks have, too, until the run ends.

    Args:
        queue: Queue of the run.
        models: Modules. None is kept alive.
        wait: As of `MeasuredSender`.
        everywhere: What neither DDP nor a DTensor shows to be shared is the same on all ranks, too.
        excluded: Names and patterns of parameters and buffers that are left out.

    Attributes:
        next_step: Number of finished steps at which `step_finished` must be called.
    """

    def __init__(
        self,
        queue: RowQueue,
        models: Sequence[Any],
        wait: Callable[[Callable[[], object]], object],
        everywhere: bool = False,
        excluded: str | Sequence[str] = (),
    ) -> None:
        import torch

        self._torch, self._queue = torch, queue
        self._models = [ref(model) for model in models]
        self._everywhere = everywhere
        self._excluded = (excluded,) if isinstance(excluded, str) else tuple(excluded)
        self._watch = len(queue.timers)  # the same on all ranks, and another for each model that a run watches
        self._budget = OverheadBudget(SHARE, MAX_STEPS_APART)
        self._sender = MeasuredSender(queue, torch, wait)
        self._weights: dict[Any, Any] = {}
        self._handle: Any = None
        self._hook: Callable[..., None] = self._before_step
        self._step = 0  # that the hook comes before
        self._since: tuple[int, float] | None = None
        self._find()

    def _find(self) -> None:
        distributed = self._torch.distributed
        self._tensors: list[SharedTensor] = []
        try:
            if self._queue.is_open and distributed.is_available() and distributed.is_initialized():
                world = range(distributed.get_world_size() if self._everywhere else 0)
                models = [model for reference in self._models if (model := reference()) is not None]
                found = [one for model in models for one in _shared(distributed, model, world, self._watch)]
                self._tensors = [one for one in found if not _matches(one.name, self._excluded)]
        except Exception as error:  # noqa: BLE001  a model of the user's own kind may raise anything
            warn(f"replicas are not compared: {type(error).__name__}: {text_of(error)[:200]}")
        self._ends = list(accumulate(one.parts for one in self._tensors))
        self.next_step = 0 if self._tensors else NEVER

    def step_finished(self, steps: int, optimizer: Any) -> None:
        """Note that an optimizer has made *steps* steps, and add a hook before the next one if a part is hashed then."""
        now = perf_counter()
        if self._since is not None and steps > self._since[0]:
            self._budget.add_step((now - self._since[1]) / (steps - self._since[0]))
        self._since = steps, now
        self._remove_hook()
        self._sender.poll()
        if not self._queue.is_open:
            self.stop()
            return
        # Before the step, and not after the last one: what keeps the ranks equal between the two has been done then, such as
        # the broadcasts of ZeroRedundancyOptimizer.
        is_due = self._budget.is_due(steps + 1)
        if is_due:
            # The same each time, or `torch.compile` would compile a step that calls the optimizer again and again, and give it up.
            if self._hook == self._before_step:
                self._hook = uncompiled(self._before_step)
            self._step, self._handle = steps + 1, optimizer.register_step_pre_hook(self._hook)
        self.next_step = steps + 1 if is_due or self._sender.flying else self._budget.next_due(steps) - 1

    def stop(self) -> None:
        """Hash nothing any more."""
        self._remove_hook()
        self._tensors, self.next_step = [], NEVER

    def _remove_hook(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _before_step(self, *_: object) -> None:
        torch, name, step = self._torch, "", self._step
        if not self._tensors or torch.compiler.is_compiling():
            return
        try:
            tour, place = divmod(step, self._ends[-1] | 1)
            is_captured = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
            if place == self._ends[-1] or is_captured:
                return
            number = next(number for number, end in enumerate(self._ends) if place < end)
            shared = self._tensors[number]
            name, tensor = f" at {shared.name}", shared.find()
            if tensor is None:  # replaced, by sharding for example
                self._find()
                return
            began = perf_counter()
            with torch.no_grad():
                part = place - self._ends[number] + shared.parts
                value = tensor_hash(torch, _part(tensor, part, shared.parts), self._weights, columns=tour % TOURS == 0)
            self._sender.send([Measured("replicas", _Hash(shared, part, step, value))])
            self._budget.add_cost(TIMES_MEASURED * (perf_counter() - began))
        except Exception as error:  # noqa: BLE001  whatever of PyTorch's fails, training goes on
            self._tensors, self.next_step = [], NEVER
            warn(f"replicas are no longer compared{name}: {type(error).__name__}: {text_of(error)[:200]}")


class _Hash(NamedTuple):
    """A hash on its way to the sender thread."""

    shared: SharedTensor
    part: int
    step: int
    value: Any

    def tensors(self) -> list[Any]:
        return [self.value]

    def frame(self, _: str, time: int, tensors: Sequence[Any]) -> TensorHash:
        name, parts, group, ranks, buffer, _find = self.shared
        return TensorHash(name, self.part, parts, self.step, group, ranks, int(tensors[0]), time, buffer)


def tensor_hash(torch: Any, values: Any, weights: dict[Any, Any], *, columns: bool) -> Any:
    """Return a hash of the bits of a contiguous tensor of one dimension, as an int64 on its device.

    Sums of the bits as 64-bit numbers, along rows or columns, are mixed with their positions. They are exact in any order, take as
    long as a norm, and need no memory. A single error always shows; of several only those can cancel out that are in one row
    or column. `torch.hash_tensor` is slower, and its exclusive-or does not know positions.

    Args:
        torch: PyTorch.
        values: The tensor.
        weights: Odd numbers by device, which are kept here.
        columns: Sum along columns.
    """
    raw = values.view(torch.uint8)
    if raw.storage_offset() % 8:
        raw = raw.clone()
    wide = raw.numel() // 8
    numbers, rows = raw[: wide * 8].view(torch.int64), wide // ROW
    parts = [numbers[: rows * ROW].view(rows, ROW).sum(0 if columns else 1)] if rows else []
    parts += [numbers[rows * ROW :]] if wide % ROW or not rows else []
    parts += [raw[wide * 8 :].long()] if raw.numel() % 8 else []
    mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
    odd = weights.get(values.device)
    if odd is None or len(odd) < len(mixed):
        odd = weights[values.device] = torch.arange(1, 2 * len(mixed) + 1, 2, device=values.device)
    return ((mixed ^ (mixed >> 32)) * odd[: len(mixed)]).sum()


def _part(tensor: Any, part: int, parts: int) -> Any:
    """Return a part of this rank's values of a tensor, in the order of its memory."""
    values = local_values(tensor)
    # Once what is expanded, and has the same memory again; and PyTorch gives a single element any stride, with which it has no bytes.
    sizes = zip(values.shape, values.stride(), strict=True)
    values = values[tuple(0 if size == 1 or (size and not stride) else slice(None) for size, stride in sizes)]
    if not values.is_contiguous():
        values = values.permute(*sorted(range(values.dim()), key=lambda dim: -values.stride(dim)))
    count = values.numel()
    low, high = count * part // parts, count * (part + 1) // parts
    if count and not values.is_contiguous():  # with gaps: of these rows alone a copy is made
        row = count // len(values)
        first = low // row
        values, low, high = values[first : -(-high // row)], low - first * row, high - first * row
    return values.reshape(-1)[low:high]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") or fnmatchcase(name, one) for one in patterns)


def _shared(distributed: Any, model: Any, world: Sequence[int], watch: int) -> Iterator[SharedTensor]:
    """Yield the tensors of a model that other ranks have, too; those without DDP and mesh are on all ranks in *world*."""
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    modules = list(model.named_modules())
    if any(type(module).__name__ == FSDP1 for _, module in modules):  # its flat parameters do not show who shares them
        return
    wrappers = [(f"{path}.module.".lstrip("."), module) for path, module in modules if type(module).__name__ == DDP]
    found: list[tuple[str, Any, bool, Any]] = [(name, one, False, ref(one)) for name, one in model.named_parameters()]
    for path, module in modules:
        if not hasattr(module, "running_mean"):  # statistics of this rank's own batches
            found += [
                (f"{path}.{name}".lstrip("."), one, True, partial(_buffer, ref(module), name))
                for name, one in module.named_buffers(recurse=False)
            ]
    for name, tensor, buffer, find in found:
        wrapper = next((one for path, one in wrappers if name.startswith(path)), None)
        ranks, shards = world, 1
        if wrapper is not None:
            # Buffers that DDP broadcasts before a forward differ after it, as each rank changes them.
            synchronized = buffer and getattr(wrapper, "forward_sync_buffers", wrapper.broadcast_buffers)
            ranks = () if synchronized else distributed.get_process_group_ranks(wrapper.process_group)
        elif hasattr(tensor, "device_mesh"):
            ranks, shards = _mesh_ranks(tensor)
        if len(ranks) > 1 and (most := PART_BYTES.get(tensor.device.type)):
            parts = max(1, -(-tensor.numel() * tensor.element_size() // (shards * most)))
            group = crc32(repr((watch, sorted(ranks), tuple(tensor.shape), str(tensor.dtype))).encode())
            yield SharedTensor(plain_name(name), parts, group, len(ranks), buffer, find)


def _buffer(module: Callable[[], Any], name: str) -> Any:
    return getattr(module(), name, None)


def _mesh_ranks(tensor: Any) -> tuple[Sequence[int], int]:
    """Return the ranks that have the same part of a DTensor, and the number of parts, the same on ranks with a smaller part."""
    mesh, places = tensor.device_mesh, tensor.placements
    here = mesh.get_coordinate()
    if here is None or any(place.is_partial() for place in places):
        return (), 1
    same = tuple(slice(None) if place.is_replicate() else here[dim] for dim, place in enumerate(places))
    sharded = prod(mesh.size(dim) for dim, place in enumerate(places) if not place.is_replicate())
    return mesh.mesh[same].flatten().tolist(), sharded
