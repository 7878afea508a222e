"""Measure a daemon with many ranks: CPU, memory, delays, the metrics page and a restart, by the number of ranks.

Run by ``make bench``; prints tables in Markdown, with a verdict for each limit.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import multiprocessing
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from end_to_end.inbox import Inbox
from processes import Daemon, eventually

from bench.cost import cpu, memory
from bench.feeder import KEYS
from bench.many_ranks import RUN, Job, Trained, train, value_rows
from bench.table import head, machine, row, verdict
from trackside_daemon.history.database import Database
from trackside_daemon.history.read import reader, series

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

RESTARTS = (64, 1024)
"""Ranks with which the daemon is restarted."""

CURVE = ((8, 10.0), (8, 1.0), (64, 1.0), (256, 1.0), (1024, 1.0), (64, 10.0), (256, 10.0))
"""Ranks, and steps a second."""

PROCESS_RANKS = 64  # ranks of one client process
SETTLE_SECONDS = 5.0  # from the first step to the first measurement
COST_SECONDS = 30.0  # how long CPU is measured, with a scrape a second
DELAY_SECONDS = 20.0  # how long delays are measured, with a scrape each `LOOK_SECONDS`
POLL_SECONDS = 0.1
SCRAPE_SECONDS = 0.97  # not the time between two steps, so that scrapes meet each moment between them
NAN_AFTER = 10.0  # seconds from the begin of the delays to the NaN of the last rank
PAST_STEPS = 512  # steps from which detectors restore their windows
BEFORE_SECONDS, AFTER_SECONDS = 12.0, 25.0  # how long the ranks push before and after a restart
EVERYTHING = ("--collector.gpu.simulate=8",)

SPAWN = multiprocessing.get_context("spawn")
_STEPS = re.compile(
    rb"^trackside_training_(?:step\{[^}]*\}"
    rb'|rank_statistic\{family="trackside_training_step",[^}]*statistic="min"\}) (\S+)$',
    re.MULTILINE,
)


class Scrape(NamedTuple):
    """One scrape: when it ended (monotonic seconds), how long it took, and the page."""

    at: float
    seconds: float
    page: bytes

    @property
    def step(self) -> float:
        """The step that all ranks have reached; -1 before there is one."""
        return min(map(float, _STEPS.findall(self.page)), default=-1.0)

    @property
    def lines(self) -> int:
        """Lines with a value."""
        return sum(not line.startswith(b"#") for line in self.page.splitlines())


class Measured(NamedTuple):
    """Figures of one number of ranks; milliseconds for scrapes, seconds for delays, MiB for memory."""

    cpu: float
    rss: float
    scrape: float
    lines: int
    delays: list[float]
    nan: float
    lost: int
    samples: int
    clients: list[Trained]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, help="only this number of ranks")
    parser.add_argument("--rate", type=float, default=1.0, help="steps a second, with --ranks")
    parser.add_argument("--restart", action="store_true", help="only restarts of the daemon")
    parser.add_argument("--seconds", type=float, default=COST_SECONDS, help="how long CPU is measured")
    arguments = parser.parse_args()
    machine()
    if arguments.restart:
        _restarts((arguments.ranks,) if arguments.ranks else RESTARTS)
        return
    columns = (
        "CPU",
        "RSS",
        "page, lines",
        "scrape",
        "push to page, median",
        "p99",
        "NaN to webhook",
        "lost",
        "clients",
    )
    head(f"ranks, {len(KEYS)} values a step", *columns)
    curve = CURVE if arguments.ranks is None else ((arguments.ranks, arguments.rate),)
    found = {(ranks, rate): _measure(ranks, rate, arguments.seconds) for ranks, rate in curve}
    head("limit", "measured", "target", "")
    if (few := found.get((8, 10.0))) is not None:
        verdict("8 ranks with 10 steps/s", f"{few.cpu:.1%} of a core", "<= 3 %", met=few.cpu <= 0.03)
    if (many := found.get((1024, 1.0))) is not None:
        slowest = float(np.quantile(many.delays, 0.99))
        verdict("1,024 ranks with 1 step/s", f"{many.cpu:.0%} of a core", "<= 50 %", met=many.cpu <= 0.5)
        verdict("the same: memory", f"{many.rss:.0f} MiB", "<= 300 MiB", met=many.rss <= 300)
        verdict("the same: push to page, p99 of the slowest rank", f"{slowest:.2f} s", "<= 3 s", met=slowest <= 3)
        verdict("the same: NaN to webhook", f"{many.nan:.2f} s", "<= 2 s", met=many.nan <= 2)
        verdict("the same: lines of the page", f"{many.lines:,}", "<= 10,000", met=many.lines <= 10_000)
        verdict("the same: a scrape, median", f"{many.scrape:.1f} ms", "<= 20 ms", met=many.scrape <= 20)
    verdict(
        "values lost, of all",
        str(sum(one.lost for one in found.values())),
        "0",
        met=not any(one.lost for one in found.values()),
    )
    if arguments.ranks is None:
        _restarts(RESTARTS)


def _restarts(every: Sequence[int]) -> None:
    """Kill the daemon while its ranks push, start another, and show when it is as before."""
    columns = (
        "start",
        "first acknowledgement of a rank, median",
        "of the last rank",
        "detectors",
        "losses that are lost",
    )
    head("restart with ranks, 1 step/s", *columns)
    found = [_restart(ranks) for ranks in every]
    head("limit", "measured", "target", "")
    for name, last, detectors, lost in found:
        restored, seconds = map(float, detectors) if detectors else (0.0, float("inf"))
        verdict(f"{name}: acknowledged after the start", f"{last:.2f} s", "<= 2 s", met=last <= 2)
        verdict(f"{name}: windows of {restored:,.0f} detectors", f"{seconds:.1f} s", "<= 10 s", met=seconds <= 10)
        verdict(f"{name}: values lost", str(lost), "0", met=not lost)


class Restarted(NamedTuple):
    """Result of a restart: the ranks, the last first acknowledgement, ranks and seconds of the detectors, and lost losses."""

    name: str
    last: float
    detectors: tuple[str, ...]
    lost: int


def _restart(ranks: int) -> Restarted:
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        os.environ["TRACKSIDE_SPOOL"] = f"{directory}/spool"
        daemon = Daemon(Path(directory), *EVERYTHING, fresh=True)
        steps = PAST_STEPS + round(BEFORE_SECONDS + AFTER_SECONDS)
        job = Job(ranks, 1.0, steps, past=PAST_STEPS)
        try:
            ends = _start(daemon, job)
            begun = time.monotonic()
            for end in ends:
                end.send(begun)
            time.sleep(BEFORE_SECONDS)
            daemon, start = _kill_and_start(daemon)
            served = time.monotonic()
            for end in ends:
                end.send(served)
            trained = [end.recv() for end in ends]
        finally:
            daemon.stop()
        waits = [seconds for one in trained for seconds in one.restarted]
        last = max(waits)
        lost, detectors = sum(_lost(daemon.history, job, KEYS[:1])), _restored(daemon)
    row(
        f"{ranks:,} ranks",
        f"{start:.1f} s",
        f"{statistics.median(waits):.2f} s",
        f"{last:.2f} s",
        "{} ranks after {} s".format(*detectors) if detectors else "not restored",
        f"{lost:,} of {job.world * job.steps:,}",
    )
    return Restarted(f"{ranks:,} ranks", last, detectors, lost)


def _kill_and_start(daemon: Daemon) -> tuple[Daemon, float]:
    """Return the daemon after it, and the seconds until it served."""
    daemon.stop(signal.SIGKILL)
    killed = time.monotonic()
    return Daemon(daemon.directory, *EVERYTHING, fresh=True), time.monotonic() - killed


def _restored(daemon: Daemon) -> tuple[str, ...]:
    """Return for how many ranks the detectors are restored, and after how many seconds; nothing before."""
    found = re.search(r"the detectors of (\d+) ranks continue .* after ([\d.]+) s", "".join(daemon.log))
    return found.groups() if found else ()


def _measure(ranks: int, rate: float, seconds: float) -> Measured:
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory, closing(Inbox()) as inbox:
        os.environ["TRACKSIDE_SPOOL"] = f"{directory}/spool"
        webhook = {"TRACKSIDE_ALERTS__SINKS__WEBHOOK__URL": f"{inbox.url}/direct"}
        daemon = Daemon(Path(directory), *EVERYTHING, environ=webhook, fresh=True)
        before = round((SETTLE_SECONDS + seconds + NAN_AFTER) * rate)
        steps = round((SETTLE_SECONDS + seconds + DELAY_SECONDS) * rate)
        job = Job(ranks, rate, steps, before)
        try:
            ends = _start(daemon, job)
            begun = time.monotonic()
            for end in ends:
                end.send(begun)
            time.sleep(SETTLE_SECONDS)
            print(f"measuring, the daemon is process {daemon.process.pid}", file=sys.stderr, flush=True)
            share, rss, scrapes = _cost(daemon, seconds)
            polls = _scrapes(daemon, begun + job.steps / rate - time.monotonic(), POLL_SECONDS)
            trained = [end.recv() for end in ends]
            nan = [one.at for one in inbox.of("direct") if one.fires("TracksideNonFinite")]
        finally:
            daemon.stop()
            print("".join(line for line in daemon.log if "worker" in line), file=sys.stderr)
        measured = Measured(
            cpu=share,
            rss=rss,
            scrape=1000 * statistics.median(one.seconds for one in scrapes),
            lines=scrapes[-1].lines,
            delays=_delays(polls, begun, rate),
            nan=nan[0] - begun - before / rate if nan else float("inf"),
            lost=sum(_lost(daemon.history, job)),
            samples=ranks * job.steps * len(KEYS),
            clients=trained,
        )
    _show(ranks, rate, measured)
    return measured


def _show(ranks: int, rate: float, measured: Measured) -> None:
    clients = measured.clients
    row(
        f"{ranks:,} ranks, {rate:g} steps/s",
        f"{measured.cpu:.1%}",
        f"{measured.rss:.0f} MiB",
        f"{measured.lines:,}",
        f"{measured.scrape:.1f} ms",
        f"{statistics.median(measured.delays):.2f} s",
        f"{np.quantile(measured.delays, 0.99):.2f} s",
        f"{measured.nan:.2f} s",
        f"{measured.lost:,} of {measured.samples:,}",
        f"{sum(one.resent for one in clients):,} resent, {sum(one.unsent for one in clients)} unsent,"
        f" ends after {max(one.ended for one in clients):.1f} s",
    )


def _start(daemon: Daemon, job: Job) -> list[Connection]:
    """Start the ranks, and return once all have greeted."""
    ends = []
    for first in range(0, job.world, PROCESS_RANKS):
        here, there = SPAWN.Pipe()
        ranks = range(first, min(job.world, first + PROCESS_RANKS))
        SPAWN.Process(target=train, args=(there, daemon.endpoint, ranks, job), daemon=True).start()
        there.close()
        ends.append(here)
    for end in ends:
        assert end.recv() == "ready"
    hello = 'trackside_ingest_messages_total{kind="hello"}'
    eventually(lambda: daemon.series()[hello] >= job.world, pause=0.5)
    return ends


def _cost(daemon: Daemon, seconds: float) -> tuple[float, float, list[Scrape]]:
    """Return the share of a core, the largest memory in MiB, and the scrapes, one a second."""
    pids = daemon.pids()
    used, began = {name: cpu(pid) for name, pid in pids.items()}, time.monotonic()
    scrapes = _scrapes(daemon, seconds, SCRAPE_SECONDS)
    shares = {name: (cpu(pid) - used[name]) / (time.monotonic() - began) for name, pid in pids.items()}
    print(", ".join(f"{name} {share:.1%}" for name, share in shares.items()), file=sys.stderr, flush=True)
    return sum(shares.values()), sum(memory(pid)[0] for pid in pids.values()), scrapes


def _scrapes(daemon: Daemon, seconds: float, pause: float) -> list[Scrape]:
    connection = http.client.HTTPConnection(daemon.url.removeprefix("http://"))
    found, until = [], time.monotonic() + seconds
    while (asked := time.monotonic()) < until:
        connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
        page = connection.getresponse().read()
        at = time.monotonic()
        found.append(Scrape(at, at - asked, gzip.decompress(page)))
        time.sleep(max(0.0, asked + pause - time.monotonic()))
    connection.close()
    return found


def _delays(polls: list[Scrape], begun: float, rate: float) -> list[float]:
    """Return, for each step, the seconds from its push until a scrape shows that all ranks have reached it."""
    steps = [poll.step for poll in polls]
    delays = []
    for step in range(int(steps[0]) + 1, int(steps[-1]) + 1):
        seen = next(poll.at for poll, reached in zip(polls, steps, strict=True) if reached >= step)
        delays.append(seen - begun - step / rate)
    return delays


def _lost(history: Path, job: Job, keys: Sequence[str] = KEYS) -> list[int]:
    """Return, by rank, how many values of the first keys are not stored exactly once, at their step, as pushed."""
    database = Database(history)
    with database.reading() as connection:
        every = reader.series(connection, reader.resolve(connection, RUN), ranks=())
    stored = {(one.rank, one.series.key): one.series for one in every}
    lost = []
    for rank in range(job.world):
        pushed = value_rows(rank, job)[:, : len(keys)]
        missing = pushed.size
        for column, key in enumerate(keys):
            found = list(series.samples(database, stored[rank, key])) if (rank, key) in stored else []
            if found:
                steps, kept = (np.concatenate([np.asarray(part[which]) for part in found]) for which in (0, 2))
                same = np.array_equal(steps, np.arange(job.steps))
                missing -= (
                    int(np.count_nonzero(np.isclose(kept, pushed[:, column], 0, 0, equal_nan=True))) if same else 0
                )
        lost.append(missing)
    database.close()
    return lost


if __name__ == "__main__":
    main()
