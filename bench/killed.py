"""Measure what a training loses that SIGKILL ends: the last step that it pushed, and the last one in the history.

PYTHONPATH=tests:. .venv/bin/python bench/killed.py [KILLS [MILLISECONDS]]
"""

from __future__ import annotations

import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from processes import clean_environ, eventually

from bench.cost import precise
from bench.daemons import fresh_daemon
from bench.table import at_most, head, machine, row
from trackside_daemon.history.database import Database
from trackside_daemon.history.read import reader, series

KILLS, MILLISECONDS = 30, 5.0
SECONDS = 1.0, 2.0  # for which a training goes on once it pushes

#: Pushes five values a step, and writes its number into a file that others map, too.
TRAINING = """
import mmap, struct, sys, time, trackside
file = open(sys.argv[1], "r+b")
shared = mmap.mmap(file.fileno(), 8)
run, step, began = trackside.init(sys.argv[2]), 0, time.monotonic()
while True:
    run.push(step=step, loss=2.0, a=1.0, b=2.0, c=3.0, d=4.0)
    struct.pack_into("<q", shared, 0, step)
    step += 1
    time.sleep(max(0.0, began + step * float(sys.argv[3]) / 1000 - time.monotonic()))
"""


def main() -> None:
    """Print the tables."""
    kills = int(sys.argv[1]) if sys.argv[1:] else KILLS
    milliseconds = float(sys.argv[2]) if sys.argv[2:] else MILLISECONDS
    machine()
    with fresh_daemon() as daemon, tempfile.TemporaryDirectory(prefix="ts-") as place:
        environ = clean_environ({"TRACKSIDE_ENDPOINT": daemon.endpoint})
        pushed, shares = {}, []
        for number in range(kills):
            shared = Path(place, str(number))
            shared.write_bytes(bytes(8))
            arguments = [str(shared), f"killed-{number}", str(milliseconds)]
            training = subprocess.Popen([sys.executable, "-c", TRAINING, *arguments], env=environ)
            eventually(lambda shared=shared: struct.unpack("<q", shared.read_bytes())[0] > 0)  # type: ignore[misc]
            time.sleep(1.0)
            before, since = _background(training.pid), time.monotonic()
            time.sleep(random.uniform(*SECONDS))  # any moment will do
            shares.append((_background(training.pid) - before) / (time.monotonic() - since) * 100)
            training.kill()
            training.wait()
            pushed[f"killed-{number}"] = struct.unpack("<q", shared.read_bytes())[0]
        time.sleep(5.0)  # the daemon searches every two seconds for what they left
        daemon.stop()
        lost = [(last - _stored(daemon.history, run)) * milliseconds for run, last in pushed.items()]
    head(f"{kills} kills, steps of {milliseconds:g} ms", "median", "nine in ten", "most")
    row(
        "lost, ms",
        *(f"{one:.0f}" for one in (statistics.median(lost), statistics.quantiles(lost, n=10)[-1], max(lost))),
    )
    head("limit", "measured", "target", "")
    at_most("lost, median", statistics.median(lost), 25, "ms")
    at_most("CPU of the other threads of the training, of a core, median", statistics.median(shares), 1, "%")


def _background(pid: int) -> float:
    """Return CPU seconds of the client's threads and ZeroMQ's."""
    main_thread = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]
    return precise(pid) - int(main_thread) / 1e9


def _stored(directory: Path, run: str) -> int:
    """Return the last step of a run in a history that no daemon writes any longer; -1 if it has none."""
    database = Database(directory)
    try:
        with database.reading() as connection:
            found = reader.series(connection, reader.resolve(connection, run), ranks=())
        (loss,) = [one.series for one in found if one.series.key == "loss"]
        return max((int(max(steps)) for steps, _, _ in series.samples(database, loss)), default=-1)
    finally:
        database.close()


if __name__ == "__main__":
    main()
