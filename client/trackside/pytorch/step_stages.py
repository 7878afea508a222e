"""The stages of a training step, found by hooks of PyTorch's: forward, backward, optimizer. On the host and on a GPU.

- *Forward* is a call of the watched module itself while gradients are recorded. Hooks of inner modules would break
  compiled graphs; those of the outermost run outside of what ``torch.compile(model)`` compiles.
- *Backward* begins when the gradient reaches what such a call has returned, by a hook of the graph's node there, and ends
  as the last thing that autograd's engine does (as DDP and FSDP end theirs), after what others have it do at the end.
  ``Tensor.backward`` is not patched. The part of a loss that is computed outside of the model lies before it.
- *Optimizer* is ``optimizer.step``, from a hook of its own until whoever has made this tells of its end.

A stage that something has raised from ends when the next one begins, or at the next push. Nothing here raises into the
training, waits, or starts a collective; and nothing is done while a graph is compiled.

A mark costs about 20 µs where the training has the caches (bench/stages.py). Of steps that are so short that this would be
felt only some are timed, by chance, so that no rhythm of the training's own is met; those between are taken to be alike.
"""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from functools import wraps
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from trackside.pytorch.autograd import nodes
from trackside.pytorch.cuda_timer import CudaDevices, CudaTimer
from trackside.pytorch.memory import GpuMemory
from trackside.pytorch.step_sampling import StepSampler
from trackside.totals.phases import TIMED, Mark
from trackside.wire import Device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside.run import Run

STAGES = ("forward", "backward", "optimizer")
_ENTER = {stage: Mark(enters=True, phase=stage, found=True) for stage in STAGES}
_LEAVE = {stage: Mark(enters=False, phase=stage, found=True) for stage in STAGES}

_TIMED = Mark(enters=True, phase=TIMED, found=True)
_UNTIMED = Mark(enters=False, phase=TIMED, found=True)

SHARE = 0.001
"""So much of the time marks may take; each step is timed where one takes 0.2 s."""

MARK_SECONDS = 25e-6
"""What a mark takes."""

LOOK_NANOSECONDS = 10**9
"""The memory of GPUs is looked at so often at most."""

WRAPPERS = 8
"""So many wrappers an optimizer has at most."""


