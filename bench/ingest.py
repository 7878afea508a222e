"""Measure how much one daemon ingests: clients at full speed, a Pushgateway, and eight ranks of an ordinary job.

Run by ``make bench``; prints a table in Markdown, with a verdict for each limit.

"""

from __future__ import annotations

import http.client
import multiprocessing
import os
import random
import socket
import statistics
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from processes import Daemon, eventually
from prometheus_client import CollectorRegistry, Gauge, push_to_gateway

from bench.cost import cpu, memory
from bench.feeder import KEYS, Fed, feed, values
from bench.table import head, machine, row, verdict
from trackside.limits import BATCH_ROWS
from trackside_daemon.history.database import Database
from trackside_daemon.history.read import reader, series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.connection import Connection

CLIENTS = 2
SECONDS = 30.0
GATEWAY_SECONDS = 10.0
RANKS = 8
STEPS_A_SECOND = 10
NAMES = [key.replace(".", "_").replace("/", "_") for key in KEYS]
EVERYTHING = ("--collector.gpu.simulate=8",)
"""Flags that turn on the optional work of a daemon."""

SPAWN = multiprocessing.get_context("spawn")


class Watched(NamedTuple):
    """Observations of the daemon during the measurement.

    Attributes:
        scrapes: Milliseconds of each scrape, one per second.
        cpu: Share of a core.
        rss: Maximum in MiB.

    """

    scrapes: list[float]
    cpu: float
    rss: float


def main() -> None:
    """Print the table."""
    machine()
    head(f"{len(KEYS)} values per step", "measured", "target", "")
    rate = _in_directory(_flood)
    _in_directory(lambda directory: _beside_gateway(directory, rate))
    _in_directory(_ordinary)
    print()


def _in_directory(work: Callable[[Path], Any]) -> Any:
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        return work(Path(directory))


def _flood(directory: Path) -> float:
    """Return samples/s of clients that send as fast as they are acknowledged; verify all values afterwards."""
    daemon = Daemon(directory, *EVERYTHING, fresh=True)
    fed: list[Fed]
    fed, watched = _watch(daemon, [(feed, (daemon.endpoint, rank, CLIENTS, SECONDS)) for rank in range(CLIENTS)])
    gaps = daemon.series()["trackside_ingest_gaps_total"]
    daemon.stop()
    samples = sum(one.rows for one in fed) * len(KEYS)
    rate = samples / max(one.seconds for one in fed)
    lost = sum(_lost(daemon.history, rank, one.rows) for rank, one in enumerate(fed))
    size = sum(path.stat().st_size for path in daemon.history.iterdir() if path.is_file())
    ninetieth = statistics.quantiles(watched.scrapes, n=10)[-1]
    what = f"{CLIENTS} clients, batches of {BATCH_ROWS} steps, every detector on, {SECONDS:g} s: samples/s"
    verdict(what, f"{rate:,.0f}", ">= 1,000,000", met=rate >= 1e6)
    what = f"of {samples:,} acknowledged samples, missing from the history (compared value by value); gaps"
    verdict(what, f"{lost:,}; {gaps:g}", "0; 0", met=not lost and not gaps)
    what = f"a scrape every second meanwhile, median (p90) of {len(watched.scrapes)}"
    measured = f"{statistics.median(watched.scrapes):.1f} ({ninetieth:.1f}) ms"
    verdict(what, measured, "p90 <= 30 ms", met=ninetieth <= 30)
    row("daemon and worker: CPU, maximum RSS", f"{watched.cpu:.0%} of a core, {watched.rss:.0f} MiB", "", "")
    row("the file afterwards", f"{size / samples:.2f} bytes per sample", "", "")
    resent, share = sum(one.resent for one in fed), sum(one.cpu for one in fed) / SECONDS
    row("the clients: CPU, batches resent", f"{share:.0%} of a core, {resent:,}", "", "")
    return rate


def _watch(daemon: Daemon, work: Iterable[tuple[Callable[..., None], tuple[Any, ...]]]) -> tuple[list[Any], Watched]:
    """Run *work* in processes that start together, scrape every second until all have ended, and return their results."""
    ends = []
    for target, arguments in work:
        here, there = SPAWN.Pipe()
        SPAWN.Process(target=target, args=(there, *arguments)).start()
        there.close()
        ends.append(here)
    for end in ends:
        assert end.recv() == "ready"
    pids = list(daemon.pids().values())
    connection = http.client.HTTPConnection(daemon.url.removeprefix("http://"))
    scrapes, most, used, begun = [], 0.0, sum(map(cpu, pids)), time.monotonic()
    for end in ends:
        end.send("go")
    while not all(end.poll(0) for end in ends):
        time.sleep(1.0)
        asked = time.perf_counter()
        connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
        assert connection.getresponse().read()
        scrapes.append((time.perf_counter() - asked) * 1000)
        most = max(most, sum(memory(pid)[0] for pid in pids))
    share = (sum(map(cpu, pids)) - used) / (time.monotonic() - begun)
    connection.close()
    return [end.recv() for end in ends], Watched(scrapes, share, most)


