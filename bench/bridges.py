"""Measure bridges: how fast runs of other tools are read and imported, what reading a large file takes, and the mirrors.

TensorBoard's and W&B's own readers are measured where they are installed: in `.venv-bench`, with its Python.
"""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from histories import column, history, opened
from processes import Daemon

from bench.push import call
from bench.table import head, machine, row, verdict
from trackside.packing import encoded_varint
from trackside_daemon.bridges.finding import find_runs
from trackside_daemon.bridges.mirrors.positions import Positions
from trackside_daemon.bridges.mirrors.target import Row
from trackside_daemon.bridges.mirrors.worker import Mirror
from trackside_daemon.bridges.tensorboard.event_file import EventFile, masked_crc
from trackside_daemon.bridges.tensorboard.mirror import EventFiles, encoded_event, encoded_record
from trackside_daemon.history.files.importing import import_run
from trackside_daemon.history.files.left_out import LeftOut
from trackside_daemon.history.files.run_file import RunFile

if TYPE_CHECKING:
    from collections.abc import Callable

SCALARS = 400_000
TAGS = 10
ROUNDS = 5
PUSH_ROUNDS = 5
BEGIN = 1_700_000_000
RIVAL = Path(".venv-bench/bin/python")

OWN = """
import resource, sys
from pathlib import Path
from trackside_daemon.bridges.tensorboard.event_file import EventFile
from trackside_daemon.history.files.left_out import LeftOut
count = sum(len(events.scalars) for events in EventFile(Path(sys.argv[1]), LeftOut()).read())
print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""
ACCUMULATOR = """
import sys, time
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
begun = time.perf_counter()
reader = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
reader.Reload()
print(time.perf_counter() - begun)
"""


def main() -> None:
    """Print the tables."""
    machine()
    with tempfile.TemporaryDirectory() as place:
        scalars = Path(place, "runs", "exp", f"events.out.tfevents.{BEGIN}.host.1.0")
        scalars.parent.mkdir(parents=True)
        _write_scalars(scalars)
        head("reading an event file of 400,000 scalars", "scalars/s")
        own = _rate(lambda: _read(scalars))
        row("our reader", f"{own:,.0f}")
        rival = _rival(scalars)
        row("TensorBoard's EventAccumulator, no size guidance", "-" if rival is None else f"{rival:,.0f}")
        row("import into a history, with all indices", f"{_rate(lambda: _import(scalars.parent)):,.0f}")
        large = Path(place, "large.tfevents")
        _write_images(large)
        took, memory = _large(large)
        sent = _mirror(Path(place))
        plain, mirrored = _push_costs(Path(place))
        head("limit", "measured", "target", "")
        verdict("event file, scalars/s without numpy", f"{own:,.0f}", ">= 60,000", met=own >= 60_000)
        verdict("event file, scalars/s (nothing needs numpy)", f"{own:,.0f}", ">= 300,000", met=own >= 300_000)
        verdict("1 GB with images: memory", f"{memory} MiB", "<= 100 MiB", met=memory <= 100)
        row("1 GB with images: time", f"{took:.2f} s", "", "")
        row("mirror to event files, samples/s", f"{sent:,.0f}", "", "")
        row("`run.push` between steps of 1 ms, p50, without a mirror", f"{plain:.2f} µs", "", "")
        row("the same with a mirror to event files", f"{mirrored:.2f} µs", "", "")
        verdict("with / without a mirror", f"{mirrored / plain:.3f}", "<= 1.05", met=mirrored <= 1.05 * plain)


def _rate(work: Callable[[], int]) -> float:
    rates = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        count = work()
        rates.append(count / (time.perf_counter() - begun))
    return median(rates)


def _read(path: Path) -> int:
    return sum(len(events.scalars) for events in EventFile(path, LeftOut()).read())


def _import(directory: Path) -> int:
    (run,) = find_runs(str(directory), {})
    with tempfile.TemporaryDirectory() as place, history(Path(place)) as one:
        samples = import_run(one.writer, RunFile(run.items(), run.place, id=run.id)).samples
        one.wait_until_packed()
    return samples


def _rival(path: Path) -> float | None:
    if not RIVAL.exists():
        return None
    done = subprocess.run([RIVAL, "-c", ACCUMULATOR, path], capture_output=True, text=True, check=True)
    return SCALARS / float(done.stdout)


def _large(path: Path) -> tuple[float, int]:
    """Return the seconds and the MiB of memory that a process needs to read a file."""
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", OWN, path], capture_output=True, text=True, check=True)
    count, memory = map(int, done.stdout.split())
    assert count == 1000
    return time.perf_counter() - begun, memory


def _mirror(place: Path) -> float:
    with history(place / "history") as one:
        one.put([opened("a", started=time.time())])
        keys = [f"k{key}" for key in range(TAGS)]
        for number in range(40):
            one.put([column("a", keys, 512, number=number + 1)])
        mirror = Mirror(one.database.path, Positions(place / "positions.db"), EventFiles(place / "tb"))
        begun = time.perf_counter()
        mirror.poll()
        assert mirror.status.sent == 40 * 512 * TAGS
        return mirror.status.sent / (time.perf_counter() - begun)


def _push_costs(place: Path) -> tuple[float, float]:
    """Return the median cost of a push with a daemon without a mirror, and with one that has it, in µs, in turns."""
    config = place / "trackside.yml"
    config.write_text(json.dumps({"bridges": {"tensorboard": {"directory": str(place / "mirrored")}}}))
    found: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as first,
        tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as second,
    ):
        daemons = {
            "plain": Daemon(Path(first), fresh=True),
            "mirrored": Daemon(Path(second), f"--config.file={config}", fresh=True),
        }
        for _ in range(PUSH_ROUNDS):
            for name, daemon in daemons.items():
                one = call("run.push", daemon.endpoint, 1.0, 8)
                assert one is not None
                found.setdefault(name, []).append(one["p50"])
        for daemon in daemons.values():
            daemon.stop()
    return median(found["plain"]), median(found["mirrored"])


def _write_scalars(path: Path) -> None:
    chance = random.Random(1)
    with path.open("wb") as file:
        file.write(encoded_record(b"\x1a\x0dbrain.Event:2"))
        for number in range(SCALARS):
            step, tag = divmod(number, TAGS)
            values = {f"train/metric{tag}": chance.random()}
            file.write(encoded_record(encoded_event(Row(0, 0, True, step, BEGIN * 1_000_000 + number * 100, values))))


def _write_images(path: Path) -> None:
    """Write 1 GB of images of 1 MB, with a scalar after each."""
    size = 1_000_000
    picture = b"\x0a\x01i\x22" + encoded_varint(size) + bytes(size)
    value = b"\x0a" + encoded_varint(len(picture)) + picture
    event = b"\x09" + struct.pack("<d", BEGIN) + b"\x10\x01\x2a" + encoded_varint(len(value)) + value
    length = struct.pack("<Q", len(event))
    record = length + struct.pack("<I", masked_crc(length)) + event + bytes(4)
    with path.open("wb") as file:
        for step in range(1000):
            file.write(record)
            file.write(encoded_record(encoded_event(Row(0, 0, True, step, BEGIN * 1_000_000, {"loss": 1.0}))))


if __name__ == "__main__":
    main()