class StepStages:
    """Times a model for a run, until that ends. The same run has only its latest on one model.

    It holds neither the model nor the optimizer; they hold it, by the hooks. All steps are timed unless `step` is called.

    Args:
        run: Is told of the stages, those of the thread that has opened it.
        model: The module that the training calls: what ``torch.compile`` or DDP has returned, if it calls that.
        optimizer: A ``torch.optim.Optimizer``; None to time none.
        gpus: What GPUs are asked through.

    Attributes:
        stopped: It times nothing any more, since it was told so or another watches the model.
        is_timing: The step that is under way is timed.
        next: When so many steps are over, `step` is to be called.
    """

    def __init__(self, run: Run, model: Any, optimizer: Any = None, gpus: CudaDevices | None = None) -> None:
        import torch

        self._run, self._thread, self._append = run, run._thread, run._append  # noqa: SLF001  one of its parts
        self._gpus = CudaDevices() if gpus is None else gpus
        self._spans, self._memories = CudaTimer(self._gpus), GpuMemory(self._gpus)
        self._records = torch.is_grad_enabled
        self._task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)  # noqa: SLF001
        self._queue = torch.autograd.Variable._execution_engine.queue_callback  # noqa: SLF001  DDP has no other either
        self._open: dict[str, Any] = {}
        """The stages that are under way, and by which event each began."""
        self._calls: list[bool] = []
        """Of each call of the model that is under way: has the stage begun with it?"""
        self._device: Any = None
        self._uses, self._has_peers = self._gpus.used(), _has_peers()
        self._backward, self._look_at = -1, 0
        self.stopped = False
        self._lots = StepSampler(SHARE, MARK_SECONDS)
        self.is_timing, self._is_called, self._timed = True, False, 0
        self.next = 0
        self._model = weakref.ref(model)
        self._optimizers: list[weakref.ref[Any]] = []
        self._of_model: list[Any] = []
        """Handles of its hooks, and of those of optimizers."""
        self._of_optimizers: list[Any] = []
        self._at_gradient = self._hook(self._backward_begins)
        self._at_end, self._at_last = self._hook(self._backward_ends), self._hook(self._backward_ended)
        self._watch(model)
        if optimizer is not None:
            self.follow(optimizer)

    @property
    def in_backward(self) -> bool:
        """Whether autograd is at work in this thread."""
        return self._task() >= 0

    @property
    def is_alive(self) -> bool:
        """It has a model to time."""
        return not self.stopped and self._model() is not None

    @property
    def polls(self) -> bool:
        """Whether there is something to hand over at pushes."""
        return not self.stopped and (self.is_timing or self._uses)

    def follow(self, optimizer: Any) -> None:
        """Time an optimizer's steps, also of one that Accelerate has wrapped; but not of one that takes no hooks."""
        self._optimizers.append(weakref.ref(unwrapped(optimizer)))
        if self.is_timing:
            self._hook_optimizer(self._optimizers[-1])

    def optimizer_is_over(self) -> None:
        """It has stepped. No hook of ours tells that: none may be put on or taken off while PyTorch goes through them."""
        try:
            if get_ident() == self._thread:
                self._end("optimizer")
        except Exception as error:  # noqa: BLE001  a device that has failed raises anything, and training must go on
            self._fail(error)

    def follow_others(self) -> None:
        """Let what other hooks do before an optimizer's step be no part of it; not to be called before one."""
        if self.is_timing and not self.stopped:
            _remove(self._of_optimizers)
            for one in self._optimizers:
                self._hook_optimizer(one)

    def accompany(self) -> bool:
        """Another model of the run is watched too: time each step from now on, if this one is still there."""
        if self.stopped or self._model() is None:
            self.stop()
            return False
        if not self.is_timing:
            self._turn(on=True)
        return True

    def step(self, number: int) -> None:
        """So many steps of the optimizer's are over, by the training's own count; each is timed until this is called."""
        if self.stopped or self._run._sender is None or get_ident() != self._thread:  # noqa: SLF001
            return
        self._timed += self.is_timing
        if sum(one.is_alive for one in self._run._stages) > 1:  # noqa: SLF001  what is shared out is the run's time, not one model's
            self._lots.timed(number)
        else:
            self._lots.over(number)
        self.next, self._spans.times = self._lots.next, self._lots.stands_for
        if self._lots.drawn != self.is_timing:
            self._turn(on=self._lots.drawn, left_out=self.next - number)
        self._is_called = False

    def poll(self) -> None:
        """Hand over what GPUs have done, and once a second how full they are; called at pushes, by whoever pushes."""
        if get_ident() != self._thread:
            return
        if self._open and self._task() < 0:
            self._drop("backward", "optimizer")
        now = monotonic_ns()
        if self._spans.under_way or now >= self._look_at:
            self._tell(now)

    def close(self) -> None:
        """Hand over what there is to say when the run ends; its hooks do nothing from then on."""
        self._look_at = 0
        self.poll()

    def stop(self) -> None:
        """Time nothing more: the hooks are taken away."""
        if not self.is_timing and not self.stopped and self._run._sender is not None:  # noqa: SLF001
            self._append(monotonic_ns(), _TIMED)
        self.stopped = True
        _remove(self._of_model)
        _remove(self._of_optimizers)

    def give_way(self, run: Run) -> None:
        """A *run* watches the same model: stop, if it is the same run or one after the end of this."""
        if self._run is run or self._run._sender is None:  # noqa: SLF001
            self.stop()

    def _tell(self, now: int) -> None:
        """Hand over what there is to say, at a push or where there are no more events."""
        try:
            if now >= self._look_at:
                self._uses, self._has_peers = self._gpus.used(), _has_peers()
            if not self._uses:
                self._look_at = now + LOOK_NANOSECONDS
                return
            if self._gpus.forbids():
                return
            done = Device(phases=self._spans.collect())
            if now >= self._look_at:
                self._look_at = now + LOOK_NANOSECONDS
                done.memory = self._memories.look()
            if done.phases or done.memory:
                self._append(now, done)
        except Exception as error:  # noqa: BLE001  a device that has failed raises anything, and training must go on
            self._fail(error)

    def _watch(self, model: Any) -> None:
        if (before := _watching.get(model)) is not None:
            before.give_way(self._run)
        _watching[model] = self
        self._hook_model(model)
        compiled = getattr(model, "_compiled_call_impl", None)  # by `model.compile()`, which takes the hooks in
        if compiled is not None:
            model._compiled_call_impl = self._around(compiled)  # noqa: SLF001

    def _hook(self, work: Callable[..., None]) -> _Hook:
        return _Hook(work, self._fail)

    def _hook_model(self, model: Any) -> None:
        self._of_model += [
            model.register_forward_pre_hook(self._hook(self._forward_begins), prepend=True),
            model.register_forward_hook(self._hook(self._forward_ends), always_call=True),
        ]

    def _hook_optimizer(self, living: weakref.ref[Any]) -> None:
        optimizer: Any = living()
        if hasattr(optimizer, "register_step_pre_hook"):
            self._of_optimizers.append(optimizer.register_step_pre_hook(self._hook(self._optimizer_begins)))

    def _turn(self, *, on: bool, left_out: int = 0) -> None:
        """Put the hooks on or take them off; those of a model that only a graph calls stay, or there would be another graph."""
        self._drop(*self._open)
        self._calls.clear()
        self._append(monotonic_ns(), _TIMED if on else _UNTIMED._replace(timed=self._timed, left_out=left_out))
        self.is_timing, self._timed = on, 0
        model = self._model()
        if not on:
            _remove(self._of_optimizers)
            if self._is_called:
                _remove(self._of_model)
        else:
            if model is not None and not self._of_model:
                self._hook_model(model)
            for one in self._optimizers:
                self._hook_optimizer(one)
        self._run._poll_all()  # noqa: SLF001  its own

    def _around(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """The call of a module that was compiled in place, which runs the hooks around it."""
        compiled = getattr(compiled, "_around", compiled)
        begins, ends = self._hook(self._forward_begins), self._hook(self._forward_ends)

        @wraps(compiled)
        def called(*args: Any, **named: Any) -> Any:
            output = None
            begins(None, args)
            try:
                output = compiled(*args, **named)
            finally:
                ends(None, args, output)
            return output

        called._around = compiled  # type: ignore[attr-defined]  # noqa: SLF001  for a later watch
        return called

    def _begin(self, stage: str) -> None:
        self._drop(stage)
        self._lots.marks += 2
        self._append(monotonic_ns(), _ENTER[stage])
        self._open[stage] = None
        if self._device is not None:
            self._open[stage] = self._spans.begin(self._device)

    def _end(self, stage: str) -> None:
        if stage not in self._open:
            return
        self._append(monotonic_ns(), _LEAVE[stage])
        began = self._open.pop(stage)
        if began is not None:
            self._spans.end(stage, began, self._device)

    def _drop(self, *stages: str) -> None:
        """End those that something has raised from, and for which the GPU's time would be that of more."""
        for stage in stages:
            if stage in self._open:
                self._append(monotonic_ns(), _LEAVE[stage])
                self._spans.drop(self._open.pop(stage))

    def _is_mine(self) -> bool:
        is_open = self.is_timing and not self.stopped and self._run._sender is not None  # noqa: SLF001
        return is_open and get_ident() == self._thread

    def _forward_begins(self, model: Any, _: object) -> None:
        if not self._is_mine():
            return
        begins = self._records() and "forward" not in self._open and self._task() < 0  # in a backward it is done again
        self._calls.append(begins)
        if begins:
            self._is_called = True
            self._drop("backward")
            if self._spans.is_full:
                self._tell(monotonic_ns())
            if self._uses and self._device is None and model is not None:
                self._find_device(model.parameters())
            self._begin("forward")

    def _forward_ends(self, _model: object, _args: object, output: Any) -> None:
        if get_ident() != self._thread or not self._calls or not self._calls.pop():
            return
        self._end("forward")
        node = getattr(output, "grad_fn", None)
        for one in nodes(output) if node is None else (node,):
            one.register_prehook(self._at_gradient)

    def _backward_begins(self, _: object) -> None:
        """In a thread of the engine's, while that which has called `backward` waits."""
        task = self._task()
        ceased = self.stopped or not self.is_timing or self._run._sender is None  # noqa: SLF001
        if ceased or ("backward" in self._open and task == self._backward):
            return
        self._drop("backward")
        self._backward = task
        self._begin("backward")
        self._queue(self._at_end if self._has_peers else self._at_last)

    def _backward_ends(self) -> None:
        """What others have it do at the end, as DDP waits for its peers there, is done before what is asked for now."""
        self._queue(self._at_last)

    def _backward_ended(self) -> None:
        self._end("backward")

    def _optimizer_begins(self, optimizer: Any, *_: object) -> None:
        if not self._is_mine():
            return
        self._calls.clear()  # of calls that Ctrl-C has cut short
        if self._task() < 0:  # else it steps within a backward
            self._drop(*STAGES)
        if self._uses and self._device is None:
            self._find_device(one for group in optimizer.param_groups for one in group["params"])
        self._begin("optimizer")

    def _find_device(self, parameters: Iterator[Any]) -> None:
        """Remember the GPU of the first parameter; a model may come there after it began to be watched."""
        first = next(iter(parameters), None)
        if first is not None and self._gpus.has(first.device):
            self._device = first.device

    def _fail(self, error: Exception) -> None:
        self._run._warn(StepStages, f"watching a model: {type(error).__name__}: {error}")  # noqa: SLF001


class _Hook:
    """One hook; a copy of a model or its pickle has none in its place, but what does nothing and knows nothing of us."""

    def __init__(self, work: Callable[..., None], fail: Callable[[Exception], None]) -> None:
        import torch

        self._work, self._fail, self._is_compiling = work, fail, torch.compiler.is_compiling

    def __call__(self, *given: Any) -> None:
        if self._is_compiling():
            return
        try:
            self._work(*given)
        except Exception as error:  # noqa: BLE001  whatever of PyTorch's has failed, training must go on
            self._fail(error)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


def unwrapped(optimizer: Any) -> Any:
    """What is in it, if it is none of PyTorch's, as what Accelerate and Lightning have around one."""
    for _ in range(WRAPPERS):  # what answers to any name has one in it without end
        inner = getattr(optimizer, "optimizer", None)
        if inner is None or inner is optimizer:
            break
        optimizer = inner
    return optimizer


def _remove(handles: list[Any]) -> None:
    while handles:
        handles.pop().remove()


def _has_peers() -> bool:
    """Whether this process has joined others, and DDP may have it wait for them at the end of a backward."""
    import torch

    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


_watching: weakref.WeakKeyDictionary[Any, StepStages] = weakref.WeakKeyDictionary()
