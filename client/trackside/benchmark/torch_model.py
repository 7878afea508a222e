"""Models of PyTorch as targets: variants, inputs, weights and sizes. Only a process that measures one imports this."""

from __future__ import annotations

import itertools
import re
import warnings
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trackside.benchmark.rounds import SEED, TargetError, arguments, made_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trackside.benchmark.messages import Load

LENGTH = 32  # of generated sequences, if no length is given
PIXELS = 224  # of the sides of generated images
WEIGHTS = ("*.safetensors", "*.pt", "*.pth", "*.bin", "*.ckpt")
PREFIXES = ("module.", "_orig_mod.", "model.")  # of names of weights, by DDP, torch.compile and Lightning
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
TORCHAO = {
    "torchao-int8": "Int8WeightOnlyConfig",
    "torchao-int8-dynamic": "Int8DynamicActivationInt8WeightConfig",
    "torchao-int4": "Int4WeightOnlyConfig",
}
NAMES = ("fp32", "bf16", "fp16", "bf16-weights", "fp16-weights", "int8-dynamic", *TORCHAO, "pruned-PERCENT")
COMPILED = "+compile"


class Model:
    """A model in evaluation mode.

    Args:
        model: The model, which this changes.
        inputs: Example inputs, or a function of batch and length that makes them; None to generate some.
        variant: One of `NAMES`, see `apply`; empty for the model as it is.
        device: Device; empty for the GPU if there is one.
        file: Where its weights are from, if that is a file.
    """

    def __init__(
        self, model: nn.Module, inputs: Any = None, variant: str = "", device: str = "", file: Path | None = None
    ) -> None:
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._source = model  # generated inputs follow its layers, which a variant may wrap
        self._inputs = inputs
        self._parameters = sum(parameter.numel() for parameter in model.parameters())
        with suppress(NotImplementedError):  # an exported program has no modes
            model.eval()
        self._model, self._dtype = apply(model.to(self._device), variant, self._device.type)
        self._file = None if variant or file is None or not file.exists() else file

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

    def made(self, load: Load) -> Any:
        """Return inputs for a load as they are made, which may be others each time.

        Raises:
            TargetError: The model does not show which inputs it needs.
        """
        if self._inputs is None:
            return generated(self._source, max(1, load.batch), load.length)
        if callable(self._inputs):
            return made_inputs(self._inputs, load)
        return mapped(self._inputs, lambda tensor: _resized(tensor, load))

    def placed(self, inputs: Any) -> Any:
        """Return inputs on the model's device and in its type."""
        kind = next((weight.dtype for weight in self._model.parameters() if weight.dtype.is_floating_point), None)
        half = kind if kind in {torch.float16, torch.bfloat16} else None
        return mapped(inputs, lambda tensor: tensor.to(self._device, half if tensor.is_floating_point() else None))

    def facts(self) -> dict[str, float]:
        """Return its parameters, the bytes of its weights in memory and on disk, and the device's peak memory."""
        facts = {"parameters": float(self._parameters), "weights_bytes": _weights_bytes(self._model.state_dict())}
        facts["disk_bytes"] = _stored_bytes(self._model) if self._file is None else _file_bytes(self._file)
        if self._device.type == "cuda":
            facts["device_memory_bytes"] = float(torch.cuda.max_memory_allocated(self._device))
        return facts


def apply(model: nn.Module, name: str, device: str) -> tuple[nn.Module, torch.dtype | None]:
    """Return a variant of a model, which this may change, and the type to autocast to; None for no autocast.

    Args:
        model: The model, in evaluation mode, on its device.
        name: One of `NAMES`, with `COMPILED` behind it for torch.compile; empty or ``compile`` for the model's own format.
        device: ``cpu`` or ``cuda``.

    Raises:
        TargetError: There is no such variant, not on this device, or its library is missing.
    """
    name, compiled, _ = name.partition(COMPILED) if name != "compile" else ("", name, "")
    dtype = HALVES.get(name)
    if dtype is None:
        model = _changed(model, name, device)
    return (torch.compile(model) if compiled else model), dtype


def _changed(model: nn.Module, name: str, device: str) -> nn.Module:
    if not name:
        return model
    if name == "fp32":
        return model.float()
    if name.endswith("-weights") and (dtype := HALVES.get(name.removesuffix("-weights"))) is not None:
        return model.to(dtype)
    if name == "int8-dynamic":
        return _quantized(model, device)
    if name in TORCHAO:
        return _by_torchao(model, name)
    if (percent := re.fullmatch(r"pruned-(\d{1,2})", name)) is not None:
        return _pruned(model, int(percent[1]) / 100)
    raise TargetError(f"variant {name} is none of {', '.join(NAMES)}, and the factory has no parameter variant")


