"""Watches a model's gradients and weights where its optimizer steps: no hook on an inner module, no collective, no wait.

Measuring takes time that the training would else have, so that it is done each so many steps that it takes a part of
the time that is bounded: see `OverheadBudget`.

Gradients are read before the step, since an optimizer may change them in it, as SGD with Nesterov's momentum does; and
after it where they are what they should be only then: made by a closure, or unscaled by a fused optimizer for
`torch.amp.GradScaler`. Of a step that such a scaler skips no gradient is told: infinities are how it finds its scale.
"""

from __future__ import annotations

import weakref
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trackside.log import warn
from trackside.pending_values import STEP_SKIPPED
from trackside.pytorch.device_scalars import is_on_device
from trackside.pytorch.norms import Norms, WeightSample
from trackside.pytorch.overhead_budget import OverheadBudget
from trackside.pytorch.parameters import Parameters, UncountableError, gradient, of, own_part, spans
from trackside.pytorch.step_stages import StepStages, unwrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trackside.run import Run

    Named = list[tuple[str, Any]]

GRADIENTS_SHARE, WEIGHTS_SHARE = 0.001, 0.0005
"""So much of the time may be spent on gradients, and on weights."""

UNWATCHED = "what is watched of the model ends here, training goes on"


class Watcher:
    """Measures a model for a run until either is gone, or the run has ended, or it is watched anew.

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

        self._torch, self._is_compiling = torch, torch.compiler.is_compiling
        self._run = run
        self._optimizer: weakref.ref[Any] | None = None
        self._patterns = (layers,) if isinstance(layers, str) else tuple(layers or ())
        self._gradients, self._weights = OverheadBudget(GRADIENTS_SHARE), OverheadBudget(WEIGHTS_SHARE)
        self._all_layers = 0
        self._asked = run._session.layers  # noqa: SLF001  its own
        self._roots: dict[Any, Any] = {}
        self._before: WeightSample | None = None
        self._steps = self._wakes = self._measured = 0
        """How many are over, when there is something to do, and of which one gradients were measured last."""
        self._own = self._sampling = 0.0
        self._since: tuple[int, float] | None = None
        self._bad = self._ended = self._late = False
        self._countable = True
        self._timings: dict[OverheadBudget, tuple[Any, Any, float]] = {}
        self._stages: StepStages | None = None
        self._handles: dict[str, Any] = {}
        try:
            self._parameters = Parameters(model, run.rank)
            if run._sender is not None:  # noqa: SLF001  the same
                self._attach(model, optimizer)
        except Exception as error:  # noqa: BLE001  a model of the user's own kind may raise anything
            self._fail(error)

    def layers_for(self, steps: int) -> None:
        """Tell the gradient norms of all layers at each of so many steps, from the one after the next on."""
        self._all_layers = max(0, int(steps))
        self._wakes = 0

    def stop(self) -> None:
        """Measure and time no more; not to be called by a hook of an optimizer."""
        if self._stages is not None:
            self._stages.stop()
        self._end_it()
        _sweep()

    def _end_it(self) -> None:
        self._ended, self._before = True, None  # events stay: a forked child may free nothing of CUDA's
        _over.extend(self._handles.values())
        self._handles = {}

    def _attach(self, model: Any, optimizer: Any) -> None:
        _sweep()
        self._run._made_beside().know("grad_norm")  # noqa: SLF001  its own
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
        self._time(model, optimizer)  # its hook comes last: what we do before a step is no part of the optimizer's time

    def _time(self, model: Any, optimizer: Any) -> None:
        try:
            self._stages = StepStages(self._run, model, optimizer)
            self._run._time(self._stages)  # noqa: SLF001  its own
        except Exception as error:  # noqa: BLE001  a model of the user's own kind may take no hooks
            warn(f"the stages of the model's steps are not timed: {type(error).__name__}: {str(error)[:200]}")

    def _pre_hook(self, optimizer: Any, args: Sequence[Any] = (), named: Mapping[str, Any] | None = None) -> None:
        """Before a step."""
        if not self._is_compiling():
            self._safely(self._begin, optimizer, args, named or {})

    def _any_pre_hook(self, optimizer: Any, *given: Any) -> None:
        """Before a step of any optimizer, until it is known which one counts."""
        if self._optimizer is None or self._optimizer() is None:
            self._pre_hook(optimizer, *given)

    def _post_hook(self, optimizer: Any, *_: Any) -> None:
        """After a step; of most of them there is nothing to say, and this alone is done."""
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
                stages.optimizer_is_over()
            elif self._steps < self._wakes and self._run._session.layers is self._asked:  # noqa: SLF001  its own
                return
        self._safely(self._end, optimizer)

    def _safely(self, work: Callable[..., None], optimizer: Any, *more: Any) -> None:
        try:
            if self._ended:
                return
            stages = self._stages
            over = stages is not None and stages.stopped
            if over or self._run._sender is None or self._parameters.gone:  # noqa: SLF001  its own
                self._end_it()
            elif stages is not None and stages.in_backward:  # a step for each gradient as it comes
                return
            elif self._is_watched(optimizer) and not self._is_captured():
                with self._torch.no_grad():
                    work(optimizer, *more)
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
            if "before" in self._handles:  # of one that is gone
                self._handles.pop("before").remove()
            if self._stages is not None:
                self._stages.follow(optimizer)
        return known is optimizer

    def _is_captured(self) -> bool:
        cuda = self._torch.cuda
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())

    def _wait_for_step(self) -> None:
        """Be called before the next step if there is something to do before it."""
        optimizer = None if self._optimizer is None or self._ended else self._optimizer()
        waits = self._is_due(self._steps + 1) and "before any" not in self._handles
        if waits and optimizer is not None and "before" not in self._handles:
            self._handles["before"] = optimizer.register_step_pre_hook(self._pre_hook)
            if self._stages is not None:
                self._stages.follow_others()
        elif not waits and "before" in self._handles:
            self._handles.pop("before").remove()

    def _is_due(self, step: int) -> bool:
        return bool(self._gradients.due(step) or self._weights.due(step) or self._all_layers or self._patterns)

    def _begin(self, optimizer: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        self._before = None
        closure = args[1] if len(args) > 1 else named.get("closure")
        self._late = closure is not None or getattr(optimizer, "grad_scale", None) is not None
        if not self._late:
            self._measure_gradients(optimizer, self._steps + 1)
        if self._weights.due(self._steps + 1):
            sampled = perf_counter()
            if tensors := self._moving(self._parameters.living()):
                self._before = WeightSample.sampled(tensors, self._roots)
            self._sampling = perf_counter() - sampled
            self._own += self._sampling

    def _end(self, optimizer: Any) -> None:
        stages = self._stages
        if (
            "before any" in self._handles
        ):  # from here on it is known which; PyTorch may go through these in another thread
            _over.append(self._handles.pop("before any"))
        if self._late:
            self._late = False
            self._measure_gradients(optimizer, self._steps)
        if self._before is not None:
            self._measure(self._weights, self._tell_weights, self._sampling)
        self._take_time()
        self._poll()
        asked = self._run._session.layers  # noqa: SLF001  its own
        if asked is not self._asked:
            self._asked, self._all_layers = asked, asked[1]
        if stages is not None and self._steps >= stages.next:
            stages.step(self._steps)
        self._wait_for_step()
        paces = [self._gradients.after(self._steps) - 1, self._weights.after(self._steps) - 1]
        ends = [self._steps + 1] if "before" in self._handles else []
        self._wakes = min(*paces, *ends, *([] if stages is None else [stages.next]))

    def _take_time(self) -> None:
        """How long steps have taken since this was asked last, without what is done here."""
        now = perf_counter()
        if self._since is not None and self._steps > self._since[0]:
            seconds = (now - self._since[1] - self._own) / (self._steps - self._since[0])
            self._gradients.took(seconds)
            self._weights.took(seconds)
        self._since, self._own = (self._steps, now), 0.0

    def _measure_gradients(self, optimizer: Any, step: int) -> None:
        """Measure them if it is time to, but for those of a step that a scaler skips."""
        if self._countable and (self._gradients.due(step) or self._all_layers or self._patterns):
            self._measured = step
            found = getattr(optimizer, "found_inf", None)
            waits = is_on_device(found)
            if found is None or waits or not float(found):
                skips = found if waits else None
                self._measure(self._gradients, lambda living: self._tell_gradients(living, skips))
        self._all_layers = max(0, self._all_layers - 1)

    def _measure(self, pace: OverheadBudget, tell: Callable[[Named], Any], before: float = 0.0) -> None:
        """Measure, and tell the pace how long that took, *before* it included; of a device also its own time."""
        began = perf_counter()
        living = self._parameters.living()
        device = None if pace in self._timings else next((one.device for _, one in living if one.is_cuda), None)
        first = None if device is None else self._mark(device)
        on_device = tell(living)
        spent = before + perf_counter() - began
        self._own += spent - before
        if not on_device:
            pace.spent(spent)
        elif device is not None:
            self._timings[pace] = first, self._mark(device), spent

    def _mark(self, device: Any) -> Any:
        """An event there, and nowhere else: it would take a GPU's memory that the training does not use."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record(self._torch.cuda.current_stream(device))
        return event

    def _poll(self) -> None:
        """Take what has arrived from a device."""
        if self._run._joins is not None:  # noqa: SLF001  its own
            self._run._joins.poll()  # noqa: SLF001  the same
        for pace, (first, last, spent) in tuple(self._timings.items()):
            if last.query():
                del self._timings[pace]
                pace.spent(max(spent, first.elapsed_time(last) / 1000))

    def _moving(self, living: Named) -> list[Any]:
        """What the optimizer changes, of this rank's, where it is all on one device."""
        optimizer = None if self._optimizer is None else self._optimizer()
        own = {id(one) for one in of(optimizer)} if optimizer is not None else set()
        tensors = [own_part(one) for _, one in living if id(one) in own]
        return tensors if len({one.device for one in tensors}) == 1 else []

    def _tell_gradients(self, counted: Named, skips: Any) -> bool:
        """Tell the norm of the gradients and of layers that are asked for; whether it is still on a device."""
        trained = [(name, one) for name, one in counted if one.grad is not None]
        if not trained:
            if self._parameters.sharded and not counted:  # others have the same part, and count it
                self._run._beside({"grad_norm_local_squared": 0.0, "param_norm_local_squared": 0.0})  # noqa: SLF001  its own
            return False
        try:
            norms = Norms([gradient(name, one) for name, one in trained])
        except UncountableError as error:
            self._countable = False
            warn(f"gradients are not measured: {error}")
            return False
        names, values = [name for name, _ in trained], {}
        sharded = self._parameters.sharded
        key = "grad_norm_local_squared" if sharded else "grad_norm"
        beside = self._run._joins  # noqa: SLF001  its own
        if beside is None or not {"grad_norm", key} & beside.own:
            values[key] = norms.squared if sharded else norms.whole
        for layer, places in self._layers(names).items():
            values[f"{key}/{layer}"] = norms.of(places, squared=sharded)
        if skips is not None:
            values[STEP_SKIPPED] = skips
        self._run._beside(values)  # noqa: SLF001  the same
        return self._look_for_wrong(names, norms, skips)

    def _layers(self, names: Sequence[str]) -> dict[str, list[int]]:
        if not self._all_layers and not self._patterns:
            return {}
        device = self._run._device  # noqa: SLF001  its own
        if device is not None and device.is_crowded:  # the user's own values find room
            return {}
        wanted = self._parameters.layers(None if self._all_layers else self._patterns)
        return dict(spans(wanted, names))

    def _tell_weights(self, counted: Named) -> bool:
        """Tell the norm of the weights and how far they have moved; whether it is still on a device."""
        before, self._before = self._before, None
        moving = self._moving(counted)
        if before is None or not moving:
            return False
        norms, after = Norms([own_part(one) for _, one in counted]), WeightSample.sampled(moving, self._roots)
        values = (
            {"param_norm_local_squared": norms.squared} if self._parameters.sharded else {"param_norm": norms.whole}
        )
        if after.numbers.shape == before.numbers.shape:
            values["update_ratio"] = before.ratio(after)
        self._run._beside(values)  # noqa: SLF001  its own
        return norms.each is None

    def _look_for_wrong(self, names: list[str], norms: Norms, skips: Any) -> bool:
        count, first = norms.wrong()
        step, asked = self._measured, {"count": count, "first": first}
        if not is_on_device(count):
            self._arrived(step, names, asked)
            return False
        if skips is not None:
            asked["skips"] = skips
        self._run._ask_beside(asked, lambda found: self._arrived(step, names, found))  # noqa: SLF001  its own
        return True

    def _arrived(self, step: int, names: list[str], found: dict[str, float]) -> None:
        """Say which layer is the first whose gradient is not finite, once until all are finite again."""
        if found.get("skips") or "first" not in found:
            return
        count = int(found["count"])
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
        if self._steps > step:
            fields["steps_ago"] = self._steps - step
        self._run._say_beside(lambda: self._run.event("nonfinite_gradients", **fields))  # noqa: SLF001  its own


_over: list[Any] = []
"""Hooks that have ended within a step: PyTorch goes through them there, so that they can be taken away only later."""


def _sweep() -> None:
    while _over:
        _over.pop().remove()
