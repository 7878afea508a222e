"""Record the unshared memory of processes whose memory grows and stays bounded, and of some that leak.

``python -m bench.bounded_memory tests/detectors/data/bounded_memory.csv.gz`` writes the table that the tests of
HostMemoryLeak replay: a row a step, a column a behaviour, in bytes (private pages of smaps_rollup). Each behaviour is a
process of its own that does what trainings do: it caches, reuses buffers, maps files, or forgets to free. Recording takes a
minute or two, two processes at a time. A second argument is the seed.

"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import mmap
import os
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS = 1200
PAUSE = 0.004
"""Seconds of sleep per step: recording takes little CPU."""

BASE = 256 << 20
"""Bytes of the model and the libraries, which each process holds from the beginning."""

RECORDED = Path(__file__).resolve().parent.parent / "tests" / "detectors" / "data" / "bounded_memory.csv.gz"

rng = random.Random(7)


def lru_cache() -> Iterator[None]:
    """Cache the results for frequent and rare arguments, up to 20,000 of them."""

    @functools.lru_cache(maxsize=20_000)
    def tokens(_: int) -> bytes:
        return bytes(rng.randrange(2_000, 4_000))

    while True:
        for _ in range(150):
            tokens(int(rng.paretovariate(0.6)))
        yield


def tokenizer_cache() -> Iterator[None]:
    """Keep the ids of each word that a tokenizer has seen; rare words make it grow ever more slowly."""
    known: dict[str, list[int]] = {}
    while True:
        for _ in range(400):
            word = f"word-{min(200_000, int(rng.paretovariate(0.5)))}"
            known.setdefault(word, [rng.randrange(50_000) for _ in range(24)])
        yield


def longest_batch() -> Iterator[None]:
    """Hold buffers as large as the longest batch so far, as generation does."""
    buffers = [np.ones(1 << 20, np.uint8) for _ in range(16)]
    while True:
        at, length = rng.randrange(len(buffers)), int(rng.lognormvariate(1.2, 0.5) * (1 << 20))
        if length > len(buffers[at]):
            buffers[at] = np.ones(length, np.uint8)
        yield


def pinned_pool() -> Iterator[None]:
    """Reuse the buffers of a pool by size class, and never return them, as CUDA's pinned memory."""
    free: dict[int, list[Any]] = {}
    while True:
        used = []
        for _ in range(rng.randrange(1, 7)):
            size = 1 << max(16, int(rng.gammavariate(3, 100_000)).bit_length())
            used.append((size, free[size].pop() if free.get(size) else np.ones(size, np.uint8)))
        for size, buffer in used:
            free.setdefault(size, []).append(buffer)
        yield


def mapped_data() -> Iterator[None]:
    """Read random samples of a memory-mapped file: its pages become resident, the first ones fastest."""
    with tempfile.TemporaryFile() as file:
        file.write(bytes(192 << 20))
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            while True:
                for _ in range(40):
                    at = rng.randrange(len(mapped) - 8192)
                    sum(mapped[at : at + 8192 : 4096])
                yield


def arenas() -> Iterator[None]:
    """Allocate and free blocks of all sizes in threads: the arenas of malloc fill with gaps."""
    keep: list[list[bytes]] = [[] for _ in range(6)]

    def work(kept: list[bytes], seed: int) -> None:
        chance = random.Random(seed)
        kept += [bytes(int(chance.lognormvariate(9, 1.5))) for _ in range(30)]
        while len(kept) > 400:
            del kept[chance.randrange(len(kept))]

    with ThreadPoolExecutor(len(keep)) as pool:
        while True:
            list(pool.map(work, keep, [rng.randrange(1 << 30) for _ in keep]))
            yield


def objects() -> Iterator[None]:
    """Keep small objects of changing number: the pools of Python's allocator stay partly used."""
    kept: deque[list[tuple[int, str]]] = deque(maxlen=40)
    while True:
        kept.append([(number, str(number)) for number in range(int(rng.lognormvariate(7.5, 0.8)))])
        yield


def cycles() -> Iterator[None]:
    """Make reference cycles, which the garbage collector frees late."""
    stays = [[float(number)] for number in range(20_000)]
    while True:
        for _ in range(20):
            one: list[Any] = [bytes(3_000)]
            one.append(one)
        stays[rng.randrange(len(stays))] = [rng.random()]
        yield


def database() -> Iterator[None]:
    """Fill the page cache of SQLite, up to its limit."""
    with tempfile.TemporaryDirectory() as directory:
        connection = sqlite3.connect(Path(directory) / "data.db")
        connection.execute("PRAGMA cache_size = -65536")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("CREATE TABLE data (id INTEGER PRIMARY KEY, value BLOB)")
        connection.executemany("INSERT INTO data VALUES (?, ?)", ((number, bytes(3_000)) for number in range(30_000)))
        connection.commit()
        connection.close()
        connection = sqlite3.connect(Path(directory) / "data.db")
        connection.execute("PRAGMA cache_size = -65536")
        while True:
            for _ in range(40):
                connection.execute("SELECT value FROM data WHERE id = ?", (rng.randrange(30_000),)).fetchone()
            yield