def _lost(history: Path, rank: int, rows: int) -> int:
    """Return how many values of a client are not stored exactly once, at their step, as sent."""
    sent = np.concatenate([values(rank, first) for first in range(0, rows, BATCH_ROWS)])
    database = Database(history)
    with database.reading() as connection:
        every = reader.series(connection, reader.resolve(connection, "flood"), ranks=())
    by_key = {one.series.key: one.series for one in every if one.rank == rank}
    lost = 0
    for column, key in enumerate(KEYS):
        found = list(series.samples(database, by_key[key]))
        steps, kept = (np.concatenate([np.asarray(part[which]) for part in found]) for which in (0, 2))
        complete = np.array_equal(steps, np.arange(rows))
        lost += int(np.count_nonzero(kept != sent[:, column])) if complete else rows
    database.close()
    return lost


def _stored(history: Path, run: str) -> int:
    """Return the number of samples of a run."""
    database = Database(history)
    with database.reading() as connection:
        every = reader.series(connection, reader.resolve(connection, run), ranks=())
    found = sum(len(part[0]) for one in every for part in series.samples(database, one.series))
    database.close()
    return found


def _beside_gateway(directory: Path, ours: float) -> None:
    """Push the same values to a Pushgateway, one step per request as its API requires."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = ["prometheus-pushgateway", f"--web.listen-address={address}", "--log.level=error"]
    try:
        gateway = subprocess.Popen(command, cwd=directory)
    except FileNotFoundError:
        verdict("trackside / Pushgateway", "prometheus-pushgateway is not installed", ">= 100", met=None)
        return
    with gateway:
        eventually(lambda: _answers(address))
        plain, usual = (_gateway_rate(push, address) for push in (_put, _push_to_gateway))
        gateway.terminate()
    what = f"Pushgateway, one process, {len(KEYS)} gauges per step, {GATEWAY_SECONDS:g} s"
    row(f"{what}, text sent with PUT over one connection: samples/s", f"{plain:,.0f}", "", "")
    row("the same with `prometheus_client.push_to_gateway`", f"{usual:,.0f}", "", "")
    verdict("trackside / Pushgateway over one connection", f"{ours / plain:.0f}", ">= 100", met=ours >= 100 * plain)
    row("trackside / `push_to_gateway`", f"{ours / usual:.0f}", "", "")


def _gateway_rate(push: Callable[[Connection, str], None], address: str) -> float:
    here, there = SPAWN.Pipe()
    SPAWN.Process(target=push, args=(there, address)).start()
    there.close()
    pushes, seconds = here.recv()
    return float(pushes * len(KEYS) / seconds)


def _answers(address: str) -> bool:
    with suppress(OSError), socket.create_connection(address.split(":")):  # type: ignore[arg-type]
        return True
    return False


def _put(end: Connection, address: str) -> None:
    """Send prepared bodies over one connection, as fast as possible."""
    bodies = [
        "".join(f"# TYPE {name} gauge\n{name} {value!r}\n" for name, value in zip(NAMES, line, strict=True))
        for line in _lines()
    ]
    connection = http.client.HTTPConnection(address)
    begun, pushes = time.monotonic(), 0
    while time.monotonic() - begun < GATEWAY_SECONDS:
        connection.request("PUT", "/metrics/job/flood/rank/0", bodies[pushes % len(bodies)])
        answer = connection.getresponse()
        answered = answer.read()
        assert answer.status == 200, answered
        pushes += 1
    end.send((pushes, time.monotonic() - begun))


def _push_to_gateway(end: Connection, address: str) -> None:
    """Push with prometheus_client, as its users do."""
    registry = CollectorRegistry()
    gauges = [Gauge(name, "A gauge.", registry=registry) for name in NAMES]
    lines = _lines()
    begun, pushes = time.monotonic(), 0
    while time.monotonic() - begun < GATEWAY_SECONDS:
        for gauge, value in zip(gauges, lines[pushes % len(lines)], strict=True):
            gauge.set(value)
        push_to_gateway(address, job="flood", grouping_key={"rank": "0"}, registry=registry)
        pushes += 1
    end.send((pushes, time.monotonic() - begun))


def _lines() -> list[list[float]]:
    """Return some of the rows of a feeder as lines of text."""
    return [line for first in range(0, 16 * BATCH_ROWS, BATCH_ROWS) for line in values(0, first).tolist()]


def _ordinary(directory: Path) -> None:
    """Run eight ranks, each a process with the real client."""
    daemon = Daemon(directory, *EVERYTHING, fresh=True)
    reported, watched = _watch(daemon, [(_train, (daemon.endpoint, rank)) for rank in range(RANKS)])
    samples = sum(reported) * len(KEYS)
    daemon.stop()
    kept = _stored(daemon.history, "ordinary")
    what = f"{RANKS} ranks with {STEPS_A_SECOND} steps/s, {SECONDS:g} s: the daemon's share of a core"
    verdict(what, f"{watched.cpu:.1%}", "<= 5 %", met=watched.cpu <= 0.05)
    verdict(f"of {samples:,} pushed samples, in the history", f"{kept:,}", "all", met=kept == samples)


def _train(end: Connection, endpoint: str, rank: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)}
    import trackside

    chance = random.Random(rank)
    steps = round(SECONDS * STEPS_A_SECOND)
    with trackside.init("ordinary", id="ordinary", endpoint=endpoint) as run:
        end.send("ready")
        end.recv()
        begun = time.monotonic()
        for step in range(steps):
            run.push({key: chance.gauss(2.5, 0.1) for key in KEYS}, step=step)
            time.sleep(max(0.0, begun + (step + 1) / STEPS_A_SECOND - time.monotonic()))
    end.send(steps)


if __name__ == "__main__":
    main()
