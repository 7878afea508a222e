"""The last hour of the machine, each second, in memory; what is older, and the time of a run, from the history, which has it less often."""

import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isnan, nan
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from trackside_daemon.history.series_name import series_name
from trackside_daemon.model.families import derived, host
from trackside_daemon.model.families.gpu import FAMILIES
from trackside_daemon.model.metric import ForeignMetric, Metric, json_number
from trackside_daemon.model.state import State
from trackside_daemon.questions.curves import machine
from trackside_daemon.questions.question import FirstTime, LastTime, Question, limits
from trackside_daemon.web.api.history_access import HistoryAccess, json_response, parsed

SECONDS_KEPT = 3600
MOST_SERIES = 4096
MOST_FOREIGN = 512  # series of other programs among them, which may have many more; the history has all
LONGEST_GAP = 60.0  # seconds; after a longer one a counter has no rate

HOST = (
    host.CPU_SECONDS, host.MEMORY, host.MEMORY_AVAILABLE, host.MEMINFO["Cached"], host.SWAP_USED,
    host.DISK_READ, host.DISK_WRITTEN, host.DISK_BUSY, host.NETWORK_RECEIVED, host.NETWORK_SENT,
    *(metric for lines in host.PRESSURE.values() for metric in lines.values()),
)  # fmt: skip
GPU = tuple(family.metric for family in FAMILIES.values() if family.metric.kind in {"gauge", "counter"})

MOST_CORES = 256


class Machine(Question, frozen=True, kw_only=True):
    """The parameters of a request for series of the machine."""

    run: Annotated[str, Meta(description="A run: its machine, in its time.")] = ""
    key: Annotated[
        tuple[str, ...], Meta(max_length=len(HOST) + len(GPU) + 1, description="A family of host or GPU series.")
    ] = ()
    first: FirstTime = msgspec.field(default=None, name="from")
    last: LastTime = msgspec.field(default=None, name="to")
    points: Annotated[int, Meta(le=3600, description="At most so many buckets per series.")] = 600


class _Ring:
    """The values of a series; one that never changed is a single value.

    Args:
        value: The first value.
        count: The number of ticks before it.
        kept: The number of ticks that are kept.
    """

    def __init__(self, value: float, count: int, kept: int) -> None:
        self._value = value
        self._since = count
        self._kept = kept
        self._values: array[float] | None = None
        self.seen = count

    def put(self, value: float, count: int) -> None:
        """Set the value of a tick, given by its number; those that were left out have none."""
        if not isnan(value):
            self.seen = count
        if self._values is None:
            if value == self._value:
                return
            self._values = array("f", [self._value] * self._kept)
            for before in range(count - self._kept, self._since):
                self._values[before % self._kept] = nan
        self._values[count % self._kept] = value

    def read(self, count: int) -> float:
        """Return the value of a tick; NaN without one."""
        if self._values is not None:
            return self._values[count % self._kept]
        return self._value if count >= self._since else nan


