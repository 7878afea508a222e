"""Measure what floods of the push socket cost: a daemon with 1,024 descriptors and 512 MiB, and four trainings that push to it.

Run by ``make bench``; prints a table in Markdown. ``python bench/abuse.py SECONDS`` sends random frames for so long; the limit in
the table applies to 600.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from end_to_end.test_delivery import KEYS, PACED, complete
from end_to_end.test_history import PATIENT, QUIET, counted, kept
from hostile_clients import ENDLESS_MESSAGE, LIMITED, MANY_CONNECTIONS, RANDOM_FRAMES
from processes import Daemon, clean_environ, eventually

from bench.cost import memory
from bench.table import head, machine, row, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 600.0
TRAININGS = 4
REST_SECONDS = 5.0


class Watch:
    """A thread that scrapes ten times a second, and reads the memory of the daemon and its children.

    Attributes:
        scrapes: Milliseconds of each scrape.
        most: The highest memory, in MiB.
    """

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._stopping = threading.Event()
        self.reset()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Begin anew."""
        self.scrapes: list[float] = []
        self.most = 0.0

    def memory(self) -> float:
        """Return the memory now, in MiB: the sum of the resident sets."""
        total = 0.0
        for pid in self._daemon.pids().values():
            with suppress(OSError, KeyError):  # a process has just ended
                total += memory(pid)[0]
        return total

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(0.1):
            asked = time.perf_counter()
            assert self._daemon.get("/metrics").status_code == 200
            self.scrapes.append((time.perf_counter() - asked) * 1000)
            self.most = max(self.most, self.memory())


def main() -> None:
    """Print the table."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    machine()
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        daemon = Daemon(Path(directory), *QUIET, launcher=LIMITED)
        trainings = [_train(daemon, f"honest{number}") for number in range(TRAININGS)]
        eventually(lambda: counted(daemon, "history_samples_total") > 0)
        watch = Watch(daemon)
        time.sleep(REST_SECONDS)
        before = watch.memory()
        head("flood", "scrape, median (most), ms", "memory, most, MiB", "replaced workers")
        _report(daemon, watch, "none")
        floods = {
            "3,000 connections": (MANY_CONNECTIONS, (750,), 4),
            "a message of 700 MB in frames of 1 MiB": (ENDLESS_MESSAGE, (1 << 20, 700), 1),
            "a message of 6,000,000 frames of 1 byte": (ENDLESS_MESSAGE, (1, 6_000_000), 1),
            f"random frames for {seconds:g} s": (RANDOM_FRAMES, (seconds, 7), 1),
        }
        slowest = 0.0
        for what, (program, arguments, number) in floods.items():
            watch.reset()
            with _attack(Path(directory), program, arguments, number):
                slowest = max(slowest, _report(daemon, watch, what))
        time.sleep(REST_SECONDS)
        after = watch.memory()
        watch.stop()
        steps = [int(training.communicate()[0]) for training in trainings]
        daemon.stop()
        found = [kept(daemon.history, f"honest{number}") for number in range(TRAININGS)]
        exact = all(
            {key: one[0, 0, key] for key in KEYS} == complete(pushed) for one, pushed in zip(found, steps, strict=True)
        )
        head("limit", "measured", "target", "")
        pushed = f"{sum(steps) * len(KEYS):,}"
        verdict(
            f"of {pushed} samples of {TRAININGS} trainings, each in the history exactly once",
            "all" if exact else "no",
            "all",
            met=exact,
        )
        verdict("the slowest scrape", f"{slowest:.0f} ms", "<= 1000 ms", met=slowest <= 1000)
        growth = after / before - 1
        verdict("memory afterwards, compared with before", f"{growth:+.0%}", "<= 20 %", met=growth <= 0.2)


def _train(daemon: Daemon, run: str) -> subprocess.Popen[str]:
    environ = clean_environ({"TRACKSIDE_ENDPOINT": daemon.endpoint, "TRACKSIDE_RUN_ID": run, **PATIENT})
    arguments = [sys.executable, "-c", PACED, "50", "100"]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)


@contextmanager
def _attack(directory: Path, program: str, arguments: tuple[float, ...], number: int) -> Iterator[None]:
    """Run processes of a program of `hostile_clients`; end them when all are done and the block has ended."""
    command = [sys.executable, "-c", program, str(directory / "push.sock"), *map(str, arguments)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(number)
    ]
    for one in started:
        assert one.stdout is not None
        assert one.stdout.readline()
    yield
    for one in started:
        one.communicate()


def _report(daemon: Daemon, watch: Watch, what: str) -> float:
    """Print what the watch has seen; return the slowest scrape in milliseconds."""
    time.sleep(1.0)  # some more scrapes while the connections are open
    slowest = max(watch.scrapes)
    restarts = counted(daemon, "ingest_worker_restarts_total")
    row(what, f"{statistics.median(watch.scrapes):.0f} ({slowest:.0f})", f"{watch.most:.0f}", f"{restarts:g}")
    return slowest


if __name__ == "__main__":
    main()
