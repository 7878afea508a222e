"""Time the stages of a training step with PyTorch's hooks: forward, backward, optimizer. On the host and on a GPU.

- *Forward* is a call of the watched module itself while gradients are recorded. Hooks of inner modules would break
  compiled graphs; hooks of the outermost module run outside of what ``torch.compile(model)`` compiles.
- *Backward* begins when the gradient reaches the output of such a call, by a hook of the autograd node there. It ends with
  the last callback of autograd's engine, after the callbacks of DDP and FSDP. ``Tensor.backward`` is not patched. The part
  of a loss that is computed outside of the model lies before it.
- *Sync* is the end of a backward in a process group: the rank's own gradients are computed, and DDP or FSDP waits for those
  of the others. Its time is no part of backward.
- *Optimizer* is ``optimizer.step``, from a pre-hook until the caller reports that the step is over.
- *Prepare* is from the arrival of a batch, which a caller reports, to the call of the model: copies to the device, and what else
  the training does with the batch. No method of tensors is patched for it.

A stage that raised ends when the next one begins, or at the next push. Nothing here raises into the training, waits, or
starts a collective, and nothing runs while a graph is compiled.

Of short steps only a random sample is timed; the steps between count as alike.
"""

from __future__ import annotations

import weakref
from functools import wraps
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from trackside.packing import text_of
from trackside.pytorch.cuda_timer import EVENTS, CudaDevices, CudaTimer
from trackside.pytorch.hooks import ModuleHook, gradient_nodes, remove_all, unwrapped
from trackside.pytorch.memory import GpuMemory
from trackside.pytorch.overhead_budget import StepSampler
from trackside.totals.phases import SYNC, TIMED, PhaseMark
from trackside.wire import Device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside.row_queue import RowQueue

PREPARE = "prepare"  # from a batch's arrival to the call of the model
STAGES = ("forward", SYNC, "backward", "optimizer", PREPARE)  # what is nested comes before
_ENTER = {stage: PhaseMark(enters=True, phase=stage, automatic=True) for stage in STAGES}
_LEAVE = {stage: PhaseMark(enters=False, phase=stage, automatic=True) for stage in STAGES}

_TIMED = PhaseMark(enters=True, phase=TIMED, automatic=True)
_UNTIMED = PhaseMark(enters=False, phase=TIMED, automatic=True)

# Share of the time that the timing of steps may cost: every step is timed from about 0.5 s a step on.
TIMING_SHARE = 0.0005

# Attribute of a module in which `model.compile()` keeps the compiled call. PyTorch has no public name for it.
COMPILED_CALL = "_compiled_call_impl"


