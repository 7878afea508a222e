"""Durations and sizes as users write them: ``1h30m``, ``10GiB``."""

from __future__ import annotations

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(value: object) -> object:
    """Return the seconds of a duration: ``1s``, ``500ms``, ``1h30m`` or a number of seconds."""
    if not isinstance(value, str) or re.fullmatch(r"[\d.]+", value):
        return value
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", value)
    if not parts or "".join(number + unit for number, unit in parts) != value:
        raise ValueError(f"{value!r} is not a duration such as 1s, 500ms or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def size_bytes(value: object) -> object:
    """Return the bytes of a size: ``10GiB``, ``500MB`` or a number of bytes."""
    if not isinstance(value, str) or value.isdecimal():
        return value
    found = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s*([kKMGT])(i?)B?", value.strip())
    if found is None:
        raise ValueError(f"{value!r} is not a size such as 10GiB, 500MB or a number of bytes")
    number, prefix, binary = found.groups()
    return round(float(number) * (1024 if binary else 1000) ** (" KMGT".index(prefix.upper())))
