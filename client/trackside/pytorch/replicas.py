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
from trackside.pytorch.overhead_budget import DeviceTimes, OverheadBudget
from trackside.pytorch.parameters import local_values, plain_name
from trackside.rows import Measured, MeasuredSender
from trackside.training_log import warn
from trackside.wire import TensorHash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trackside.row_queue import RowQueue

SHARE = 0.0005  # share of the time that the hashes may cost
MAX_STEPS_APART = 2**16  # so many that also for steps of a millisecond the share alone decides
NEVER = 2**63

ROW = 1024  # numbers of 8 bytes in a row of a part

# Bytes that are hashed at once: they take about as long as the calls of PyTorch that hash them.
PART_BYTES = {"cpu": 2**20, "cuda": 2**26}

# Every so many tours over the model, columns are summed and not rows, so that no two errors cancel each other out in all tours. It
# is odd, as the number of parts is made: the budget chooses powers of two, and of these steps all parts and all tours get some.
TOURS = 3

DDP, FSDP1 = "DistributedDataParallel", "FullyShardedDataParallel"


class SharedTensor(NamedTuple):
    """A tensor that several ranks have.

    Attributes:
        name: Its name without the parts that wrappers insert.
        find: Returns it; None if it is gone.
        parts: How many parts of it are hashed one by one.
        group: A number for the ranks that share it, its shape and the watched model.
        ranks: How many ranks these are.
        kind: As `TensorHash.kind`.
    """

    name: str
    find: Callable[[], Any]
    parts: int
    group: int
    ranks: int
    kind: str