def _quantized(model: nn.Module, device: str) -> nn.Module:
    if device != "cpu":
        raise TargetError(
            f"int8-dynamic runs on the CPU alone, not on {device}: add --device cpu, or use torchao-int8-dynamic"
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


def _by_torchao(model: nn.Module, name: str) -> nn.Module:
    try:
        from torchao import quantization
    except ImportError:
        raise TargetError(f"{name} needs torchao: pip install torchao") from None
    quantization.quantize_(model, getattr(quantization, TORCHAO[name])())
    return model


def _pruned(model: nn.Module, share: float) -> nn.Module:
    """Return the model without this share of its weights, the smallest of all layers (magnitude pruning)."""
    from torch.nn.utils import prune

    layers = [(one, "weight") for one in model.modules() if isinstance(one, nn.Linear | nn.Conv1d | nn.Conv2d)]
    prune.global_unstructured(layers, prune.L1Unstructured, amount=share)
    for layer, weight in layers:
        prune.remove(layer, weight)
    return model


def generated(model: nn.Module, batch: int, length: int) -> torch.Tensor:
    """Return random inputs for the first layer of a model: tokens, features, or images.

    Raises:
        TargetError: The layer is another one.
    """
    random = torch.Generator().manual_seed(SEED)
    for layer in model.modules():
        if isinstance(layer, nn.Embedding):
            return torch.randint(layer.num_embeddings, (batch, length or LENGTH), generator=random)
        if isinstance(layer, nn.Linear):
            return torch.randn(
                (batch, length, layer.in_features) if length else (batch, layer.in_features), generator=random
            )
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            sides = len(layer.kernel_size)
            return torch.randn(batch, layer.in_channels, *[length or PIXELS] * sides, generator=random)
        if isinstance(layer, nn.RNNBase):
            return torch.randn(batch, length or LENGTH, layer.input_size, generator=random)
    raise TargetError(f"{type(model).__name__} does not show which inputs it needs: return (model, inputs)")


def read_model(path: Path) -> nn.Module:
    """Return a whole model: a directory of Transformers, a program of torch.export (.pt2), or of TorchScript.

    Raises:
        TargetError: It is none of them. The libraries raise what they find.
    """
    if (path / "config.json").exists():
        import transformers

        config = transformers.AutoConfig.from_pretrained(path)
        named = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModel)
        model: nn.Module = named.from_pretrained(path)
        return model
    if path.suffix == ".pt2":
        exported: nn.Module = torch.export.load(path).module()
        return exported
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is deprecated, and its files are in use
            script: nn.Module = torch.jit.load(path, map_location="cpu")
    except RuntimeError:
        raise TargetError(f"{path} has weights without a model; write MODULE:FACTORY --checkpoint {path}") from None
    return script


def read_weights(model: nn.Module, path: Path) -> None:
    """Load the weights of a checkpoint into a model; nothing but tensors is unpickled.

    Raises:
        TargetError: There are none, or they are those of another model.
    """
    files = [path] if path.is_file() else [file for pattern in WEIGHTS for file in sorted(path.rglob(pattern))]
    for file in files:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            found = load_file(file)
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)
        for weights in _states(found):
            if not model.load_state_dict(weights, strict=False).missing_keys:
                return
    raise TargetError(f"{path}: no weights of a {type(model).__name__}")


def _states(found: Any) -> Iterator[dict[str, Any]]:
    """Yield the state dictionaries in a checkpoint: itself, or one under a name such as ``model``."""
    if isinstance(found, dict):
        if found and all(isinstance(value, torch.Tensor) for value in found.values()):
            prefix = next((one for one in PREFIXES if all(name.startswith(one) for name in found)), "")
            yield {name.removeprefix(prefix): value for name, value in found.items()}
        for value in found.values():
            yield from _states(value)


def _resized(tensor: torch.Tensor, load: Load) -> torch.Tensor:
    """Return a tensor with other numbers of rows and of positions, by repeating them."""
    if load.batch and tensor.dim():
        tensor = tensor[torch.arange(load.batch) % len(tensor)]
    is_sequence = tensor.dim() == 3 or (tensor.dim() == 2 and not tensor.is_floating_point())
    return tensor[:, torch.arange(load.length) % tensor.shape[1]] if load.length and is_sequence else tensor


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return inputs with each tensor changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict) or hasattr(value, "items"):
        return {name: mapped(one, change) for name, one in value.items()}
    return type(value)(mapped(one, change) for one in value) if isinstance(value, tuple | list) else value


def _weights_bytes(value: Any) -> float:
    """Return the bytes of all tensors in a state, each storage once; packed ones are in tuples."""
    seen: dict[int, int] = {}

    def visit(one: Any) -> None:
        if isinstance(one, torch.Tensor):
            address = one.data_ptr() if one.layout == torch.strided and one.numel() else -1
            seen[address if address > 0 else -len(seen) - 1] = one.numel() * one.element_size()
        elif isinstance(one, dict | tuple | list):
            for part in one.values() if isinstance(one, dict) else one:
                visit(part)

    visit(value)
    return float(sum(seen.values()))


class _Counter:
    """A file that only counts."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: Any) -> int:
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing."""


def _stored_bytes(model: nn.Module) -> float:
    counter = _Counter()
    torch.save(model.state_dict(), counter)
    return float(counter.size)


def _file_bytes(path: Path) -> float:
    return float(sum(file.stat().st_size for file in itertools.chain([path], path.rglob("*")) if file.is_file()))
