"""Models of PyTorch as targets, and how far their outputs agree. Only a process that measures one imports this."""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from trackside.benchmark.messages import Load, ProcessAnswer
from trackside.benchmark.results import LEAST_PARTS, Interval, mean
from trackside.benchmark.rounds import Function, TargetError, arguments, reason
from trackside.distributions import proportion_interval

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
NAMES = ("fp32", "bf16", "fp16", "bf16-weights", "fp16-weights", "int8-dynamic", "pruned-PERCENT")
COMPILED = "+compile"
_PRUNED = re.compile(r"pruned-(\d{1,2})")


class EvaluatedModel(Function):
    """A model in evaluation mode.

    Args:
        model: The model, which this changes.
        inputs: See `Function`; tensors on any device.
        variant: One of `NAMES`, see `apply`; empty for the model as it is.
        device: Device; empty for the GPU if there is one.
    """

    def __init__(self, model: nn.Module, inputs: Any = None, variant: str = "", device: str = "") -> None:
        super().__init__(self, inputs)
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._parameters = sum(parameter.numel() for parameter in model.parameters())
        self._model, self._dtype = apply(model.eval().to(self._device), variant, self._device.type)

    def prepare(self, load: Load) -> Callable[[], object]:
        """Return the call for a load, which ends when the device has finished."""
        args, kwargs = arguments(self.placed(self.made(load)))
        device, waits = self._device, self._device.type == "cuda"

        def call() -> object:
            output = self(*args, **kwargs)
            if waits:
                torch.cuda.synchronize(device)
            return output

        return call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output for inputs on its device."""
        casts = nullcontext() if self._dtype is None else torch.autocast(self._device.type, self._dtype)
        with torch.inference_mode(), casts:
            return self._model(*args, **kwargs)

    def placed(self, inputs: Any) -> Any:
        """Return inputs on the model's device and in its type."""
        kind = next((weight.dtype for weight in self._model.parameters() if weight.dtype.is_floating_point), None)
        half = kind if kind in {torch.float16, torch.bfloat16} else None
        return mapped(inputs, lambda tensor: tensor.to(self._device, half if tensor.is_floating_point() else None))

    def facts(self) -> dict[str, float]:
        """Return its parameters, the bytes of its weights, and the device's peak memory."""
        sizes = {_place(one) or -number: one.nbytes for number, one in enumerate(tensors(self._model.state_dict()), 1)}
        facts = {"parameters": float(self._parameters), "weights_bytes": float(sum(sizes.values()))}
        if self._device.type == "cuda":
            facts["device_memory_bytes"] = float(torch.cuda.max_memory_allocated(self._device))
        return facts


def is_known(name: str) -> bool:
    """Return whether `apply` makes the variant, so that it means the same with each factory."""
    word, compiled, _ = name.partition(COMPILED)
    return word in NAMES or bool(_PRUNED.fullmatch(word)) or bool(compiled and not word)


def apply(model: nn.Module, name: str, device: str) -> tuple[nn.Module, torch.dtype | None]:
    """Return a variant of a model, which this may change, and the type to autocast to; None for no autocast.

    Args:
        model: The model, in evaluation mode, on its device.
        name: One of `NAMES`, with `COMPILED` behind it for torch.compile; empty for the model's own format.
        device: ``cpu`` or ``cuda``.

    Raises:
        TargetError: There is no such variant, or not on this device.
    """
    name, compiled, _ = name.partition(COMPILED)
    dtype, weights = HALVES.get(name), HALVES.get(name.removesuffix("-weights"))
    if name == "fp32":
        model = model.float()
    elif name == "int8-dynamic":
        model = _quantized(model, device)
    elif (percent := _PRUNED.fullmatch(name)) is not None:
        _prune(model, int(percent[1]) / 100)
    elif dtype is None and weights is not None:
        model = model.to(weights)
    elif name and dtype is None:
        raise TargetError(f"variant {name} is none of {', '.join(NAMES)}, and the factory has no parameter variant")
    return (torch.compile(model) if compiled else model), dtype


