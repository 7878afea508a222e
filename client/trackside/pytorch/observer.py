"""Measure the distributions of a watched model's weights, gradients, activations and attention, at paced steps."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import partial
from threading import get_ident
from time import monotonic_ns, perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside.numbers import is_on_device
from trackside.packing import text_of
from trackside.pytorch.histograms import Histograms
from trackside.pytorch.hooks import ModuleHook, remove_all
from trackside.pytorch.overhead_budget import OverheadBudget
from trackside.pytorch.parameters import LAYERS, local_gradient, local_values, plain_name
from trackside.rows import Measured
from trackside.training_log import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trackside.pytorch.attention import AttentionWatch, Heads
    from trackside.pytorch.parameters import Parameters
    from trackside.row_queue import RowQueue

    Named = Sequence[tuple[str, Any]]

SIDE = 64  # rows and columns that are sampled of a matrix, evenly spaced: some 32 directions at most show in them
SHARE = 0.0015  # share of the time that the distributions of weights and gradients may cost
FORWARD_SHARE = 0.001  # share of those of activations and attention

# Steps from one measurement to the next at most: so many that also for steps of a millisecond the shares alone decide.
MAX_STEPS_APART = 2**16

# The first steps show most mistakes, so some of them are measured whatever that costs: it is little of a whole training.
EARLY, EARLY_EVERY = 256, 32

BURST_EVERY = 4  # steps from one measurement to the next while a daemon has requested them


class Choice(NamedTuple):
    """The choice of what is measured."""

    weights: bool = True  # the weights, and how the optimizer moves them
    gradients: bool = True
    activations: tuple[str, ...] = ()  # names and patterns of modules whose outputs are measured
    attention: tuple[str, ...] = ()  # names and patterns of modules whose attention is measured
    every: int = 0  # steps from one measurement to the next; 0 for as many as the budget gives


def choice(
    *,
    weights: bool = True,
    gradients: bool = True,
    activations: str | Sequence[str] = (),
    attention: str | Sequence[str] = (),
    every: int | str = "auto",
) -> Choice:
    """Return the arguments of `Run.observe` as a `Choice`.

    Raises:
        ValueError: *every* is neither ``auto`` nor a positive number.
    """
    if every != "auto" and not (isinstance(every, int) and every > 0):
        raise ValueError(f"every is {every!r}, which is neither 'auto' nor a positive number of steps")
    outputs, heads = [(one,) if isinstance(one, str) else tuple(one) for one in (activations, attention)]
    return Choice(bool(weights), bool(gradients), outputs, heads, every if isinstance(every, int) else 0)


class Observer:
    """Measures distributions for a `Watcher`, which calls this at its steps.

    Args:
        queue: Queue of the run.
        parameters: Parameters of the model.
        model: The model. It is not kept alive.
        wanted: What is measured.

    Attributes:
        budget: Chooses the steps.
    """

    def __init__(self, queue: RowQueue, parameters: Parameters, model: Any, wanted: Choice) -> None:
        import torch

        self._torch = torch
        self._queue = queue
        self._parameters = parameters
        self._wanted = wanted
        share = SHARE * (wanted.weights or wanted.gradients) + FORWARD_SHARE * bool(
            wanted.activations + wanted.attention
        )
        self.budget = OverheadBudget(share, MAX_STEPS_APART)
        self._seconds = 0.0
        self._until = 0
        self._places: tuple[tuple[str, ...], list[str], list[int]] = (), [], []
        self._before: tuple[list[str], UpdateSample] | None = None
        self._ready: list[Measured] = []
        self._sender = MeasuredSender(queue, torch, queue.after_push)
        self._handles: list[Any] = []
        self._modes: list[AttentionWatch] = []
        self._activations: Histograms | None = None
        self._heads: Heads | None = None
        self._graph_task: Callable[[], int] = getattr(getattr(torch, "_C", None), "_current_graph_task_id", lambda: -1)
        self._passes = 0
        self._outputs = _modules(model, wanted.activations, "activations")
        self._attentions = _modules(model, wanted.attention, "attention")

    def is_due(self, step: int) -> bool:
        """Return whether step number *step* is measured."""
        return self.next_due(step - 1) == step

    def next_due(self, step: int) -> int:
        """Return the next step after *step* that is measured."""
        usual = self._wanted.every or self.budget.every
        early = 0 if self._wanted.every else EARLY
        due = [(step // every + 1) * every for every in (usual, EARLY_EVERY, BURST_EVERY)]
        return min([due[0], *(one for one, until in zip(due[1:], (early, self._until), strict=True) if one <= until)])

    def burst(self, step: int, steps: int) -> None:
        """Measure more often during the *steps* steps after *step*."""
        self._until = step + steps

    def prepare(self) -> None:
        """Add hooks to the chosen modules, for the forward passes of the step that begins."""
        if self._handles or self._parameters.is_gone:
            return
        self._activations = self._heads = None
        for place, (_, module) in enumerate(self._outputs):
            hook = ModuleHook(lambda _, __, output, place=place: self._output(place, output), self._fail)
            self._handles.append(module.register_forward_hook(hook))
        for name, module in self._attentions:
            enter = ModuleHook(lambda module, _, name=name: self._enter(name, module), self._fail)
            self._handles.append(module.register_forward_pre_hook(enter))
            leave = ModuleHook(lambda *_: self._leave(), self._fail)
            self._handles.append(module.register_forward_hook(leave, always_call=True))

    def measure_gradients(self, trained: Named, skips: Any) -> None:
        """Measure the gradients; *skips* is nonzero if a gradient scaler skips the step."""
        if self._wanted.gradients:
            named = [(name, local_gradient(name, one)) for name, one in trained if one.grad is not None]
            self._histogram("gradients", named, skips if is_on_device(skips) else None)

    def measure_before(self, moving: Named) -> None:
        """Sample the weights before the step."""
        if self._wanted.weights and moving:
            began = perf_counter()
            self._before = [name for name, _ in moving], UpdateSample([one for _, one in moving])
            self._seconds += perf_counter() - began

    def measure_after(self, trained: Named) -> None:
        """Measure the weights after the step, and how far it has moved them."""
        before, self._before = self._before, None
        if self._wanted.weights:
            named = [(name, local_values(one)) for name, one in trained]
            self._histogram("weights", named, None, before)

    def finish(self) -> None:
        """Send what was measured, with the step of the next push."""
        began = perf_counter()
        self._remove_hooks()
        for kind, source in (("activations", self._activations), ("attention", self._heads)):
            if source:
                self._ready.append(Measured(kind, source))
        if (self._outputs or self._attentions) and not (self._activations or self._heads):
            self._passes += 1
            if self._passes == 3:
                warn(
                    "observe: no chosen module has run, or has attention that PyTorch computes; compiled code cannot be observed"
                )
        self._activations = self._heads = None
        self._sender.send(self._ready)
        self._ready = []
        self._seconds += perf_counter() - began
        self.budget.add_cost(self._seconds)

    def spent(self) -> float:
        """Return the seconds that the measurements since the last call took on the host."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def wakes(self, step: int) -> int:
        """Return the number of finished steps at which there is something to do, after step number *step*."""
        return step + 1 if self._sender.flying else self.next_due(step) - 1

    def poll(self) -> None:
        """Pass on what has arrived from a device."""
        self._sender.poll()

    def stop(self) -> None:
        """Remove the hooks on modules."""
        self._remove_hooks()

    def _remove_hooks(self) -> None:
        remove_all(self._handles)
        while self._modes:  # of a forward pass that Ctrl-C has cut short
            self._modes.pop().__exit__(None, None, None)

    def _histogram(
        self, kind: str, named: Named, skips: Any, before: tuple[list[str], UpdateSample] | None = None
    ) -> None:
        if not named or len({one.device for _, one in named}) > 1:
            return
        began = perf_counter()
        names = [name for name, _ in named]
        layers, places = self._layers_of(names)
        histograms = Histograms(layers, named[0][1].device)
        histograms.add((place, tensor) for place, (_, tensor) in zip(places, named, strict=True))
        if before is not None:
            tensors = dict(named)
            if before[0] and tensors.keys() >= set(before[0]):
                order, moved, ranks = before[1].compare([tensors[name] for name in before[0]])
                own = dict(zip(names, places, strict=True))
                histograms.updates = [own[before[0][place]] for place in order], moved, ranks
        self._ready.append(Measured(kind, histograms, skips))
        self._seconds += perf_counter() - began

    def _layers_of(self, names: Sequence[str]) -> tuple[list[str], list[int]]:
        """Return the layers of some parameters, and the place of each parameter's layer among them."""
        if self._places[0] != tuple(names):
            owner = {name: layer for layer, own in self._parameters.layers(None) for name in own}
            layers = list(dict.fromkeys(owner.get(name, name) for name in names))
            self._places = tuple(names), layers, [layers.index(owner.get(name, name)) for name in names]
        return self._places[1], self._places[2]

    def _counts(self) -> bool:
        # Not a pass for evaluation, one that activation checkpointing repeats, or one of another thread.
        own_thread = get_ident() == self._queue.thread
        return own_thread and self._torch.is_grad_enabled() and self._graph_task() < 0

    def _output(self, place: int, output: Any) -> None:
        while isinstance(output, (tuple, list)) and output:
            output = output[0]
        if not isinstance(output, self._torch.Tensor) or not self._counts():
            return
        began = perf_counter()
        with self._torch.no_grad():
            tensor = local_values(output)
            if self._activations is None:
                self._activations = Histograms([name for name, _ in self._outputs], tensor.device, saturation=True)
            if self._activations.counts.device == tensor.device:
                self._activations.add([(place, tensor)])
        self._seconds += perf_counter() - began

    def _enter(self, name: str, module: Any) -> None:
        if not self._counts():
            return
        from trackside.pytorch.attention import AttentionWatch, Heads

        heads = self._heads = Heads() if self._heads is None else self._heads
        number = getattr(module, "num_heads", 0)
        mode = AttentionWatch(lambda *found: heads.add(name, *found), number if isinstance(number, int) else 0)
        mode.__enter__()
        self._modes.append(mode)

    def _leave(self) -> None:
        if self._modes and self._counts():
            mode = self._modes.pop()
            mode.__exit__(None, None, None)
            self._seconds += mode.seconds

    def _fail(self, error: Exception) -> None:
        self._queue.warn_once(Observer, f"observing a model: {type(error).__name__}: {text_of(error)[:200]}")


