"""Measure `trackside why` of a run of 10 million samples, on a machine with 8 GPUs, alone and with a baseline of the same size.

Usage: PYTHONPATH=tests:. python bench/diagnosis.py [MILLIONS]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

from processes import ROOT, clean_environ

from bench import table
from bench.history import BEGIN, SECOND, Filling, floats, timed
from trackside_daemon.collectors.gpu.gpu import GpuCollector
from trackside_daemon.diagnosis.diagnosis import diagnose
from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.history.database import Database
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.record.writer import Writer
from trackside_daemon.model.records import MachineSample, RunState
from trackside_daemon.nvml.simulation.simulate import simulate, uuid

KEYS = 10
GPUS = 8
EVERY = 10.0  # seconds between two samples of the machine
SLOTS = 2000  # samples of the machine that are kept: of 6 hours
LIMIT = 300.0  # milliseconds
REPEATS = 15


def main() -> None:
    """Print a table."""
    rows = int(1e6 * float((sys.argv[1:] or ["10"])[0]) / KEYS)
    table.machine()
    table.head(f"`why` of {rows * KEYS / 1e6:,.0f} million samples, {GPUS} GPUs, ms", "measured", "limit", "")
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        place = Path(directory)
        database = Database(place)
        writer = Writer(database, Bounds(0))
        writer.start()
        fill(writer, "first", rows)
        fill_machine(writer)
        took = why(database, "first")
        table.verdict("one run", f"{took:.0f}", f"<= {LIMIT:.0f}", met=took <= LIMIT)
        fill(writer, "second", rows)
        took = why(database, "second")
        table.verdict("with its baseline of the same size", f"{took:.0f}", f"<= {LIMIT:.0f}", met=took <= LIMIT)
        writer.stop()
        database.close()
        table.row("the command, with the start of Python", f"{command(place):.0f}", "", "")


def fill(writer: Writer, run: str, rows: int) -> None:
    """Push a run, all of one name, and end it."""
    filling = Filling(writer, run, ["loss", *(f"key{number}" for number in range(1, KEYS))], floats())
    filling.fill(rows)
    filling.settle()
    writer.put([RunState(run, 0, "finished", "", BEGIN / SECOND + rows / 10)])
    writer.call(lambda store: store.connection.execute("UPDATE run SET name = 'bench'")).result()


def fill_machine(writer: Writer) -> None:
    """Write samples of GPUs, host and ranks, as the daemon stores them."""
    for slot in range(SLOTS):
        moment = EVERY * slot
        values = {
            f"trackside_gpu_{family}{{{','.join(sorted(_labels(gpu.index, family, labels)))}}}": value
            for gpu in simulate(GPUS, moment).gpus
            for family, labels, value in gpu.values
        }
        for rank in range(GPUS):
            pid = f'pid="{100 + rank}"'
            values[f'trackside_gpu_rank_info{{gpu="{rank}",rank="{rank}",run="bench",uuid="{uuid(rank)}"}}'] = 1.0
            values[f'trackside_process_info{{{pid},rank="{rank}",role="rank",run="bench",run_id="first"}}'] = 1.0
            values[f'trackside_process_cpu_seconds_total{{mode="user",{pid}}}'] = moment
            values[f"trackside_process_resident_memory_bytes{{{pid}}}"] = 2.0**33
        values |= {f"trackside_host_series_{number}_total": moment for number in range(300)}
        values |= {"trackside_host_pressure_io_stalled_seconds_total": 0.0, "trackside_host_cpus": 64.0}
        writer.put([MachineSample(BEGIN / SECOND + moment, values)])
        while not writer.has_room():
            time.sleep(0.01)
    writer.call(lambda _: None).result()
    while writer.call(lambda store: bool(store.due)).result():
        time.sleep(0.05)


def _labels(index: int, family: str, labels: tuple[str, ...]) -> list[str]:
    names = [name for name in _NAMES.get(family, ()) if name not in {"gpu", "uuid"}]
    own = [f'{name}="{label}"' for name, label in zip(names, labels, strict=True)]
    return [f'gpu="{index}"', f'uuid="{uuid(index)}"', *own]


_NAMES = {metric.name.removeprefix("trackside_gpu_"): metric.labels for metric in GpuCollector.metrics}


def why(database: Database, run: str) -> float:
    """Return the median milliseconds of a diagnosis."""

    def diagnosed() -> None:
        with database.reading() as connection:
            diagnose(connection, run, CostSection())

    diagnosed()
    return timed(partial(diagnosed), REPEATS)[0]


def command(place: Path) -> float:
    """Return the median milliseconds of the command without a daemon."""
    script = str(ROOT / ".venv" / "bin" / "trackside")
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        subprocess.run(
            [script, "why", "second", f"--storage.path={place}"], check=True, capture_output=True, env=clean_environ({})
        )
        times.append(time.perf_counter() - begun)
    return 1000 * median(times)


if __name__ == "__main__":
    main()