def _quantized(model: nn.Module, device: str) -> nn.Module:
    if device != "cpu":
        raise TargetError(
            f"int8-dynamic runs on the CPU alone, not on {device}: add --device cpu, or quantize in a factory "
            "with a parameter variant, for another word"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated in favour of torchao, which not everybody has
        changed: nn.Module = torch.ao.quantization.quantize_dynamic(
            model, {nn.Linear, nn.LSTM, nn.GRU}, dtype=torch.qint8
        )
    for layer in changed.modules():
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0  # no fused path, which reads weights that quantized layers do not have
    return changed


def _prune(model: nn.Module, share: float) -> None:
    """Set this share of the weights to zero, the smallest of all layers (magnitude pruning)."""
    from torch.nn.utils import prune

    layers = [(one, "weight") for one in model.modules() if isinstance(one, nn.Linear | nn.Conv1d | nn.Conv2d)]
    prune.global_unstructured(layers, prune.L1Unstructured, amount=share)
    for layer, weight in layers:
        prune.remove(layer, weight)


def mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return inputs with each tensor changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict) or hasattr(value, "items"):
        return {name: mapped(one, change) for name, one in value.items()}
    return type(value)(mapped(one, change) for one in value) if isinstance(value, tuple | list) else value


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a state or in inputs, and the parts of quantized ones."""
    if hasattr(value, "__tensor_flatten__"):
        yield from tensors([getattr(value, name) for name in value.__tensor_flatten__()[0]])
    elif isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | tuple | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors(part)


def _place(tensor: torch.Tensor) -> int:
    """Return where the data of a tensor are, which tied weights share; 0 if it has no such place."""
    return tensor.data_ptr() if tensor.layout == torch.strided and tensor.numel() else 0


ROWS, BATCH = 64, 4  # inputs, and those of a call
FEWEST = 59  # inputs of which 95 % of all stay below the largest with 95 % confidence (Wilks 1941)


def outputs(model: EvaluatedModel, inputs: Any) -> list[torch.Tensor]:
    """Return the outputs of a model for each row of its inputs."""
    found: list[torch.Tensor] = []
    placed = model.placed(inputs)
    rows = max((len(tensor) for tensor in tensors(placed) if tensor.dim()), default=1)
    for begin in range(0, rows, BATCH):
        args, kwargs = arguments(mapped(placed, partial(_rows, rows, begin)))
        found.extend(_tensor(model(*args, **kwargs)).float())
    return found


def agreements(models: Mapping[str, EvaluatedModel], length: int, rows: int = ROWS) -> Iterator[ProcessAnswer]:
    """Yield the `agreement` of each model with the first one, or in one line why it has none."""
    reference: list[torch.Tensor] | None = None
    inputs: Any = None
    for name, model in models.items():
        try:
            if reference is None:
                inputs = model.made(Load(rows, length)) if callable(model.inputs) else model.inputs
            own = outputs(model, inputs)
            if reference is not None:
                found = agreement(reference, own)
                yield ProcessAnswer(agreement={name: {measure: one._asdict() for measure, one in found.items()}})
            reference = reference or own
        except (Exception, SystemExit) as error:  # noqa: BLE001  the user's code may raise anything
            yield ProcessAnswer(note=f"{name}: its outputs cannot be compared: {reason(error)}")
            if reference is None:
                return


def agreement(reference: Sequence[torch.Tensor], variant: Sequence[torch.Tensor]) -> dict[str, Interval]:
    """Return by measure how the outputs of a variant agree with the reference.

    ``largest_difference`` of all outputs, whose upper end covers 95 % of such inputs if there are 59 or more; ``cosine``,
    the mean cosine similarity of an input's output; and if the outputs are logits, ``top1``, the share of equal first
    places; ``kl``, the Kullback-Leibler divergence from the reference in nats.
    """
    pairs = list(zip(reference, variant, strict=True))
    found = {
        "largest_difference": _largest([float((one - other).abs().max()) for one, other in pairs]),
        "cosine": _mean(
            [float(functional.cosine_similarity(one.flatten(), other.flatten(), 0)) for one, other in pairs]
        ),
    }
    if pairs[0][0].dim() and pairs[0][0].shape[-1] > 1:
        found["top1"] = _share([float((one.argmax(-1) == other.argmax(-1)).float().mean()) for one, other in pairs])
        found["kl"] = _mean([_divergence(one, other) for one, other in pairs])
    return found


def _divergence(one: torch.Tensor, other: torch.Tensor) -> float:
    own, theirs = functional.log_softmax(one, -1), functional.log_softmax(other, -1)
    return max(0.0, float((own.exp() * (own - theirs)).sum(-1).mean()))


def _rows(rows: int, begin: int, tensor: torch.Tensor) -> torch.Tensor:
    """Return the next rows of a tensor that has one for each input."""
    return tensor[begin : begin + BATCH] if tensor.dim() and len(tensor) == rows else tensor


def _tensor(output: Any) -> torch.Tensor:
    """Return the logits of an output, or else its first tensor."""
    if isinstance(output, torch.Tensor):
        return output
    named = getattr(output, "logits", None)
    if isinstance(named, torch.Tensor):
        return named
    parts = output.values() if hasattr(output, "values") else output
    return next(part for part in parts if isinstance(part, torch.Tensor))


def _mean(values: Sequence[float]) -> Interval:
    return mean(fmean(values), values, f"{len(values)} of {LEAST_PARTS} inputs")


def _share(values: Sequence[float]) -> Interval:
    """Return a mean share: exact for inputs that agree as a whole or not at all, else by what differs between them."""
    if all(value in {0.0, 1.0} for value in values):
        return Interval(fmean(values), *proportion_interval(round(sum(values)), len(values)))
    return mean(fmean(values), values, f"{len(values)} of {LEAST_PARTS} inputs", 0.0, 1.0)


def _largest(values: Sequence[float]) -> Interval:
    if len(values) < FEWEST:
        return Interval(max(values), None, None, f"{len(values)} of {FEWEST} inputs")
    return Interval(max(values), min(values), max(values))
