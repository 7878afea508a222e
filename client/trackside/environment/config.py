"""Write a run's configuration as the JSON text that is stored with the run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import isfinite
from typing import Any

from trackside.log import warn

CONFIG_BYTES = 1024 * 1024  # limit of a configuration: it is sent in one message, with the last values


def as_json(config: Mapping[str, Any] | None, what: str = "the configuration") -> str:
    """Return *config* as JSON in ASCII; empty if it is None, or after a warning if it cannot be written.

    Values that JSON does not have are written as text: paths, dates, NaN, keys that are numbers.

    Raises:
        TypeError: It is not a mapping.
    """
    if config is None:
        return ""
    if not isinstance(config, Mapping):
        raise TypeError(f"config must be a mapping, such as a dict or vars(args), not {type(config).__name__}")
    try:
        text = json.dumps(_plain(config))
    except Exception as error:  # noqa: BLE001  a value's own __str__ may raise anything, and a cycle has no end
        warn(f"{what} cannot be written as JSON ({type(error).__name__}: {error}); it is left out")
        return ""
    if len(text) > CONFIG_BYTES:  # ASCII, so characters are bytes
        warn(f"{what} has {len(text)} bytes, more than the limit of {CONFIG_BYTES}; it is left out")
        return ""
    return text


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | AbstractSet) and not isinstance(value, bytes | bytearray):
        return [_plain(item) for item in value]
    if hasattr(value, "__float__") and getattr(value, "ndim", 1) == 0:  # a scalar of NumPy, or a tensor of one number
        return int(value) if hasattr(value, "__index__") and value == int(value) else _plain(float(value))
    return str(value)