class Replicas:
    """Hashes what other ranks have, too, until the run ends.

    Args:
        queue: Queue of the run.
        models: Modules. None is kept alive.
        everywhere: Also what neither DDP nor a DTensor says to be shared is the same on all ranks.
        excluded: Names and patterns of parameters and buffers that are left out.
        wait: As of `MeasuredSender`.

    Attributes:
        next_step: Number of finished steps at which `step_finished` must be called.
    """

    def __init__(
        self,
        queue: RowQueue,
        models: Sequence[Any],
        wait: Callable[[Callable[[], object]], object],
        *,
        everywhere: bool = False,
        excluded: Sequence[str] = (),
    ) -> None:
        import torch

        self._torch = torch
        self._queue = queue
        self._models = [ref(model) for model in models]
        self._everywhere, self._excluded = everywhere, tuple(excluded)
        self._watch = len(queue.timers)  # the same on all ranks, and another for each model that a run watches
        self._budget = OverheadBudget(SHARE, MAX_STEPS_APART)
        self._times = DeviceTimes(torch)
        self._sender = MeasuredSender(queue, torch, wait)
        self._weights: dict[Any, Any] = {}
        self._handle: Any = None
        self._since: tuple[int, float] | None = None
        self._tensors: list[SharedTensor] = []
        self.next_step = NEVER
        self._find()

    def _find(self) -> None:
        distributed = self._torch.distributed
        self._tensors = []
        try:
            if self._queue.is_open and distributed.is_available() and distributed.is_initialized():
                world = tuple(range(distributed.get_world_size() if self._everywhere else 0))
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
        self._times.poll()
        if not self._queue.is_open:
            self.stop()
            return
        # Before the step, and not after the last one: what keeps the ranks equal between the two has been done then, such as
        # the broadcasts of ZeroRedundancyOptimizer.
        is_due = self._budget.is_due(steps + 1)
        if is_due:
            self._handle = optimizer.register_step_pre_hook(lambda *_: self._before_step(steps + 1))
        self.next_step = steps + 1 if is_due or self._sender.flying else self._budget.next_due(steps) - 1

    def stop(self) -> None:
        """Hash nothing any more."""
        self._remove_hook()
        self._tensors, self.next_step = [], NEVER

    def _remove_hook(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _before_step(self, step: int) -> None:
        torch = self._torch
        if torch.compiler.is_compiling() or not self._tensors:
            return
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return
        name = ""
        try:
            place = step % (self._ends[-1] | 1)
            if place == self._ends[-1]:
                return
            number = next(number for number, end in enumerate(self._ends) if place < end)
            shared = self._tensors[number]
            name = f" at {shared.name}"
            tensor = shared.find()
            if tensor is None:  # replaced, by sharding for example
                self._find()
                return
            with torch.no_grad():
                self._hash(shared, tensor, place - (self._ends[number] - shared.parts), step)
        except Exception as error:  # noqa: BLE001  whatever of PyTorch's fails, training goes on
            self._tensors, self.next_step = [], NEVER
            warn(f"replicas are no longer compared{name}: {type(error).__name__}: {text_of(error)[:200]}")

    def _hash(self, shared: SharedTensor, tensor: Any, part: int, step: int) -> None:
        began = perf_counter()
        values = _flat(local_values(tensor))
        count = values.numel()
        values = values[count * part // shared.parts : count * (part + 1) // shared.parts]
        first = self._times.mark(self._budget, values)
        columns = step // (self._ends[-1] | 1) % TOURS == 0
        found = _Hash(shared, part, step, tensor_hash(self._torch, values, self._weights, columns=columns))
        self._sender.send([Measured("replicas", found)])
        self._times.add(self._budget, first, values, perf_counter() - began)


class _Hash:
    """A hash on its way to the sender thread."""

    def __init__(self, shared: SharedTensor, part: int, count: int, value: Any) -> None:
        self._shared, self._part, self._count, self._value = shared, part, count, value

    def tensors(self) -> list[Any]:
        """Return the hash."""
        return [self._value]

    def frame(self, _: str, time: int, tensors: Sequence[Any]) -> TensorHash:
        """Return the message."""
        shared, value = self._shared, int(tensors[0])
        place = shared.name, self._part, shared.parts, self._count
        return TensorHash(*place, shared.group, shared.ranks, value, time, shared.kind)


def tensor_hash(torch: Any, values: Any, weights: dict[Any, Any], *, columns: bool) -> Any:
    """Return a hash of the bits of a contiguous tensor of one dimension, as an int64 on its device.

    Sums of the bits as 64-bit numbers, along rows or columns, are mixed with their positions. They are exact in any order, take as
    long as a norm, and need no memory. A single error always shows; of several only those can cancel out that are in one row
    or column. `torch.hash_tensor` is slower, and an exclusive-or does not know positions.

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
    parts = [] if rows else [numbers]
    if rows:
        parts.append(numbers[: rows * ROW].view(rows, ROW).sum(0 if columns else 1))
        parts += [numbers[rows * ROW :]] if wide % ROW else []
    parts += [raw[wide * 8 :].long()] if raw.numel() % 8 else []
    mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
    odd = weights.get(values.device)
    if odd is None or len(odd) < len(mixed):
        odd = weights[values.device] = torch.arange(1, 2 * len(mixed), 2, device=values.device)
    return ((mixed ^ (mixed >> 32)) * odd[: len(mixed)]).sum()


def _flat(values: Any) -> Any:
    """Return a tensor with one dimension, in the order of its memory."""
    if not values.is_contiguous():
        values = values.permute(*sorted(range(values.dim()), key=lambda dim: -values.stride(dim)))
    return values.reshape(-1)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") or fnmatchcase(name, one) for one in patterns)


def _shared(distributed: Any, model: Any, world: Sequence[int], watch: int) -> Iterator[SharedTensor]:
    """Yield the tensors of a model that other ranks have, too; those without DDP and mesh are on all ranks in *world*."""
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    modules = list(model.named_modules())
    if any(type(module).__name__ == FSDP1 for _, module in modules):  # its flat parameters do not show who shares them
        return
    wrappers = [(f"{path}.module.".lstrip("."), module) for path, module in modules if type(module).__name__ == DDP]
    found: list[tuple[str, Any, Any, str]] = [(name, one, ref(one), "") for name, one in model.named_parameters()]
    for path, module in modules:
        if not hasattr(module, "running_mean"):  # statistics of this rank's own batches
            found += [
                (f"{path}.{name}".lstrip("."), one, partial(_buffer, ref(module), name), "buffer")
                for name, one in module.named_buffers(recurse=False)
            ]
    for name, tensor, find, kind in found:
        path, wrapper = next(((path, one) for path, one in wrappers if name.startswith(path)), ("", None))
        ranks, which = world, kind
        if wrapper is not None:
            # Buffers that DDP broadcasts before a forward differ after it, as each rank changes them.
            if kind == "buffer" and getattr(wrapper, "forward_sync_buffers", wrapper.broadcast_buffers):
                continue
            ranks = distributed.get_process_group_ranks(wrapper.process_group)
            which = "ignored" if name.removeprefix(path) in wrapper.parameters_to_ignore else kind
        elif hasattr(tensor, "device_mesh"):
            ranks = _ranks_of_shard(tensor)
        bytes_here = tensor.numel() * tensor.element_size() // _shards(tensor)
        if len(ranks) > 1 and tensor.device.type in PART_BYTES:
            parts = max(1, -(-bytes_here // PART_BYTES[tensor.device.type]))
            group = crc32(repr((watch, sorted(ranks), tuple(tensor.shape), str(tensor.dtype))).encode())
            yield SharedTensor(plain_name(name), find, parts, group, len(ranks), which)


def _buffer(module: Callable[[], Any], name: str) -> Any:
    return getattr(module(), name, None)


def _shards(tensor: Any) -> int:
    """Return over how many ranks a tensor is sharded: of all ranks the same number, also if their parts differ in size."""
    mesh = getattr(tensor, "device_mesh", None)
    if mesh is None:
        return 1
    return prod(mesh.size(dim) for dim, place in enumerate(tensor.placements) if not place.is_replicate())


def _ranks_of_shard(tensor: Any) -> list[int]:
    """Return the ranks that have the same part of a DTensor: those with this rank's place along its sharded dimensions."""
    here = tensor.device_mesh.get_coordinate()
    if here is None or any(place.is_partial() for place in tensor.placements):
        return []
    same = tuple(slice(None) if place.is_replicate() else here[dim] for dim, place in enumerate(tensor.placements))
    ranks: list[int] = tensor.device_mesh.mesh[same].flatten().tolist()
    return ranks