def copy_on_write() -> Iterator[None]:
    """Touch objects of a parent, as a data loader's worker does: their pages are copied one by one."""
    held = [f"sample {number} {'x' * 40}" for number in range(1_500_000)]
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with open(reader, "rb") as lines:  # noqa: PTH123  a descriptor
            sys.stdout.buffer.writelines(lines)
        sys.stdout.flush()
        os._exit(0)
    os.dup2(writer, 1)
    rank = np.ones(BASE, np.uint8)  # the daemon adds the memory of a rank and of its workers
    while rank.size:
        for _ in range(150):
            held[rng.randrange(len(held))].title()
        yield


def patterns() -> Iterator[None]:
    """Cache compiled patterns and formatted texts, until the caches are full and emptied."""
    texts: dict[int, str] = {}
    while True:
        for _ in range(4):
            re.compile(f"a{rng.randrange(2_000)}(b|c)*d{{1,{rng.randrange(2, 30)}}}")
            texts[rng.randrange(30_000)] = "x" * rng.randrange(20_000)
        if len(texts) > 2_500:
            texts.clear()
        yield


def evaluations() -> Iterator[None]:
    """Hold predictions of varying number until an evaluation ends, next to a cache of images."""
    images: dict[int, bytes] = {}
    held: list[bytes] = []
    for step in range(1 << 30):
        images.setdefault(rng.randrange(6_000), bytes(12_000))
        if step % 50 < 10:
            held.append(bytes(int(rng.lognormvariate(13.5, 0.3))))
        elif step % 50 == 10:
            held.clear()
        yield


def stacks() -> Iterator[None]:
    """Start threads as they are needed, up to 64, which touch their stacks more or less deeply."""
    work: deque[int] = deque()
    ready = threading.Semaphore(0)

    def deep(levels: int) -> int:
        return deep(levels - 1) + 1 if levels else 0

    def run() -> None:
        while True:
            ready.acquire()
            deep(work.popleft())

    for step in range(1 << 30):
        if step % 9 == 0 and step < 9 * 64:
            threading.Thread(target=run, daemon=True).start()
        for _ in range(8):
            work.append(int(rng.gammavariate(2, 40)) + 10)
            ready.release()
        yield


def leak_steady() -> Iterator[None]:
    """Keep something of each step, next to batches that come and go."""
    kept = []
    while True:
        kept.append(bytes(200_000))
        batch = bytes(int(rng.lognormvariate(14, 0.5)))
        yield
        del batch


def leak_and_cache() -> Iterator[None]:
    """Fill a cache, and keep something of each step as well."""
    cache: dict[int, bytes] = {}
    kept = []
    while True:
        for _ in range(10):
            cache.setdefault(rng.randrange(4_000), bytes(12_000))
        kept.append(bytes(120_000))
        yield


def leak_by_evaluation() -> Iterator[None]:
    """Keep the predictions of each evaluation."""
    kept = []
    for step in range(1 << 30):
        if step % 25 == 0:
            kept.append([bytes(100_000) for _ in range(60)])
        yield


BEHAVIOURS: dict[str, Callable[[], Iterator[None]]] = {
    one.__name__: one
    for one in (
        lru_cache,
        tokenizer_cache,
        longest_batch,
        pinned_pool,
        mapped_data,
        arenas,
        objects,
        cycles,
        database,
        copy_on_write,
        patterns,
        evaluations,
        stacks,
        leak_steady,
        leak_and_cache,
        leak_by_evaluation,
    )
}


def recorded() -> dict[str, list[float]]:
    """Return the recorded memory in bytes, by behaviour."""
    names, *rows = csv.reader(gzip.decompress(RECORDED.read_bytes()).decode().splitlines())
    return {name: [float(row[at]) for row in rows] for at, name in enumerate(names)}


def _behave(name: str) -> None:
    """Print the unshared memory after each step, in bytes."""
    model = np.ones(BASE, np.uint8)
    for _ in islice(BEHAVIOURS[name](), STEPS):
        os.write(1, b"%d\n" % _unshared())
        time.sleep(PAUSE)
    del model
    os._exit(0)


def _unshared() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


def _recorded(name: str) -> list[str]:
    arguments = [sys.executable, "-m", "bench.bounded_memory", "--behave", name, *sys.argv[2:]]
    return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout.split()


def main() -> None:
    """Record all behaviours into a compressed table."""
    if sys.argv[1] == "--behave":
        rng.seed(":".join(sys.argv[3:]))
        _behave(sys.argv[2])
    with ThreadPoolExecutor(2) as pool:
        columns = list(pool.map(_recorded, BEHAVIOURS))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([BEHAVIOURS, *zip(*columns, strict=True)])
    Path(sys.argv[1]).write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


if __name__ == "__main__":
    main()