class MeasuredSender:
    """Sends what is measured: to learn its step by *wait*, which is `RowQueue.after_push`, and again once it is on the host."""

    def __init__(self, queue: RowQueue, torch: Any, wait: Callable[[Callable[[], object]], object]) -> None:
        self.flying: list[Measured] = []
        self._queue, self._torch, self._wait = queue, torch, wait
        self._pinned: dict[tuple[str, int], Any] = {}

    def send(self, every: Iterable[Measured]) -> None:
        """Send measurements, except of a kind that is on its way from a device."""
        busy = {measured.kind for measured in self.flying}
        for measured in every:
            if measured.kind not in busy:
                if measured.leave(self._torch, self._pinned):
                    self.flying.append(measured)
                self._wait(partial(self._append, measured))

    def poll(self) -> None:
        """Pass on what has arrived from a device."""
        while self.flying and self.flying[0].has_arrived(self._pinned):
            self._append(self.flying.pop(0))

    def _append(self, measured: Measured) -> None:
        self._queue.append(monotonic_ns(), measured)


def _modules(model: Any, patterns: Sequence[str], what: str) -> list[tuple[str, Any]]:
    """Return the modules with these names or patterns, without those in compiled code, where hooks do not run."""
    if not patterns:
        return []
    every = [(plain_name(name), module) for name, module in model.named_modules() if name]
    found = [one for one in every if any(fnmatchcase(one[0], pattern) for pattern in patterns)]
    matched = {id(module) for _, module in found}
    seen = [one for one in uncompiled_modules(model) if id(one[1]) in matched]
    wanted = ", ".join(patterns)
    if not found:
        some = ", ".join(plain for plain, _ in every[:8])
        warn(
            f"observe: {what}: no module of {type(model).__name__} matches {wanted}; it has {some}{', …' * (len(every) > 8)}"
        )
    elif len(seen) < len(found):
        warn(f"observe: {what}: {len(found) - len(seen)} of the modules {wanted} are compiled, and cannot be observed")
    return seen[:LAYERS]


