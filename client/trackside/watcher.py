"""Watches a model's gradients and weights where its optimizer steps: no hook on an inner module, no collective, no wait.

Measuring takes time that the training would else have, so that it is done each so many steps that it takes a part of
the time that is bounded: see `Pace`.
"""

from __future__ import annotations

import weakref
from time import monotonic_ns, perf_counter
from typing import TYPE_CHECKING, Any

from trackside.device import DeviceScalars, is_on_device
from trackside.log import warn
from trackside.norms import Moved, Norms
from trackside.pace import Pace
from trackside.parameters import Parameters, UncountableError, of, own_part, spans
from trackside.stages import Stages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside.run import Run

GRADIENTS_SHARE, WEIGHTS_SHARE = 0.002, 0.001
"""So much of the time may be spent on gradients, and on weights."""

UNWATCHED = "what is watched of the model ends here, training goes on"


class Watcher:
    """Measures a model for a run until either is gone, or the run has ended.

    Args:
        run: The run.
        model: Is not kept alive.
        optimizer: Whose steps are waited for; None for the first that steps and has parameters of the model.
        layers: Names and patterns of layers whose norms are told one by one.

    Raises:
        TypeError: The model is none of PyTorch's.
    """

    def __init__(self, run: Run, model: Any, optimizer: Any = None, layers: str | Sequence[str] | None = None) -> None:
        if not callable(getattr(model, "named_parameters", None)):
            raise TypeError(f"watch takes a torch.nn.Module, and not a {type(model).__name__}")
        import torch

        self._torch = torch
        self._run = run
        self._optimizer: weakref.ref[Any] | None = None
        self._patterns = (layers,) if isinstance(layers, str) else tuple(layers or ())
        self._gradients, self._weights = Pace(GRADIENTS_SHARE), Pace(WEIGHTS_SHARE)
        self._all_layers = 0
        self._asked = run._session.layers[0]  # noqa: SLF001  its own
        self._roots: dict[Any, Any] = {}
        self._before: Moved | None = None
        self._due = False, False
        self._own = 0.0
        self._began: float | None = None
        self._bad = self._ended = False
        self._steps = 0
        self._device: DeviceScalars | None = None
        self._timing: tuple[Any, Any, Pace, float] | None = None
        self._stages: Stages | None = None
        self._handles: list[Any] = []
        try:
            self._parameters = Parameters(model, run.rank)
            if run._sender is not None:  # noqa: SLF001  the same
                self._attach(model, optimizer)
        except Exception as error:  # noqa: BLE001  a model of the user's own kind may raise anything
            self._fail(error)

    def layers_for(self, steps: int) -> None:
        """Tell the gradient norms of all layers at each of the next *steps* steps."""
        self._all_layers = max(0, int(steps))

    def stop(self) -> None:
        """Measure and time no more; not to be called by a hook of an optimizer."""
        if self._stages is not None:
            self._stages.stop()
        self._end_it()
        _sweep()

    def _end_it(self) -> None:
        self._ended, self._before, self._timing = True, None, None
        handles, self._handles = self._handles, []
        _over.extend(handles)

    def _attach(self, model: Any, optimizer: Any) -> None:
        _sweep()
        hooks = self._pre_hook, self._post_hook
        while (inner := getattr(optimizer, "optimizer", None)) is not None and inner is not optimizer:
            optimizer = inner  # what Accelerate and Lightning have around it
        has_hooks = hasattr(optimizer, "register_step_post_hook")
        # Before our own hooks, so that the optimizer's time ends when ours begins.
        self._stages = Stages(self._run, model, optimizer if has_hooks else None)
        self._run._time(self._stages)  # noqa: SLF001  its own
        if has_hooks:
            self._optimizer = weakref.ref(optimizer)
            register = optimizer.register_step_pre_hook, optimizer.register_step_post_hook
        else:
            from torch.optim import optimizer as every

            register = every.register_optimizer_step_pre_hook, every.register_optimizer_step_post_hook
        self._handles = [add(hook) for add, hook in zip(register, hooks, strict=True)]

    def _pre_hook(self, optimizer: Any, *_: Any) -> None:
        """Before a step: what the weights are, if they are to be measured."""
        if not self._torch.compiler.is_compiling():
            self._safely(self._begin, optimizer)

    def _post_hook(self, optimizer: Any, *_: Any) -> None:
        """After a step: the gradients are still there, also those that a closure has made within it."""
        if not self._torch.compiler.is_compiling():
            self._safely(self._end, optimizer)

    def _safely(self, work: Callable[[], None], optimizer: Any) -> None:
        try:
            if self._ended:
                return
            if self._run._sender is None or self._parameters.gone:  # noqa: SLF001  its own
                self._end_it()
            elif self._is_watched(optimizer) and not self._is_captured():
                with self._torch.no_grad():
                    work()
        except Exception as error:  # noqa: BLE001  whatever of PyTorch's fails, training goes on
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        why = str(error) if isinstance(error, UncountableError) else f"{type(error).__name__}: {str(error)[:200]}"
        warn(f"{UNWATCHED}: {why}")
        self._end_it()

    def _is_watched(self, optimizer: Any) -> bool:
        known = None if self._optimizer is None else self._optimizer()
        if known is None and self._parameters.holds(optimizer):
            self._optimizer, known = weakref.ref(optimizer), optimizer
        return known is optimizer

    def _is_captured(self) -> bool:
        cuda = self._torch.cuda
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())

    def _begin(self) -> None:
        began = perf_counter()
        seconds = None if self._began is None else began - self._began - self._own
        self._began, self._own, self._before = began, 0.0, None
        self._due = self._gradients.step(seconds), self._weights.step(seconds)
        if self._due[1] and (tensors := self._moving()):
            self._before = Moved.sampled(tensors, self._roots)
            self._own = perf_counter() - began

    def _end(self) -> None:
        sampling, self._steps = self._own, self._steps + 1
        self._poll()
        asked = self._run._session.layers  # noqa: SLF001  its own
        if asked[0] != self._asked:
            self._asked, self._all_layers = asked
        if self._due[0] or self._all_layers or self._patterns:
            self._measure(self._gradients, self._tell_gradients)
        if self._before is not None:
            self._measure(self._weights, self._tell_weights, sampling)
        self._all_layers = max(0, self._all_layers - 1)

    def _measure(self, pace: Pace, tell: Callable[[], Any], before: float = 0.0) -> None:
        """Measure, and tell the pace how long that took, *before* it included; of a device also its own time."""
        cuda = self._torch.cuda
        timed = cuda.is_initialized() and self._timing is None
        began, first = perf_counter(), self._mark() if timed else None
        on_device = tell()
        spent = before + perf_counter() - began
        self._own += spent - before
        if not on_device:
            pace.spent(spent)
        elif first is not None:
            self._timing = first, self._mark(), pace, spent

    def _mark(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _poll(self) -> None:
        """Take what has arrived from a device."""
        if self._device is not None:
            self._device.poll()
        if self._timing is not None and self._timing[1].query():
            (first, last, pace, spent), self._timing = self._timing, None
            pace.spent(max(spent, first.elapsed_time(last) / 1000))

    def _moving(self) -> list[Any]:
        """What the optimizer changes, of this rank's, where it is all on one device."""
        optimizer = None if self._optimizer is None else self._optimizer()
        own = {id(one) for one in of(optimizer)} if optimizer is not None else set()
        tensors = [own_part(one) for _, one in self._parameters.living() if id(one) in own]
        return tensors if len({one.device for one in tensors}) == 1 else []

    def _tell_gradients(self) -> bool:
        """Tell the norm of the gradients and of layers that are asked for; whether it is still on a device."""
        counted = self._parameters.living()
        living = [(name, one.grad) for name, one in counted if one.grad is not None]
        if not living:
            if self._parameters.sharded and not counted:  # others have the same part, and count it
                self._run._beside({"grad_norm_local_squared": 0.0, "param_norm_local_squared": 0.0})  # noqa: SLF001  its own
            return False
        names = [name for name, _ in living]
        norms = Norms([own_part(one) for _, one in living])
        sharded = self._parameters.sharded
        key = "grad_norm_local_squared" if sharded else "grad_norm"
        beside = self._run._joins  # noqa: SLF001  its own
        values = {}
        if beside is None or not {"grad_norm", key} & beside.own:
            values[key] = norms.squared if sharded else norms.whole
        for layer, places in self._layers(names).items():
            values[f"{key}/{layer}"] = norms.of(places, squared=sharded)
        self._run._beside(values)  # noqa: SLF001  the same
        return self._look_for_wrong(names, norms)

    def _layers(self, names: Sequence[str]) -> dict[str, list[int]]:
        if not self._all_layers and not self._patterns:
            return {}
        wanted = self._parameters.layers(None if self._all_layers else self._patterns)
        return dict(spans(wanted, names))

    def _tell_weights(self) -> bool:
        """Tell the norm of the weights and how far they have moved; whether it is still on a device."""
        before, self._before = self._before, None
        living = [own_part(one) for _, one in self._parameters.living()]
        moving = self._moving()
        if before is None or not living or not moving:
            return False
        norms, after = Norms(living), Moved.sampled(moving, self._roots)
        values = (
            {"param_norm_local_squared": norms.squared} if self._parameters.sharded else {"param_norm": norms.whole}
        )
        if after.numbers.shape == before.numbers.shape:
            values["update_ratio"] = before.ratio(after)
        self._run._beside(values)  # noqa: SLF001  its own
        return norms.each is None

    def _look_for_wrong(self, names: list[str], norms: Norms) -> bool:
        count, first = norms.wrong()
        if not is_on_device(count):
            self._arrived(0, (self._steps, names), {"count": count, "first": first})
            return False
        if self._device is None:
            self._device = DeviceScalars(self._arrived, lambda _: None)
        self._device.defer(monotonic_ns(), (self._steps, names), {"count": count, "first": first})
        return True

    def _arrived(self, _: int, of: tuple[int, list[str]], found: dict[str, float]) -> None:
        """Say which layer is the first whose gradient is not finite, once until all are finite again."""
        (steps, names), count = of, int(found["count"])
        was, self._bad = self._bad, count > 0
        if not count or was:
            return
        name = names[int(found["first"])]
        fields: dict[str, Any] = {
            "layer": name.rpartition(".")[0] or name,
            "parameter": name,
            "parameters": count,
            "of": len(names),
        }
        if self._steps > steps:
            fields["steps_ago"] = self._steps - steps
        self._run._say_beside(lambda: self._run.event("nonfinite_gradients", **fields))  # noqa: SLF001  its own


_over: list[Any] = []
"""Hooks that have ended within a step: PyTorch goes through them there, so that they can be taken away only later."""


def _sweep() -> None:
    while _over:
        _over.pop().remove()
