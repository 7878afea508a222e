"""The order of runs by a value that the user names."""

from __future__ import annotations

from math import isnan
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")


def ordered(items: Iterable[T], by: str, value: Callable[[T, str], Any]) -> list[T]:
    """Return items by a value, rising, or falling if the name begins with ``-``; those without the value come last.

    Args:
        items: What to order.
        by: The name of the value.
        value: Returns an item's value of this name: a number, a text, or None.
    """
    groups: tuple[list[tuple[Any, T]], ...] = ([], [], [])
    for item in items:
        found = value(item, by.removeprefix("-"))
        is_number = isinstance(found, int | float) and not isnan(found)
        groups[0 if is_number else 1 if isinstance(found, str) else 2].append((found, item))
    for group in groups[:2]:
        group.sort(key=itemgetter(0), reverse=by.startswith("-"))
    return [item for group in groups for _, item in group]
