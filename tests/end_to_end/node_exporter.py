"""Debian's own node_exporter as a process, and what is on its page."""

from __future__ import annotations

import re
import subprocess
import threading
from typing import TYPE_CHECKING, NamedTuple

import httpx
import pytest
from processes import DEADLINE
from prometheus_client.parser import text_string_to_metric_families as parse_text

if TYPE_CHECKING:
    from pathlib import Path

EVERYTHING = tuple(
    f"--collector.{name}-exclude=^$"
    for name in ("filesystem.mount-points", "filesystem.fs-types", "netdev.device", "diskstats.device")
)
"""By default it leaves out lo, partitions, /dev/shm and more."""


class Family(NamedTuple):
    """Its type as the page says, and the value of each set of labels."""

    kind: str
    values: dict[frozenset[tuple[str, str]], float]


def families(page: str) -> dict[str, Family]:
    """Those of a page, by the name that its series have."""
    found: dict[str, Family] = {}
    for family in parse_text(page):
        for sample in family.samples:
            values = found.setdefault(sample.name, Family(family.type, {})).values
            values[frozenset(sample.labels.items())] = sample.value
    return found


class NodeExporter:
    """node_exporter on a port of its own. As a context it ends with the block.

    Args:
        flags: Further ones.
        tree: Where its proc and sys are instead of this machine's.

    Attributes:
        process: It.
        url: Its page.
    """

    def __init__(self, *flags: str, tree: Path | None = None) -> None:
        roots = () if tree is None else (f"--path.procfs={tree / 'proc'}", f"--path.sysfs={tree / 'sys'}")
        self.url = ""
        self.log: list[str] = []
        self._listening = threading.Event()
        self.process = subprocess.Popen(
            ["prometheus-node-exporter", "--web.listen-address=127.0.0.1:0", *roots, *flags],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._listening.wait(DEADLINE) or not self.url:
            self.stop()
            pytest.fail("node_exporter did not start: " + "".join(self.log))

    def __enter__(self) -> NodeExporter:  # noqa: PYI034  Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def page(self) -> str:
        """Its page, for which it reads all anew."""
        return httpx.get(self.url, timeout=DEADLINE, trust_env=False).text

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if (found := re.search(r'msg="Listening on" address=(\S+)', line)) is not None:
                self.url = f"http://{found[1]}/metrics"
                self._listening.set()
        self._listening.set()
