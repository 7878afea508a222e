"""A run's configuration as the JSON text that is stored with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import isfinite
from typing import Any

from trackside.log import warn

CONFIG_BYTES = 1024 * 1024
"""The longest configuration that is stored: it travels in one message, with the last values."""


def as_json(config: Mapping[str, Any] | None, what: str = "the configuration") -> str:
    """*config* as JSON in ASCII; empty when there is none, or when it cannot be written, of which a warning tells.

    What JSON does not have is written as its text: paths, dates, NaN, keys that are numbers.

    Raises:
        TypeError: It is no mapping.
    """
    if config is None:
        return ""
    if not isinstance(config, Mapping):
        raise TypeError(f"config is a mapping, such as a dict or vars(args), not {type(config).__name__}")
    try:
        text = json.dumps(_plain(config))
    except Exception as error:  # noqa: BLE001  a value's own __str__ may raise anything, and a cycle has no end
        warn(f"{what} cannot be written as JSON ({type(error).__name__}: {error}); the run goes on without")
        return ""
    if len(text) > CONFIG_BYTES:
        warn(f"{what} has {len(text)} bytes, and {CONFIG_BYTES} can be stored; the run goes on without")
        return ""
    return text


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence | AbstractSet) and not isinstance(value, bytes | bytearray):
        return [_plain(one) for one in value]
    if hasattr(value, "__float__") and getattr(value, "ndim", 1) == 0:  # a scalar of NumPy, or a tensor of one number
        return int(value) if hasattr(value, "__index__") and value == int(value) else _plain(float(value))
    return str(value)
