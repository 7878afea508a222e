"""The readers by name, as ``--collector.gpu.extra`` and ``--collector.gpu.skip`` choose them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.nvml.readers import basic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trackside_daemon.nvml.reading import Value
    from trackside_daemon.nvml.refusals import Refusals

    Reader = Callable[[Any, Any, Refusals], list[Value]]


class Group(NamedTuple):
    """A reader.

    Attributes:
        make: Gives one for a GPU, which it belongs to from then on.
        extra: It is read only where it is asked for.
    """

    make: Callable[[], Reader]
    extra: bool = False


def _one(reader: Reader) -> Group:
    """A reader that remembers nothing, so that one does for all GPUs."""
    return Group(lambda: reader)


GROUPS: dict[str, Group] = {
    "utilization": _one(basic.utilization),
    "memory": _one(basic.memory),
    "temperature": _one(basic.temperature),
    "power": _one(basic.power),
    "power-limit": _one(basic.power_limit),
    "energy": _one(basic.energy),
}
"""In the order in which they are read."""


def chosen(extra: Iterable[str] = (), skip: Iterable[str] = ()) -> dict[str, Group]:
    """The groups that are read: the default ones, those of *extra*, which may say ``all``, and none of *skip*."""
    wanted, unwanted = set(extra), set(skip)
    return {
        name: group
        for name, group in GROUPS.items()
        if name not in unwanted and (not group.extra or name in wanted or "all" in wanted)
    }