class MachineHistory:
    """Records host, GPUs and the families of other programs at every tick; any thread may read.

    Args:
        state: The newest value of every series.
        stat: Returns /proc/stat of this tick: the time of each CPU is not a series unless collector.cpu.per-cpu is set.
        seconds_kept: The number of ticks that are kept; an hour, if the daemon samples each second.
    """

    def __init__(self, state: State, stat: Callable[[], bytes], seconds_kept: int = SECONDS_KEPT) -> None:
        self._state = state
        self._stat = stat
        self._kept = seconds_kept
        self._cores: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._times = array("d", [0.0] * seconds_kept)
        self._count = 0
        self._rings: dict[tuple[Metric, tuple[str, ...]], _Ring] = {}
        self._before: dict[tuple[Metric, tuple[str, ...]], float] = {}

    def record(self, now: float, wall: float) -> None:
        """Record a tick, at *now* of the monotonic clock and *wall* in Unix seconds."""
        metrics = (*HOST, *GPU, *self._state.foreign())
        values: list[Mapping[tuple[str, ...], object]] = [*self._state.values(now, *metrics), self._core_ratios()]
        with self._lock:
            count = self._count
            seconds = wall - self._times[(count - 1) % self._kept] if count else 0.0
            self._times[count % self._kept] = wall
            seen = set()
            foreign = 0
            for metric, series in zip((*metrics, derived.CPU_CORE_BUSY), values, strict=True):
                for labels, value in series.items():
                    if not isinstance(value, int | float):
                        continue
                    key = metric, labels
                    foreign += isinstance(metric, ForeignMetric)
                    if foreign > MOST_FOREIGN:
                        break
                    kept = self._rate(key, value, seconds) if metric.kind == "counter" else value
                    seen.add(key)
                    self._put(key, kept, count)
            for key, ring in [*self._rings.items()]:
                if key not in seen:
                    ring.put(nan, count)
                    if count - ring.seen > self._kept:
                        del self._rings[key]
                        self._before.pop(key, None)
            self._count += 1

    def _core_ratios(self) -> dict[tuple[str, ...], float]:
        """Return the share of the time since the call before that each CPU was busy."""
        lines = self._stat().splitlines()[1 : MOST_CORES + 1]
        ratios: dict[tuple[str, ...], float] = {}
        for line in lines:
            if not line.startswith(b"cpu"):
                break
            label, *ticks = line.split(None, 9)
            counts = [int(count) for count in ticks[:8]]
            total, idle = sum(counts), sum(counts[3:5])
            name = label[3:].decode()
            before = self._cores.get(name)
            self._cores[name] = total, idle
            if before is not None and total > before[0]:
                ratios[name,] = min(1.0, max(0.0, 1 - (idle - before[1]) / (total - before[0])))
        return ratios

    def _rate(self, key: tuple[Metric, tuple[str, ...]], value: float, seconds: float) -> float:
        before = self._before.get(key)
        self._before[key] = value
        if before is None or not 0 < seconds < LONGEST_GAP or value < before:
            return nan
        return (value - before) / seconds

    def _put(self, key: tuple[Metric, tuple[str, ...]], value: float, count: int) -> None:
        ring = self._rings.get(key)
        if ring is not None:
            ring.put(value, count)
        elif not isnan(value) and len(self._rings) < MOST_SERIES:
            self._rings[key] = _Ring(value, count, self._kept)

    def names(self) -> list[str]:
        """Return the families that have values."""
        with self._lock:
            return sorted({metric.name for metric, _ in self._rings})

    def read(self, names: Iterable[str], low: float, high: float, points: int) -> list[dict[str, Any]]:
        """Return the series of some families between two Unix times, in at most *points* buckets ``[0, time, min, max, last, 0, mean]``."""
        wanted = frozenset(names)
        with self._lock:
            counts = [
                count
                for count in range(max(0, self._count - self._kept), self._count)
                if low <= self._times[count % self._kept] <= high
            ]
            rings = [(key, ring) for key, ring in self._rings.items() if key[0].name in wanted]
            size = max(1, -(-len(counts) // points))
            return [
                {"key": series_name(*key), "points": list(self._buckets(ring, counts, size))} for key, ring in rings
            ]

    def _buckets(self, ring: _Ring, counts: Sequence[int], size: int) -> Iterator[list[float]]:
        # Of equal numbers of ticks, at fixed places, so that a bucket stays the same while new ones come.
        starts = [place for place, count in enumerate(counts) if place == 0 or count % size == 0]
        for start, stop in pairwise([*starts, len(counts)]):
            values = [value for count in counts[start:stop] if not isnan(value := ring.read(count))]
            if values:
                mean = sum(values) / len(values)
                yield [0, self._times[counts[stop - 1] % self._kept], min(values), max(values), values[-1], 0, mean]


@dataclass(eq=False)
class MachineApi:
    """Answers requests for the machine: its last hour from memory, what is older from the history."""

    _machine: MachineHistory
    _history: HistoryAccess

    async def machine(self, request: Request) -> Response:
        """Return the host and its GPUs over time: each second of the last hour, each minute before, more often during runs."""
        wanted = parsed(Machine, request)
        if not wanted.key:
            return json_response({"families": self._machine.names()})
        names, (low, high), points = frozenset(wanted.key), limits(wanted.first, wanted.last), max(1, wanted.points)
        if wanted.run or (wanted.first is not None and low < time.time() - 1.1 * SECONDS_KEPT):
            found = await self._history.read(
                lambda connection: machine(connection, wanted.run, names, low, high, points=points)
            )
        else:
            found = self._machine.read(names, low, high, points)
        for series in found:
            series["points"] = [[json_number(value) for value in point] for point in series["points"]]
        return json_response({"series": found})
