"""The first step at which two runs differ by a bit, for each key that both have pushed."""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from trackside_daemon.documents.elements import Document, Table
from trackside_daemon.model.text import counted, number


class Difference(NamedTuple):
    """How long the values of one key are equal in two runs.

    Attributes:
        key: The key.
        equal: Steps that both have, up to the first one that differs.
        step: That step; None if all are equal.
        values: The values there, of each run.
        ulps: By how many representable numbers they differ, of 32 bits if both are such; None if one is not finite.
    """

    key: str
    equal: int
    step: int | None = None
    values: tuple[Any, Any] = (None, None)
    ulps: int | None = None

    @property
    def text(self) -> str:
        """By how much the values differ, as text."""
        return "not finite" if self.ulps is None else counted(self.ulps, "ulp")


def first_differences(
    read: Callable[[str], Iterable[Sequence[Sequence[Any]]]], keys: Iterable[str]
) -> list[Difference]:
    """Return the keys with common steps, the one that differs first as the first.

    Args:
        read: Returns the samples of a key in two runs, as ``[step, time, value]``; of a step that a run made again, the last counts.
        keys: The keys.
    """
    found = []
    for key in keys:
        first, second = ({step: value for step, _, value in samples} for samples in read(key))
        common = sorted(first.keys() & second.keys())
        if common:
            found.append(_difference(key, common, first, second))
    return sorted(found, key=lambda one: (one.step is None, one.step or 0))


def _difference(key: str, common: Sequence[int], first: Mapping[int, Any], second: Mapping[int, Any]) -> Difference:
    for equal, step in enumerate(common):
        values = first[step], second[step]
        # The API's NaN is a text, and the bits of 0.0 and -0.0 differ.
        if values[0] != values[1] or str(values[0]) != str(values[1]):
            return Difference(key, equal, step, values, _ulps(*values))
    return Difference(key, len(common))


def _ulps(first: Any, second: Any) -> int | None:
    if isinstance(first, str) or isinstance(second, str):
        return None
    is_single = all(
        abs(value) < 3e38 and struct.unpack("<f", struct.pack("<f", value))[0] == value for value in (first, second)
    )
    real, whole = ("<f", "<i") if is_single else ("<d", "<q")
    places = [struct.unpack(whole, struct.pack(real, value))[0] for value in (first, second)]
    lowest = -(2 ** (8 * struct.calcsize(whole) - 1))
    return abs(int.__sub__(*(place if place >= 0 else lowest - place for place in places)))


def document(names: Sequence[str], differences: Sequence[Difference]) -> Document:
    """Return a sentence, and a row for each key."""
    first = differences[0]
    if first.step is None:
        line = f"{names[0]} and {names[1]} are equal in all steps that both have"
    else:
        line = (
            f"equal for {counted(first.equal, 'step')}, then {first.key} by {first.text} at step {number(first.step)}"
        )
    rows = [
        (
            one.key,
            f"{one.equal:,}",
            *(("-",) * 4 if one.step is None else (f"{one.step:,}", one.text, *_shown(one.values))),
        )
        for one in differences
    ]
    header = ["key", "equal steps", "differs at step", "by", *names]
    return Document(
        f"First difference of {' and '.join(names)}", [Table("", [], [[line]]), Table("keys", header, rows)]
    )


def _shown(values: Iterable[Any]) -> list[str]:
    return [number(value, 9) for value in values]
