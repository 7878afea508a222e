"""Variants of a model: number formats, quantization, pruning, compilation."""

from __future__ import annotations

import re
import warnings
from typing import Any

import torch
from torch import nn

from trackside.benchmark.failures import TargetError

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
NAMES = "fp32, bf16, fp16, bf16-weights, fp16-weights, int8-dynamic, torchao-int8, torchao-int8-dynamic, torchao-int4, pruned-PERCENT"
COMPILED = "+compile"


def apply(model: nn.Module, name: str, device: str) -> tuple[nn.Module, torch.dtype | None]:
    """Return a variant of a model, which this may change, and the type to autocast to; None for no autocast.

    Args:
        model: The model, in evaluation mode, on its device.
        name: One of `NAMES`, with `COMPILED` behind it for torch.compile; empty or ``compile`` for the model's own format.
        device: ``cpu`` or ``cuda``.

    Raises:
        TargetError: There is no such variant, not on this device, or its library is missing.
    """
    name, compiled, _ = (*name.partition(COMPILED),) if name != "compile" else ("", "compile", "")
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
    if name.startswith("torchao-"):
        return _by_torchao(model, name)
    if (percent := re.fullmatch(r"pruned-(\d{1,2})", name)) is not None:
        return _pruned(model, int(percent[1]) / 100)
    raise TargetError(f"variant {name} is none of {NAMES}, and the factory has no parameter variant")


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
    configurations: dict[str, Any] = {
        "torchao-int8": "Int8WeightOnlyConfig",
        "torchao-int8-dynamic": "Int8DynamicActivationInt8WeightConfig",
        "torchao-int4": "Int4WeightOnlyConfig",
    }
    if name not in configurations:
        raise TargetError(f"variant {name} is none of {', '.join(configurations)}")
    quantization.quantize_(model, getattr(quantization, configurations[name])())
    return model


def _pruned(model: nn.Module, share: float) -> nn.Module:
    """Return the model without this share of its weights, the smallest of all layers (magnitude pruning)."""
    from torch.nn.utils import prune

    layers = [(one, "weight") for one in model.modules() if isinstance(one, nn.Linear | nn.Conv1d | nn.Conv2d)]
    prune.global_unstructured(layers, prune.L1Unstructured, amount=share)
    for layer, weight in layers:
        prune.remove(layer, weight)
    return model
