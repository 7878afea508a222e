"""Debian's node_exporter as a process, and its parsed page."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from end_to_end.listening import Listening
from processes import http
from prometheus_client.parser import text_string_to_metric_families as parse_text

if TYPE_CHECKING:
    from pathlib import Path

EVERYTHING = tuple(
    f"--collector.{name}-exclude=^$"
    for name in ("filesystem.mount-points", "filesystem.fs-types", "netdev.device", "diskstats.device")
)
"""By default it leaves out lo, partitions, /dev/shm and more."""


class Family(NamedTuple):
    """The type of a family on the page, and the value of each set of labels."""

    kind: str
    values: dict[frozenset[tuple[str, str]], float]


def families(page: str) -> dict[str, Family]:
    """Return the families of a page, by the name of their series."""
    found: dict[str, Family] = {}
    for family in parse_text(page):
        for sample in family.samples:
            values = found.setdefault(sample.name, Family(family.type, {})).values
            values[frozenset(sample.labels.items())] = sample.value
    return found


class NodeExporter(Listening):
    """node_exporter on a free port, as a context manager.

    Args:
        flags: Further flags.
        tree: The directory with proc and sys to use instead of this machine's.
    """

    def __init__(self, *flags: str, tree: Path | None = None) -> None:
        roots = () if tree is None else (f"--path.procfs={tree / 'proc'}", f"--path.sysfs={tree / 'sys'}")
        super().__init__("prometheus-node-exporter", "--web.listen-address=127.0.0.1:0", *roots, *flags)

    def __enter__(self) -> NodeExporter:  # noqa: PYI034  Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def page(self) -> str:
        """Return the page, for which node_exporter reads everything anew."""
        return http.get(f"{self.url}/metrics").text
