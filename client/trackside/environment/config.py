"""Write a run's configuration as the JSON text that is stored with the run."""

import json
import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import isfinite
from types import SimpleNamespace
from typing import Any

from trackside.packing import text_of
from trackside.training_log import warn

CONFIG_BYTES = 1024 * 1024  # limit of a configuration: it is sent in one message, with the last values


def as_json(config: Any, what: str = "the configuration") -> str:
    """Return *config* as JSON in ASCII; empty if it is None, or after a warning if it cannot be written.

    Values that JSON does not have are written as text: paths, dates, NaN, keys that are numbers.
    """
    if config is None:
        return ""
    try:
        text = json.dumps(plain(as_mapping(config)))
    except Exception as error:  # noqa: BLE001  a value's own __str__ may raise anything, and a cycle has no end
        warn(f"{what} cannot be written as JSON ({type(error).__name__}: {text_of(error)}); it is left out")
        return ""
    if len(text) > CONFIG_BYTES:  # ASCII, so characters are bytes
        warn(f"{what} has {len(text)} bytes, more than the limit of {CONFIG_BYTES}; it is left out")
        return ""
    return text


def as_mapping(config: Any) -> Mapping[Any, Any]:
    """Return a configuration as a mapping: a dataclass, a Namespace, a model of pydantic or another object by its fields.

    Raises:
        TypeError: It has none. Its methods may raise anything else.
    """
    if isinstance(config, Mapping):
        return config
    if callable(keys := getattr(config, "keys", None)):  # OmegaConf's, ConfigDict's
        return {key: config[key] for key in keys()}
    if _is_dataclass(config):  # also one with slots
        from dataclasses import fields  # which is imported, but by the training

        return {field.name: getattr(config, field.name) for field in fields(config)}
    if isinstance(config, type) or not hasattr(config, "__dict__"):
        raise TypeError(f"{type(config).__name__} has no fields; pass a dict, a dataclass or a Namespace")
    return {name: value for name, value in vars(config).items() if not name.startswith("_")}


def plain(value: Any) -> Any:
    """Return a value in the types of JSON; what JSON does not have is text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | AbstractSet) and not isinstance(value, bytes | bytearray):
        return [plain(item) for item in value]
    if hasattr(value, "__float__") and getattr(value, "ndim", 1) == 0:  # a scalar of NumPy, or a tensor of one number
        return int(value) if hasattr(value, "__index__") and value == int(value) else plain(float(value))
    namespaces = (SimpleNamespace, getattr(sys.modules.get("argparse"), "Namespace", SimpleNamespace))
    has_fields = isinstance(value, namespaces) or _is_dataclass(value)
    return plain(as_mapping(value)) if has_fields else str(value)


def _is_dataclass(value: Any) -> bool:
    return hasattr(type(value), "__dataclass_fields__")
