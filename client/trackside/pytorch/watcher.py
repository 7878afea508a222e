"""Measure a model's gradients and weights when its optimizer steps: no hook on an inner module, no collective, no wait.

`OverheadBudget` chooses the measured steps, so that the measurements cost a bounded share of the time.

The file is longer than others: the two hooks of an optimizer's step share what is due in it, its clocks and the weights before.
"""

from __future__ import annotations

import weakref
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trackside.captures.modules import WATCHERS
from trackside.numbers import is_on_device
from trackside.packing import text_of
from trackside.pending_values import STEP_SKIPPED
from trackside.pytorch.hooks import unwrapped
from trackside.pytorch.module_calls import ModuleRecording
from trackside.pytorch.norms import Norms, WeightSample
from trackside.pytorch.observer import Choice, Observer
from trackside.pytorch.overhead_budget import OverheadBudget
from trackside.pytorch.parameters import (
    KIND,
    Parameters,
    UncountableError,
    architecture,
    layer_positions,
    local_gradient,
    local_values,
    optimizer_parameters,
)
from trackside.pytorch.replicas import Replicas
from trackside.pytorch.step_stages import StepStages
from trackside.training_log import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trackside.row_queue import RowQueue

    Named = list[tuple[str, Any]]

GRADIENTS_SHARE = 0.001  # share of the time that measuring gradients may cost
WEIGHTS_SHARE = 0.0005  # share of the time that measuring weights may cost

UNWATCHED = "the model is no longer watched, training goes on"


