"""The first step at which two runs differ by a bit, for each key that both have pushed."""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from trackside_daemon.documents.elements import Document, Table
from trackside_daemon.model.text import counted, number

Difference = dict[str, Any]
"""``key``; ``equal``, the number of steps before the first one that differs; that ``step`` and its ``values``, None if all are equal;
``ulps``, by how many representable numbers they differ, of 32 bits if both are such, None if one is not finite."""


def first_differences(read: Callable[[str], Sequence[Any]], keys: Iterable[str]) -> list[Difference]:
    """Return the keys with common steps, the one that differs first as the first.

    Args:
        read: Returns the samples of a key in two runs, as ``[step, time, value]``; of a step that a run made again, the last counts.
        keys: The keys.
    """
    found: list[Difference] = []
    for key in keys:
        first, second = ({step: value for step, _, value in samples} for samples in read(key))
        common = sorted(first.keys() & second.keys())
        # As texts: the API's NaN is one, and the bits of 0.0 and -0.0 differ.
        differ = next((at for at, step in enumerate(common) if str(first[step]) != str(second[step])), None)
        step = None if differ is None else common[differ]
        values = None if step is None else (first[step], second[step])
        equal = len(common) if differ is None else differ
        found += [{"key": key, "equal": equal, "step": step, "values": values, "ulps": _ulps(values)}] if common else []
    return sorted(found, key=lambda one: (one["step"] is None, one["step"] or 0))


def _ulps(values: Any) -> int | None:
    if values is None or any(isinstance(value, str) for value in values):
        return None
    is_single = all(abs(value) < 3e38 and struct.unpack("<f", struct.pack("<f", value))[0] == value for value in values)
    real, whole, bits = ("<f", "<i", 31) if is_single else ("<d", "<q", 63)
    places = [struct.unpack(whole, struct.pack(real, value))[0] for value in values]
    one, other = (place if place >= 0 else -(2**bits) - place for place in places)
    return abs(int(one - other))


def document(names: Sequence[str], differences: Sequence[Difference]) -> Document:
    """Return a sentence, and a row for each key."""
    first, line = differences[0], f"{names[0]} and {names[1]} are equal in all steps that both have"
    if first["step"] is not None:
        line = f"equal for {counted(first['equal'], 'step')}, then {first['key']} by {_by(first)} at step {first['step']:,}"
    rows = [[one["key"], f"{one['equal']:,}", *_cells(one)] for one in differences]
    header = ["key", "equal steps", "differs at step", "by", *names]
    return Document(
        f"First difference of {' and '.join(names)}", [Table("", [], [[line]]), Table("keys", header, rows)]
    )


def _cells(one: Difference) -> list[str]:
    if one["step"] is None:
        return ["-"] * 4
    return [f"{one['step']:,}", _by(one), *(number(value, 9) for value in one["values"])]


def _by(one: Difference) -> str:
    if one["ulps"] == 0:
        return "the sign of 0"
    return "a value that is not finite" if one["ulps"] is None else counted(one["ulps"], "ulp")