def uncompiled_modules(model: Any) -> list[tuple[str, Any]]:
    """Return name and module of the model and of those in it, without those in compiled code, where hooks do not run."""
    compiled = [_below(name) for name, module in model.named_modules() if _is_compiled(module)]
    return [
        (plain_name(name), module)
        for name, module in model.named_modules()
        if not any(f"{name}.".startswith(one) for one in compiled)
    ]


def _below(name: str) -> str:
    return f"{name}." if name else ""


def _is_compiled(module: Any) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


class UpdateSample:
    """Samples of parameters before a step.

    Args:
        parameters: This rank's parts of the parameters, on one device.
    """

    def __init__(self, parameters: Sequence[Any]) -> None:
        self._sizes = [one.numel() for one in parameters]
        self._groups: dict[tuple[int, int], list[int]] = {}
        views = [_sample(one) for one in parameters]
        for place, view in enumerate(views):
            self._groups.setdefault(tuple(view.shape), []).append(place)
        self._before = {shape: self._stacked(views, places) for shape, places in self._groups.items()}

    def compare(self, parameters: Sequence[Any]) -> tuple[list[int], Any, Any]:
        """Return the places of the parameters, the squared norm of the change of each, and its effective rank, as tensors.

        The effective rank is the participation ratio of the singular values' squares: 1 if the change has one direction, n
        if it has n of equal size.
        """
        import torch

        views = [_sample(one) for one in parameters]
        moved, ranks, order = [], [], []
        for shape, places in self._groups.items():
            change = self._stacked(views, places) - self._before[shape]
            squares = change.square().sum((1, 2))
            gram = change @ change.transpose(1, 2)
            ranks.append(squares.square() / gram.square().sum((1, 2)))
            scales = [self._sizes[place] / (shape[0] * shape[1]) for place in places]
            moved.append(torch._foreach_mul(list(squares.unbind()), scales))  # noqa: SLF001
            order += places
        return order, torch.stack([one for group in moved for one in group]), torch.cat(ranks)

    def _stacked(self, views: Sequence[Any], places: Sequence[int]) -> Any:
        import torch

        return torch.stack([views[place] for place in places]).float()


def _sample(tensor: Any) -> Any:
    """Return a view of at most `SIDE` times `SIDE` elements."""
    matrix = tensor.reshape(tensor.shape[0], -1) if tensor.dim() > 1 else tensor.reshape(1, -1)
    return matrix[:: -(-matrix.shape[0] // SIDE) or 1, :: -(-matrix.shape[1] // SIDE) or 1]
