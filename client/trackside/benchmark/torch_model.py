"""Models of PyTorch as targets: variants and sizes. Only a process that measures one imports this."""

from __future__ import annotations

import re
import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trackside.benchmark.rounds import Function, TargetError, arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside.benchmark.messages import Load

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
NAMES = ("fp32", "bf16", "fp16", "bf16-weights", "fp16-weights", "int8-dynamic", "pruned-PERCENT")
COMPILED = "+compile"


class Model(Function):
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
    elif (percent := re.fullmatch(r"pruned-(\d{1,2})", name)) is not None:
        _prune(model, int(percent[1]) / 100)
    elif dtype is None and weights is not None:
        model = model.to(weights)
    elif name and dtype is None:
        raise TargetError(f"variant {name} is none of {', '.join(NAMES)}, and the factory has no parameter variant")
    return (torch.compile(model) if compiled else model), dtype


def _quantized(model: nn.Module, device: str) -> nn.Module:
    if device != "cpu":
        raise TargetError(
            f"int8-dynamic runs on the CPU alone, not on {device}: add --device cpu, or quantize in a factory with a "
            "parameter variant"
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
