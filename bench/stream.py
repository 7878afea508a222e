"""Measure what 50 browsers on the stream cost the daemon while eight ranks push, and whether a push is lost.

Run by ``make bench``. All browsers also watch the run, which is the costlier half. Phases with and without them alternate,
with the same daemon and the same training, so that the common cost cancels out.

"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from processes import Daemon, eventually

from bench.cost import cpu
from bench.feeder import KEYS
from bench.ingest import SPAWN, _kept
from bench.table import head, machine, row, verdict

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

LISTENERS = 50
RANKS = 8
STEPS_A_SECOND = 10
RUN = "watched"
LIMIT = 0.02
"""Of a core, for all listeners together."""

SETTLE_SECONDS = 2.0
"""Seconds between two periods, so that each is measured in its steady state."""


class Heard(NamedTuple):
    """The received events of the listener with the fewest, and the bytes of all listeners."""

    events: int
    bytes: int


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15.0)
    asked = parser.parse_args()
    machine()
    head(
        f"{LISTENERS} listeners, {RANKS} ranks with {STEPS_A_SECOND} steps/s of {len(KEYS)} values",
        "measured",
        "target",
        "",
    )
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        daemon = Daemon(Path(directory), "--collector.gpu.simulate=8", fresh=True)
        ends = [_begin(_train, daemon.endpoint, rank) for rank in range(RANKS)]
        eventually(lambda: daemon.api(f"runs/{RUN}").status_code == 200)
        alone, listened, heard = [], [], []
        for _ in range(asked.rounds):
            alone.append(_share(daemon, asked.seconds))
            listening = _begin(_listen, daemon.url, (daemon.directory / "push.token").read_text().strip())
            assert listening.recv() == "all listen"
            listened.append(_share(daemon, asked.seconds))
            listening.send("enough")
            heard.append(listening.recv())
        for end in ends:
            end.send("enough")
        pushed = sum(end.recv() for end in ends) * len(KEYS)
        daemon.stop()
        _show(alone, listened, heard, asked.seconds)
        kept = _kept(daemon.history, RUN)
    verdict(f"of {pushed:,} pushed values, missing from the history", f"{pushed - kept:,}", "0", met=pushed == kept)
    print()


def _show(alone: list[float], listened: list[float], heard: list[Heard], seconds: float) -> None:
    without, beside = statistics.median(alone), statistics.median(listened)
    more = statistics.median(after - before for before, after in zip(alone, listened, strict=True))
    row("the daemon's share of a core without listeners", f"{without:.1%}", "", "")
    row("the same with listeners", f"{beside:.1%}", "", "")
    verdict("cost of the listeners, median of the rounds", f"{more:.1%}", f"<= {LIMIT:.0%}", met=more <= LIMIT)
    fewest, whole = min(one.events for one in heard), int(seconds)
    verdict(
        f"events in {whole} s for the listener that received the fewest",
        f"{fewest}",
        f">= {whole - 1}",
        met=fewest >= whole - 1,
    )
    row(
        "bytes per event, including the details of the run",
        f"{heard[0].bytes / heard[0].events / LISTENERS:,.0f}",
        "",
        "",
    )


def _begin(target: object, *arguments: object) -> Connection:
    """Start a process and return it with our end of a pipe."""
    here, there = SPAWN.Pipe()
    SPAWN.Process(target=target, args=(there, *arguments)).start()  # type: ignore[arg-type]
    there.close()
    return here


def _share(daemon: Daemon, seconds: float) -> float:
    """Return the CPU of the daemon and its worker during a phase, as a share of a core."""
    time.sleep(SETTLE_SECONDS)
    pids = daemon.pids().values()
    used, begun = sum(map(cpu, pids)), time.monotonic()
    time.sleep(seconds)
    return (sum(map(cpu, pids)) - used) / (time.monotonic() - begun)


def _train(end: Connection, endpoint: str, rank: int) -> None:
    """Push as a rank until asked to stop."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)}
    import trackside

    chance, step, begun = random.Random(rank), 0, time.monotonic()
    with trackside.init(RUN, id=RUN, endpoint=endpoint) as run:
        while not end.poll(max(0.0, begun + step / STEPS_A_SECOND - time.monotonic())):
            run.push({key: chance.gauss(2.5, 0.1) for key in KEYS}, step=step)
            step += 1
    end.send(step)


def _listen(end: Connection, url: str, token: str) -> None:
    """Run all listeners in one process; send `Heard` when asked to stop."""
    end.send(asyncio.run(_all(end, url, token)))


async def _all(end: Connection, url: str, token: str) -> Heard:
    host, port = url.removeprefix("http://").split(":")
    request = f"GET /api/v1/stream?run={RUN} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    events, size = [0] * LISTENERS, [0] * LISTENERS
    first = [asyncio.Event() for _ in events]

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request)
        while piece := await reader.read(65536):
            events[number] += piece.count(b"event: overview\n")
            size[number] += len(piece)
            if events[number]:
                first[number].set()

    tasks = [asyncio.ensure_future(one(number)) for number in range(LISTENERS)]
    await asyncio.gather(*(each.wait() for each in first))
    end.send("all listen")
    await asyncio.to_thread(end.recv)
    for task in tasks:
        task.cancel()
    return Heard(min(events), sum(size))


if __name__ == "__main__":
    main()