class StepStages:
    """Times one model for a run, until the run ends. A run has only the latest of these on one model.

    The model and the optimizer hold this by their hooks, and this holds neither of them. All steps are timed until
    `step_finished` is called for the first time.

    Args:
        queue: Queue of the run. Only stages in the thread that opened the run count.
        model: Module that the training calls: the result of ``torch.compile`` or DDP, if the training calls that. None for
            those that `add_model` gets.
        optimizer: A ``torch.optim.Optimizer``; None to time none.
        gpus: Access to CUDA.
        events: See `EVENTS`.
        memory_every: Least nanoseconds between two readings of GPU memory.

    Attributes:
        stopped: Nothing is timed any longer.
        is_timing: The current step is timed.
        next_step: Number of finished steps at which `step_finished` must be called.
    """

    def __init__(
        self,
        queue: RowQueue,
        model: Any = None,
        optimizer: Any = None,
        gpus: CudaDevices | None = None,
        *,
        events: int = EVENTS,
        memory_every: int = 10**9,
    ) -> None:
        import torch

        self._queue = queue
        self._thread = queue.thread
        self._append = queue.append
        self._gpus = CudaDevices() if gpus is None else gpus
        self._timer = CudaTimer(self._gpus, events)
        self._memory = GpuMemory(self._gpus)
        self._memory_every = memory_every
        self._grad_enabled = torch.is_grad_enabled
        # Private, and the only way to learn whether a backward runs in this thread, and to be called at its end, as DDP is.
        engine = torch.autograd.Variable._execution_engine  # noqa: SLF001
        self._graph_task: Callable[[], int] = getattr(getattr(torch, "_C", None), "_current_graph_task_id", lambda: -1)
        self._queue_callback = engine.queue_callback
        self._open: dict[str, Any] = {}
        """CUDA event of the begin of each stage that is open, or None."""
        self._calls: list[bool] = []
        """For each call of the model that is running: the forward stage began with it."""
        self._device: Any = None
        self._uses_gpus = self._gpus.used()
        self._has_peers = _has_peers()
        self._backward_task = -1
        self._memory_due = 0
        self.stopped = False
        self._sampler = StepSampler(TIMING_SHARE)
        self.is_timing = True
        self._is_polled: bool | None = None
        self._was_called = self._sees_calls = False
        self._timed_steps = 0
        self.next_step = 0
        self._models: list[weakref.ref[Any]] = []
        self._optimizers: list[weakref.ref[Any]] = []
        self._model_handles: list[Any] = []
        self._optimizer_handles: list[Any] = []
        self._at_forward = self._hook(self._forward_begins)
        self._after_forward = self._hook(self._forward_ends)
        self._at_optimizer = self._hook(self._optimizer_begins)
        self._at_gradient = self._hook(self._backward_begins)
        self._at_end = self._hook(self._backward_ends)
        self._at_last = self._hook(self._backward_ended)
        if model is not None:
            self.add_model(model)
        if optimizer is not None:
            self.add_optimizer(optimizer)

    @property
    def in_backward(self) -> bool:
        """Autograd runs a backward in this thread."""
        return self._graph_task() >= 0

    @property
    def is_alive(self) -> bool:
        """The model still exists, and this was not stopped."""
        return not self.stopped and any(model() is not None for model in self._models)

    @property
    def polls(self) -> bool:
        """`poll` has something to do at pushes."""
        return not self.stopped and (self.is_timing or self._uses_gpus)

    def add_model(self, model: Any) -> None:
        """Time the calls of a model."""
        if (before := _watching.get(model)) is not None:
            before.yield_to(self._queue)
        _watching[model] = self
        self._models.append(weakref.ref(model))
        self._hook_model(model)
        compiled = getattr(model, COMPILED_CALL, None)  # by `model.compile()`, which compiles the hooks in
        if compiled is not None:
            setattr(model, COMPILED_CALL, self._around(compiled))

    def add_optimizer(self, optimizer: Any) -> None:
        """Time an optimizer's steps, also of one that Accelerate has wrapped. One without hooks is not timed."""
        self._optimizers.append(weakref.ref(unwrapped(optimizer)))
        if self.is_timing:
            self._hook_optimizer(self._optimizers[-1])

    def await_backward(self, losses: Any) -> None:
        """Time a backward pass that is about to begin at these losses, whatever has computed them."""
        if self._counts() and self._graph_task() < 0:
            for node in gradient_nodes(losses):
                node.register_prehook(self._at_gradient)

    def batch_arrived(self) -> None:
        """Begin the stage before the call of a model, if calls are seen."""
        if self._sees_calls and self._counts() and self._graph_task() < 0 and "forward" not in self._open:
            self._begin(PREPARE)

    def wait_begins(self) -> None:
        """Begin to wait in a collective that the training itself calls."""
        if self._counts() and self._graph_task() < 0:
            self._begin(SYNC)

    def wait_ends(self) -> None:
        """End a wait for a collective."""
        if get_ident() == self._thread and self._graph_task() < 0:
            self._end(SYNC)

    def optimizer_stepped(self) -> None:
        """End the optimizer stage; the caller has seen that the step is over."""
        # No hook of this class does so: none may be added or removed while PyTorch iterates over them.
        try:
            if get_ident() == self._thread:
                self._end("optimizer")
        except Exception as error:  # noqa: BLE001  a device that has failed raises anything, and training must go on
            self._fail(error)

    def hook_optimizers_last(self) -> None:
        """Put the optimizer hooks behind all others, so that the stage excludes them; not to be called by a pre-hook."""
        if self.is_timing and not self.stopped:
            remove_all(self._optimizer_handles)
            for optimizer in self._optimizers:
                self._hook_optimizer(optimizer)

    def accompany(self) -> bool:
        """Time every step from now on, since another model of the run is watched; return False if this has ended."""
        if not self.is_alive:
            self.stop()
            return False
        if not self.is_timing:
            self._set_timing(on=True)
        return True

    def step_finished(self, number: int) -> None:
        """Decide whether the next step is timed; *number* optimizer steps are finished."""
        if self.stopped or not self._queue.is_open or get_ident() != self._thread:
            return
        begun = monotonic_ns()
        self._timed_steps += self.is_timing
        if self.is_timing:
            self._sees_calls = self._was_called
        if sum(timer.is_alive for timer in self._queue.timers) > 1:  # the run's time is shared out, not one model's
            self._sampler.step_timed(number)
        else:
            self._sampler.step_finished(number)
        self.next_step, self._timer.weight = self._sampler.next_step, self._sampler.weight
        if self._sampler.is_sampled != self.is_timing:
            self._set_timing(on=self._sampler.is_sampled, left_out=self.next_step - number)
        self._was_called = False
        self._sampler.spend(monotonic_ns() - begun)

    def poll(self) -> None:
        """Append what GPUs have done, and once a second their memory; called at pushes, by any thread that pushes."""
        if get_ident() != self._thread:
            return
        if self._open and self._graph_task() < 0:
            self._drop(SYNC, "backward", "optimizer")
        now = monotonic_ns()
        if self._timer.pending or now >= self._memory_due:
            self._append_device(now)

    def close(self) -> None:
        """Append the rest at the end of the run; the hooks do nothing from then on."""
        self._memory_due = 0
        self.poll()

    def stop(self) -> None:
        """Time nothing any longer, and remove the hooks."""
        if not self.is_timing and not self.stopped and self._queue.is_open:
            self._append(monotonic_ns(), _TIMED)
        self.stopped = True
        remove_all(self._model_handles)
        remove_all(self._optimizer_handles)
        self._queue.update_polled()

    def yield_to(self, queue: RowQueue) -> None:
        """Stop if the run of *queue*, which watches the same model now, is this run or follows it."""
        if self._queue is queue or not self._queue.is_open:
            self.stop()

    def _append_device(self, now: int) -> None:
        """Append what GPUs have done, at a push or when the CUDA events run out."""
        try:
            if now >= self._memory_due:
                self._uses_gpus, self._has_peers = self._gpus.used(), _has_peers()
            if not self._uses_gpus:
                self._memory_due = now + self._memory_every
                return
            if self._gpus.forbids():
                return
            done = Device(phases=self._timer.collect())
            if now >= self._memory_due:
                self._memory_due = now + self._memory_every
                done.memory = self._memory.read()
            if done.phases or done.memory:
                self._append(now, done)
        except Exception as error:  # noqa: BLE001  a device that has failed raises anything, and training must go on
            self._fail(error)

    def _hook(self, work: Callable[..., None]) -> ModuleHook:
        return ModuleHook(work, self._fail, self._sampler.spend)

    def _hook_model(self, model: Any) -> None:
        self._model_handles += [
            model.register_forward_pre_hook(self._at_forward, prepend=True),
            model.register_forward_hook(self._after_forward, always_call=True),  # also after an exception
        ]

    def _hook_optimizer(self, reference: weakref.ref[Any]) -> None:
        optimizer: Any = reference()
        if hasattr(optimizer, "register_step_pre_hook"):
            self._optimizer_handles.append(optimizer.register_step_pre_hook(self._at_optimizer))

    def _set_timing(self, *, on: bool, left_out: int = 0) -> None:
        """Add or remove the hooks; *left_out* steps follow that are not timed."""
        self._drop(*self._open)
        self._calls.clear()
        mark = _TIMED if on else _UNTIMED._replace(timed=self._timed_steps, left_out=left_out)
        self._append(monotonic_ns(), mark)
        self.is_timing, self._timed_steps = on, 0
        if not on:
            remove_all(self._optimizer_handles)
            if self._was_called:  # else only a compiled graph calls it, and would be compiled anew without the hooks
                remove_all(self._model_handles)
        else:
            for model in () if self._model_handles else [reference() for reference in self._models]:
                if model is not None:
                    self._hook_model(model)
            for optimizer in self._optimizers:
                self._hook_optimizer(optimizer)
        if self.polls is not self._is_polled:
            self._is_polled = self.polls
            self._queue.update_polled()

    def _around(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the call of a module that was compiled in place, so that the hooks run around it."""
        compiled = getattr(compiled, "trackside_compiled", compiled)  # not the wrapper of an earlier watch
        begins, ends = self._at_forward, self._after_forward

        @wraps(compiled)
        def called(*args: Any, **named: Any) -> Any:
            output = None
            begins(None, args)
            try:
                output = compiled(*args, **named)
            finally:
                ends(None, args, output)
            return output

        called.trackside_compiled = compiled  # type: ignore[attr-defined]  # for a later watch of the same model
        return called

    def _begin(self, stage: str) -> None:
        self._drop(stage)
        self._append(monotonic_ns(), _ENTER[stage])
        self._open[stage] = None
        if self._device is not None:
            self._open[stage] = self._timer.begin(self._device)

    def _end(self, stage: str) -> None:
        if stage not in self._open:
            return
        self._append(monotonic_ns(), _LEAVE[stage])
        began = self._open.pop(stage)
        if began is not None:
            self._timer.end(stage, began, self._device)

    def _drop(self, *stages: str) -> None:
        """End stages that something has raised from, without the GPU's time, which would include other work."""
        for stage in stages:
            if stage in self._open:
                self._append(monotonic_ns(), _LEAVE[stage])
                self._timer.drop(self._open.pop(stage))

    def _counts(self) -> bool:
        is_open = self.is_timing and not self.stopped and self._queue.is_open
        return is_open and get_ident() == self._thread

    def _forward_begins(self, model: Any, _: object) -> None:
        if not self._counts():
            return
        # Activation checkpointing repeats the forward within a backward.
        begins = self._grad_enabled() and "forward" not in self._open and self._graph_task() < 0
        self._calls.append(begins)
        if begins:
            self._was_called = True
            self._end(PREPARE)
            self._drop(SYNC, "backward")
            if self._timer.is_full:
                self._append_device(monotonic_ns())
            if self._uses_gpus and self._device is None and model is not None:
                self._find_device(model.parameters())
            self._begin("forward")

    def _forward_ends(self, _model: object, _args: object, output: Any) -> None:
        if get_ident() != self._thread or not self._calls or not self._calls.pop():
            return
        self._end("forward")
        node = getattr(output, "grad_fn", None)
        for each in gradient_nodes(output) if node is None else (node,):
            each.register_prehook(self._at_gradient)

    def _backward_begins(self, _: object) -> None:
        # In a thread of autograd's engine, while the thread that called `backward` waits.
        task = self._graph_task()
        over = self.stopped or not self.is_timing or not self._queue.is_open
        if over or ("backward" in self._open and task == self._backward_task):
            return
        self._drop(SYNC, "backward")
        self._backward_task = task
        self._begin("backward")
        self._queue_callback(self._at_end if self._has_peers else self._at_last)

    def _backward_ends(self) -> None:
        # Callbacks that were queued before, such as DDP's wait for its peers, run before the one that is queued now.
        self._begin(SYNC)
        self._queue_callback(self._at_last)

    def _backward_ended(self) -> None:
        self._end(SYNC)
        self._end("backward")

    def _optimizer_begins(self, optimizer: Any, *_: object) -> None:
        if not self._counts():
            return
        self._calls.clear()  # of calls that Ctrl-C has cut short
        if self._graph_task() < 0:  # else it steps within a backward
            self._drop(*STAGES)
        if self._uses_gpus and self._device is None:
            self._find_device(parameter for group in optimizer.param_groups for parameter in group["params"])
        self._begin("optimizer")

    def _find_device(self, parameters: Iterator[Any]) -> None:
        """Remember the GPU of the first parameter; a model may move there after it began to be watched."""
        first = next(iter(parameters), None)
        if first is not None and self._gpus.has(first.device):
            self._device = first.device

    def _fail(self, error: Exception) -> None:
        self._queue.warn_once(StepStages, f"watching a model: {type(error).__name__}: {text_of(error)}")


def _has_peers() -> bool:
    """Return whether this process is in a process group, so that DDP may wait for peers at the end of a backward."""
    import torch

    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


_watching: weakref.WeakKeyDictionary[Any, StepStages] = weakref.WeakKeyDictionary()
