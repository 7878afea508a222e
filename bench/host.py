"""Measure a tick of the host collectors, alternating with a scrape of node_exporter; run by ``make bench``.

Eight ranks with eight data loader workers each sleep meanwhile, so that the processes of the training are real.
node_exporter runs with its defaults and reads neither processes nor cgroups; its figures include rendering and sending.

"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import httpx
from end_to_end.node_exporter import NodeExporter

from bench.cost import precise
from bench.table import UNAVAILABLE, head, machine, row, verdict
from trackside_daemon.collectors.cgroup.cgroup import CgroupCollector
from trackside_daemon.collectors.host.host import host_collectors
from trackside_daemon.collectors.process.process import ProcessCollector
from trackside_daemon.collectors.settings import CollectorsSection, PathSection
from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.model.state import State
from trackside_daemon.sampling.sampler import Sampler
from trackside_daemon.web.exposition import render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trackside_daemon.collectors.base import Collector
    from trackside_daemon.model.metric import Sample

RANKS = WORKERS = 8
TICKS = 100
PAUSE = 1.0
"""Seconds between two ticks, the default: values that change seldom are read every 10 s or every minute."""

CPU_LIMIT = 20.0
"""Milliseconds of a tick."""

PROC = Path("/proc")

RANK = f"""
import ctypes, os, signal, sys
prctl = ctypes.CDLL(None).prctl
for _ in range({WORKERS}):
    if os.fork() == 0:
        prctl(1, ctypes.c_ulong(signal.SIGKILL))  # PR_SET_PDEATHSIG
        prctl(15, b"pt_data_worker")  # PR_SET_NAME
        signal.pause()
print("ready", flush=True)
sys.stdin.read()
"""


class Took(NamedTuple):
    """Milliseconds of CPU and of wall time."""

    cpu: float
    wall: float


class Timed:
    """A collector that records the cost of each run in its thread."""

    def __init__(self, collector: Collector) -> None:
        self.name, self.metrics = collector.name, collector.metrics
        self.runs: list[Took] = []
        self._collector = collector

    def collect(self) -> list[Sample]:
        """Collect, and record the cost."""
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            return self._collector.collect()
        finally:
            self.runs.append(Took(1000 * (time.thread_time() - cpu), 1000 * (time.perf_counter() - wall)))


class Ours:
    """The tick of all collectors, and the page of a scrape."""

    def __init__(self, members: Sequence[RankProcess]) -> None:
        on = CollectorsSection()
        collectors = [
            *host_collectors(on, PathSection(), on.filesystem.paths),
            CgroupCollector(lambda: members, PROC),
            ProcessCollector(lambda: members, PROC),
        ]
        self.collectors = [Timed(collector) for collector in collectors]
        self.page = ""
        self._state = State()
        self._sampler = Sampler(self.collectors, lambda _: None, PAUSE)

    def tick(self) -> None:
        """Run all collectors."""
        for batch in self._sampler.tick(time.monotonic()):
            self._state.update(batch)

    def scrape(self) -> None:
        """Render the page."""
        self.page = render(self._state.snapshot(time.monotonic()), openmetrics=False).decode()

    def close(self) -> None:
        """End the threads."""
        self._sampler.stop()


def main() -> None:
    """Print the tables."""
    machine()
    with ExitStack() as ends:
        members = ends.enter_context(_training())
        theirs = None
        if shutil.which("prometheus-node-exporter"):
            theirs = ends.enter_context(NodeExporter())
        ours = Ours(members)
        ends.callback(ours.close)
        ticks, renders, scrapes, pages = _in_turns(ours, theirs)
    _print_collectors(ours.collectors)
    head("total", "series", "CPU, ms: median", "p99", "wall, ms: median", "p99")
    _print("tick of trackside", ticks, str(_series(ours.page)))
    _print("rendering `/metrics` of trackside", renders)
    if theirs is not None:
        _print("scrape of node_exporter", scrapes, str(_series(pages[-1])))
    else:
        row("node_exporter", *["not installed here"] * 5)
    head("limit", "measured", "target", "")
    usual = statistics.median(took.cpu for took in ticks)
    verdict("tick of trackside, CPU, median", f"{usual:.2f} ms", f"< {CPU_LIMIT:g} ms", met=usual < CPU_LIMIT)


def _in_turns(ours: Ours, theirs: NodeExporter | None) -> tuple[list[Took], list[Took], list[Took], list[str]]:
    """Return ticks and renders of ours, scrapes of theirs, and its pages."""
    ticks, renders, scrapes, pages = [], [], [], [""]
    with httpx.Client(timeout=60.0, trust_env=False) as client:

        def scrape() -> None:
            assert theirs is not None
            pages.append(client.get(f"{theirs.url}/metrics").text)

        ours.tick()  # the first looks for what is there
        for _ in range(TICKS):
            time.sleep(PAUSE)
            ticks.append(_took(ours.tick, time.process_time))
            renders.append(_took(ours.scrape, time.process_time))
            if theirs is not None:
                scrapes.append(_took(scrape, partial(precise, theirs.process.pid)))
    for collector in ours.collectors:
        del collector.runs[0]
    return ticks, renders, scrapes, pages


def _took(do: Callable[[], object], cpu: Callable[[], float]) -> Took:
    begun, spent = time.perf_counter(), cpu()
    do()
    return Took(1000 * (cpu() - spent), 1000 * (time.perf_counter() - begun))


@contextmanager
def _training() -> Iterator[list[RankProcess]]:
    """Start the ranks with their data loader workers."""
    with ExitStack() as ends:
        pipe = subprocess.PIPE
        ranks = [
            ends.enter_context(subprocess.Popen([sys.executable, "-c", RANK], stdin=pipe, stdout=pipe))
            for _ in range(RANKS)
        ]
        for rank in ranks:
            assert rank.stdout is not None
            rank.stdout.readline()
        yield [RankProcess("bench", "bench-1", 0, number, number, "", rank.pid) for number, rank in enumerate(ranks)]


def _print_collectors(collectors: Sequence[Timed]) -> None:
    head(f"collector, {RANKS} ranks with {WORKERS} data loaders", "CPU, ms: median", "p99", "wall, ms: median", "p99")
    for collector in sorted(collectors, key=lambda one: -statistics.median(took.cpu for took in one.runs)):
        row(collector.name, *_figures(collector.runs))


def _print(what: str, took: Sequence[Took], series: str = UNAVAILABLE) -> None:
    row(what, series, *_figures(took))


def _figures(took: Sequence[Took]) -> list[str]:
    columns = ([one.cpu for one in took], [one.wall for one in took])
    return [f"{figure:.3f}" for column in columns for figure in (statistics.median(column), _p99(column))]


def _p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def _series(page: str) -> int:
    return sum(bool(line) and not line.startswith("#") for line in page.splitlines())


if __name__ == "__main__":
    main()