class Watcher:
    """Measures a model for a run, until either is gone, the run ends, or the model is watched anew.

    `Run.watch` creates it.

    Args:
        queue: Queue of the run.
        model: A ``torch.nn.Module``. It is not kept alive.
        optimizer: Optimizer whose steps are measured; None for the first one that steps and has parameters of the model.
        layers: Names and patterns of layers whose gradient norms are pushed at each step.
        observed: The distributions that are measured; None for none.
        replicas: As in `Run.watch`.
        excluded: Names and patterns of tensors that are not compared between ranks.

    Raises:
        TypeError: The model is not a ``torch.nn.Module``.
    """

    def __init__(
        self,
        queue: RowQueue,
        model: Any,
        optimizer: Any = None,
        layers: str | Sequence[str] | None = None,
        observed: Choice | None = None,
        *,
        replicas: bool | None = None,
        excluded: str | Sequence[str] = (),
    ) -> None:
        if not callable(getattr(model, "named_parameters", None)):
            raise TypeError(f"watch takes a torch.nn.Module, and not a {type(model).__name__}")
        import torch

        self._torch = torch
        self._is_compiling = torch.compiler.is_compiling
        self._queue = queue
        self._optimizer: weakref.ref[Any] | None = None
        self._patterns = (layers,) if isinstance(layers, str) else tuple(layers or ())
        self._gradients = OverheadBudget(GRADIENTS_SHARE)
        self._weights = OverheadBudget(WEIGHTS_SHARE)
        self._all_layers = 0
        self._request = queue.session.layers
        self._roots: dict[Any, Any] = {}
        self._before: WeightSample | None = None
        self._steps = 0
        self._wakes = 0
        """Number of finished steps at which there is something to do."""
        self._measured = 0
        """Step whose gradients were measured last."""
        self._own_seconds = 0.0
        self._sampling_seconds = 0.0
        self._since: tuple[int, float] | None = None
        self._is_bad = False
        self._ended = False
        self._reads_after_step = False
        self._is_countable = True
        self._timings: dict[OverheadBudget, tuple[Any, Any, float]] = {}
        self._replicas: Replicas | None = None
        self._stages: StepStages | None = None
        self._observer: Observer | None = None
        self._modules: ModuleRecording | None = None
        self._handles: dict[str, Any] = {}
        try:
            self._parameters = Parameters(model, queue.session.identity.rank)
            if queue.is_open:
                if observed is not None:
                    self.observe(model, observed)
                if replicas is not False:
                    self._replicas = Replicas(queue, [model], queue.after_push, bool(replicas), excluded)
                self._attach(model, optimizer)
                self._describe(model)
                _watchers[model] = self
                WATCHERS.add(self)
        except Exception as error:  # noqa: BLE001  a model of the user's own kind may raise anything
            self._fail(error)

    def __getstate__(self) -> dict[str, Any]:
        # A copy or a pickle watches nothing: the hooks are those of this model.
        return {"_ended": True, **dict.fromkeys(("_stages", "_observer", "_replicas", "_modules")), "_handles": {}}

    @classmethod
    def of(cls, queue: RowQueue, model: Any) -> Watcher | None:
        """Return the watcher that measures a model for the run of a queue; None if there is none."""
        watcher = _watchers.get(model)
        return watcher if watcher is not None and watcher.measures_for(queue) else None

    def measures_for(self, queue: RowQueue) -> bool:
        """Return whether this measures for the run of a queue now."""
        return not self._ended and self._queue is queue

    def observe(self, model: Any, wanted: Choice) -> None:
        """Measure distributions, too, from one of the next steps on; instead of others if there were some."""
        if self._observer is not None:
            self._observer.stop()
        self._observer = Observer(self._queue, self._parameters, model, wanted)
        self._wakes = 0

    def layers_for(self, steps: int) -> None:
        """Push the gradient norms of all layers for *steps* steps, from the one after the next on.

        If distributions are measured, they are measured more often meanwhile.
        """
        self._all_layers = max(0, int(steps))
        if self._observer is not None:
            self._observer.burst(self._steps, self._all_layers)
        self._wakes = 0

    def record_modules(self, steps: int) -> ModuleRecording | None:
        """Record the calls of the model's modules from the next step on; any thread may call this."""
        if self._ended or not self._queue.is_open:
            return None
        self._modules = recording = ModuleRecording(steps, self._modules)
        return recording

    def stop(self) -> None:
        """Stop measuring and timing; not to be called by a hook of an optimizer."""
        if self._stages is not None:
            self._stages.stop()
        self._end_watch()
        _sweep()

    def _end_watch(self) -> None:
        self._ended, self._before = True, None  # events stay: a forked child may free nothing of CUDA's
        if self._observer is not None:
            self._observer.stop()
        if self._replicas is not None:
            self._replicas.stop()
        if self._modules is not None:
            self._modules.stop()
        _over.extend(self._handles.values())
        self._handles = {}

    def _attach(self, model: Any, optimizer: Any) -> None:
        _sweep()
        self._queue.pending_values().reserve("grad_norm")
        optimizer = unwrapped(optimizer)
        if hasattr(optimizer, "register_step_post_hook"):
            self._optimizer = weakref.ref(optimizer)
            self._handles["after"] = optimizer.register_step_post_hook(self._post_hook)
            self._wait_for_step()
        else:
            from torch.optim import optimizer as every

            self._handles["before any"] = every.register_optimizer_step_pre_hook(self._any_pre_hook)
            self._handles["after"] = every.register_optimizer_step_post_hook(self._post_hook)
            optimizer = None
        # Its hook comes last, so that what this does before a step is no part of the optimizer's time.
        self._time_stages(model, optimizer)

    def _describe(self, model: Any) -> None:
        try:
            if self._queue.session.identity.rank == 0:
                self._queue.event(KIND, architecture(model))
        except Exception as error:  # noqa: BLE001  parameters that have no shape yet, for example
            warn(f"the modules of the model are not recorded: {type(error).__name__}: {text_of(error)[:200]}")

    def _time_stages(self, model: Any, optimizer: Any) -> None:
        try:
            self._stages = StepStages(self._queue, model, optimizer)
            self._queue.register(self._stages)
        except Exception as error:  # noqa: BLE001  a model of the user's own kind may take no hooks
            warn(f"the stages of the model's steps are not timed: {type(error).__name__}: {text_of(error)[:200]}")

    def _pre_hook(self, optimizer: Any, args: Sequence[Any] = (), named: Mapping[str, Any] | None = None) -> None:
        if not self._is_compiling():
            self._safely(self._begin, optimizer, args, named or {})

    def _any_pre_hook(self, optimizer: Any, *given: Any) -> None:
        """Run before a step of any optimizer, until the first step shows which one counts."""
        if self._optimizer is None or self._optimizer() is None:
            self._pre_hook(optimizer, *given)

    def _post_hook(self, optimizer: Any, *_: Any) -> None:
        # After most steps there is nothing to measure, and only this runs.
        if self._is_compiling():
            return
        stages = self._stages
        if self._ended:
            if stages is not None:
                stages.stop()
            return
        if self._optimizer is not None and self._optimizer() is optimizer:
            self._steps += 1
            if stages is not None and stages.is_timing:
                stages.optimizer_stepped()
            elif self._steps < self._wakes and self._queue.session.layers is self._request and self._modules is None:
                return
        self._safely(self._end, optimizer)

    def _safely(self, work: Callable[..., None], optimizer: Any, *more: Any) -> None:
        try:
            if self._ended:
                return
            stages = self._stages
            over = stages is not None and stages.stopped
            if over or not self._queue.is_open or self._parameters.is_gone:
                self._end_watch()
            elif stages is not None and stages.in_backward:  # a step for each gradient as it comes
                return
            elif self._is_watched(optimizer) and not self._is_captured():
                with self._torch.no_grad():
                    work(optimizer, *more)
        except Exception as error:  # noqa: BLE001  whatever of PyTorch's fails, training goes on
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        why = str(error) if isinstance(error, UncountableError) else f"{type(error).__name__}: {text_of(error)[:200]}"
        warn(f"{UNWATCHED}: {why}")
        self._end_watch()

    def _is_watched(self, optimizer: Any) -> bool:
        watched = None if self._optimizer is None else self._optimizer()
        if watched is None and self._parameters.has_any_of(optimizer):
            self._optimizer, watched = weakref.ref(optimizer), optimizer
            if "before" in self._handles:  # of an optimizer that is gone
                self._handles.pop("before").remove()
            if self._stages is not None:
                self._stages.add_optimizer(optimizer)
        return watched is optimizer

    def _is_captured(self) -> bool:
        cuda = self._torch.cuda
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())

    def _wait_for_step(self) -> None:
        """Add the pre-hook if the next step is measured, else remove it."""
        optimizer = None if self._optimizer is None or self._ended else self._optimizer()
        waits = self._is_due(self._steps + 1) and "before any" not in self._handles
        if waits and optimizer is not None and "before" not in self._handles:
            self._handles["before"] = optimizer.register_step_pre_hook(self._pre_hook)
            if self._stages is not None:
                self._stages.hook_optimizers_last()
        elif not waits and "before" in self._handles:
            self._handles.pop("before").remove()
        if self._observes(self._steps + 1):
            self._observing(Observer.prepare)

    def _is_due(self, step: int) -> bool:
        norms = self._gradients.is_due(step) or self._weights.is_due(step) or self._all_layers or self._patterns
        return bool(norms) or self._observes(step)

    def _observes(self, step: int) -> bool:
        return self._observer is not None and self._observer.is_due(step)

    def _observing(self, work: Callable[..., None], *arguments: Any) -> None:
        """Call a method of the observer, which is given up if that fails."""
        observer = self._observer
        if observer is not None:
            try:
                work(observer, *arguments)
            except Exception as error:  # noqa: BLE001  whatever of PyTorch's fails, training goes on
                self._observer = None
                observer.stop()
                warn(
                    f"the model's distributions are no longer measured: {type(error).__name__}: {text_of(error)[:200]}"
                )

    def _begin(self, optimizer: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        self._before = None
        # Before the step, since an optimizer may change the gradients in it, as SGD with Nesterov momentum does. After it
        # if they are final only then: computed by a closure, or unscaled by a fused optimizer for `torch.amp.GradScaler`.
        closure = args[1] if len(args) > 1 else named.get("closure")
        self._reads_after_step = closure is not None or getattr(optimizer, "grad_scale", None) is not None
        if not self._reads_after_step:
            self._measure_gradients(optimizer, self._steps + 1)
        if self._weights.is_due(self._steps + 1):
            began = perf_counter()
            if moving := self._moving(self._parameters.trained()):
                self._before = WeightSample.read([one for _, one in moving], self._roots)
            self._sampling_seconds = perf_counter() - began
            self._own_seconds += self._sampling_seconds
        if self._observes(self._steps + 1):
            self._observing(Observer.measure_before, self._moving(self._parameters.trained()))

    def _end(self, optimizer: Any) -> None:
        stages = self._stages
        # The optimizer is found. PyTorch may iterate over the hooks in another thread.
        if "before any" in self._handles:
            _over.append(self._handles.pop("before any"))
        if self._reads_after_step:
            self._reads_after_step = False
            self._measure_gradients(optimizer, self._steps)
        if self._before is not None:
            self._measure(self._weights, self._push_weights, self._sampling_seconds)
        if self._observes(self._steps):
            self._observing(Observer.measure_after, self._parameters.trained())
            self._observing(Observer.finish)
        self._record_calls()
        self._record_step_time()
        self._poll()
        request = self._queue.session.layers
        if request is not self._request:
            self._request = request
            self.layers_for(request[1])
        if stages is not None and self._steps >= stages.next_step:
            stages.step_finished(self._steps)
        self._wait_for_step()
        if self._replicas is not None and self._steps >= self._replicas.next_step:
            self._replicas.step_finished(self._steps, optimizer)
        self._wakes = self._next_work()

    def _next_work(self) -> int:
        """Return the number of finished steps at which there is something to do."""
        wakes = [self._gradients.next_due(self._steps) - 1, self._weights.next_due(self._steps) - 1]
        if self._observer is not None:
            wakes.append(self._observer.wakes(self._steps))
        if "before" in self._handles:
            wakes.append(self._steps + 1)
        wakes += [one.next_step for one in (self._stages, self._replicas) if one is not None]
        return min(wakes)

    def _record_calls(self) -> None:
        recording = self._modules
        if recording is not None:
            model = next((model for model, watcher in _watchers.items() if watcher is self), None)
            if not recording.continues(model) and self._modules is recording:
                self._modules = None

    def _record_step_time(self) -> None:
        """Record the mean duration of the steps since the last call, without the measurements."""
        now = perf_counter()
        observer = self._observer
        if observer is not None:
            self._own_seconds += observer.spent()
        if self._since is not None and self._steps > self._since[0]:
            seconds = (now - self._since[1] - self._own_seconds) / (self._steps - self._since[0])
            self._gradients.add_step(seconds)
            self._weights.add_step(seconds)
            if observer is not None:
                observer.budget.add_step(seconds)
        self._since, self._own_seconds = (self._steps, now), 0.0

    def _measure_gradients(self, optimizer: Any, step: int) -> None:
        """Measure the gradients if they are due and no scaler skips the step."""
        norms = self._gradients.is_due(step) or self._all_layers or self._patterns
        if self._is_countable and (norms or self._observes(step)):
            self._measured = step
            # A step that a scaler skips has no gradient norm: infinities are how the scaler finds its scale.
            found_inf = getattr(optimizer, "found_inf", None)
            waits = is_on_device(found_inf)
            if found_inf is None or waits or not float(found_inf):
                skips = found_inf if waits else None
                if norms:
                    self._measure(self._gradients, lambda trained: self._push_gradients(trained, skips))
                if self._observes(step):
                    self._observing(Observer.measure_gradients, self._parameters.trained(), skips)
        self._all_layers = max(0, self._all_layers - 1)

    def _measure(self, budget: OverheadBudget, push: Callable[[Named], Any], before: float = 0.0) -> None:
        """Measure, and add the cost to the budget: *before* included, and the time of a device if that is longer."""
        began = perf_counter()
        trained = self._parameters.trained()
        device = None if budget in self._timings else next((one.device for _, one in trained if one.is_cuda), None)
        first = None if device is None else self._mark(device)
        on_device = push(trained)
        cost = before + perf_counter() - began
        self._own_seconds += cost - before
        if not on_device:
            budget.add_cost(cost)
        elif device is not None:
            self._timings[budget] = first, self._mark(device), cost

    def _mark(self, device: Any) -> Any:
        # On the device of the parameters only: an event on another one would take memory of a GPU that is not used.
        event = self._torch.cuda.Event(enable_timing=True)
        event.record(self._torch.cuda.current_stream(device))
        return event

    def _poll(self) -> None:
        """Deliver what has arrived from a device."""
        if self._queue.pending is not None:
            self._queue.pending.poll()
        self._observing(Observer.poll)
        for budget, (first, last, cost) in tuple(self._timings.items()):
            if last.query():
                del self._timings[budget]
                budget.add_cost(max(cost, first.elapsed_time(last) / 1000))

    def _moving(self, trained: Named) -> Named:
        """Return names and this rank's part of the parameters that the optimizer changes, if they are on one device."""
        optimizer = None if self._optimizer is None else self._optimizer()
        own = {id(one) for one in optimizer_parameters(optimizer)} if optimizer is not None else set()
        moving = [(name, local_values(one)) for name, one in trained if id(one) in own]
        return moving if len({one.device for _, one in moving}) == 1 else []

    def _push_gradients(self, trained: Named, skips: Any) -> bool:
        """Push the norm of the gradients and of requested layers; return whether they are still on a device."""
        with_gradient = [(name, one) for name, one in trained if one.grad is not None]
        if not with_gradient:
            if self._parameters.sharded and not trained:  # other ranks have the same part, and count it
                self._queue.join_next_push({"grad_norm_local_squared": 0.0, "param_norm_local_squared": 0.0})
            return False
        try:
            norms = Norms([local_gradient(name, one) for name, one in with_gradient])
        except UncountableError as error:
            self._is_countable = False
            warn(f"gradients are not measured: {error}")
            return False
        names, values = [name for name, _ in with_gradient], {}
        sharded = self._parameters.sharded
        key = "grad_norm_local_squared" if sharded else "grad_norm"
        pending = self._queue.pending
        if pending is None or not {"grad_norm", key} & pending.overridden:
            values[key] = norms.total_squared if sharded else norms.total
        for layer, places in self._layers(names).items():
            values[f"{key}/{layer}"] = norms.subset(places, squared=sharded)
        if skips is not None:
            values[STEP_SKIPPED] = skips
        self._queue.join_next_push(values)
        return self._find_nonfinite(names, norms, skips)

    def _layers(self, names: Sequence[str]) -> dict[str, list[int]]:
        if not self._all_layers and not self._patterns:
            return {}
        if self._queue.is_device_crowded:  # leave room for the user's own values
            return {}
        layers = self._parameters.layers(None if self._all_layers else self._patterns)
        return dict(layer_positions(layers, names))

    def _push_weights(self, trained: Named) -> bool:
        """Push the norm of the weights and how far they moved; return whether they are still on a device."""
        before, self._before = self._before, None
        moving = self._moving(trained)
        if before is None or not moving:
            return False
        norms = Norms([local_values(one) for _, one in trained])
        after = WeightSample.read([one for _, one in moving], self._roots)
        if self._parameters.sharded:
            values = {"param_norm_local_squared": norms.total_squared}
        else:
            values = {"param_norm": norms.total}
        if after.numbers.shape == before.numbers.shape:
            values["update_ratio"] = before.update_ratio(after)
        self._queue.join_next_push(values)
        return norms.each is None

    def _find_nonfinite(self, names: list[str], norms: Norms, skips: Any) -> bool:
        count, first = norms.nonfinite()
        step, scalars = self._measured, {"count": count, "first": first}
        if not is_on_device(count):
            self._nonfinite_arrived(step, names, scalars)
            return False
        if skips is not None:
            scalars["skips"] = skips
        self._queue.read_later(scalars, lambda numbers: self._nonfinite_arrived(step, names, numbers))
        return True

    def _nonfinite_arrived(self, step: int, names: list[str], numbers: dict[str, float]) -> None:
        """Record an event with the first layer whose gradient is not finite, once until all are finite again."""
        if numbers.get("skips") or "first" not in numbers:
            return
        count = int(numbers["count"])
        was_bad, self._is_bad = self._is_bad, count > 0
        if not count or was_bad:
            return
        name = names[int(numbers["first"])]
        fields: dict[str, Any] = {
            "layer": name.rpartition(".")[0] or name,
            "parameter": name,
            "parameters": count,
            "of": len(names),
        }
        if self._steps > step:
            fields["steps_ago"] = self._steps - step
        self._queue.after_push(lambda: self._queue.event("nonfinite_gradients", fields))


_watchers: weakref.WeakKeyDictionary[Any, Watcher] = weakref.WeakKeyDictionary()

_over: list[Any] = []
"""Hooks that ended within a step: PyTorch iterates over them then, so they are removed later."""


def _sweep() -> None:
    while _over:
        _over.pop().remove()
