"""Measure the open history: a run to pandas and Arrow beside W&B's reader and plain SQLite, Parquet files, a fleet of 10,000 runs.

W&B's own reader is measured where it is installed: in `.venv-bench`, with its Python, if its version is below 0.22: later ones
have none in Python.
"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from histories import history
from processes import ROOT

import trackside
from bench.history import BEGIN, SECOND, Filling, floats
from bench.table import head, machine, row, verdict
from trackside_daemon.bridges.parquet.fleet import ask, prepared
from trackside_daemon.bridges.parquet.layout import schemas
from trackside_daemon.bridges.parquet.store import FileStore
from trackside_daemon.model.records import RunState

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS, KEYS = 1_000_000, 25
RIVAL_STEPS = 5_000
RUNS = 10_000
ROUNDS = 7
RIVAL = ROOT / ".venv-bench" / "bin" / "python"

WANDB = """
import json, os, sys, time, glob
os.environ.update(WANDB_SILENT="true", WANDB_ERROR_REPORTING="false")
import wandb
from wandb.proto import wandb_internal_pb2
from wandb.sdk.internal.datastore import DataStore
settings = wandb.Settings(console="off", x_disable_stats=True, disable_git=True, save_code=False)
run = wandb.init(mode="offline", project="p", dir=sys.argv[1], settings=settings)
for step in range(int(sys.argv[2])):
    run.log({f"key{number}": step / 7 + number for number in range(int(sys.argv[3]))})
run.finish()
import pandas
begun = time.process_time()
store = DataStore()
store.open_for_scan(glob.glob(sys.argv[1] + "/wandb/offline-run-*/*.wandb")[0])
rows = []
while (data := store.scan_data()) is not None:
    record = wandb_internal_pb2.Record()
    record.ParseFromString(data)
    if record.WhichOneof("record_type") == "history":
        rows.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item})
frame = pandas.DataFrame(rows)
assert len(frame) == int(sys.argv[2])
print(time.process_time() - begun)
"""
EXPORT = r"""
import re, sys, time
from pathlib import Path
begun = time.perf_counter()
from trackside_daemon.__main__ import main
sys.argv = ["trackside", "archive", sys.argv[2], "--storage.path", sys.argv[1]]
try:
    main()
finally:
    # Not ru_maxrss, which also counts the process that started this one.
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    print(time.perf_counter() - begun, int(peak[1]) >> 10)
"""


def main() -> None:
    """Print the tables."""
    machine()
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place, "history")
        _fill(directory, STEPS, KEYS)
        frames(directory, Path(place))
        exported(Path(place))
        fleet(Path(place, "fleet"))


def frames(directory: Path, place: Path) -> None:
    """Compare a run as a table with plain rows and with W&B."""
    run = trackside.open("run", path=directory)
    run.to_pandas()
    pandas, arrow = (_median(work) for work in (run.to_pandas, run.to_arrow))
    head(f"{STEPS:,} steps of {KEYS} keys to a table", "seconds", "CPU, s", "million samples per CPU second")
    samples = STEPS * KEYS
    for what, (wall, cpu) in (
        ("pandas", pandas),
        ("Arrow", arrow),
        ("a plain table of SQLite, a row for each step, to pandas", _plain_rows(place / "plain.db", run.to_pandas())),
    ):
        row(what, f"{wall:.2f}", f"{cpu:.2f}", f"{samples / cpu / 1e6:.1f}")
    rival = _rival(place)
    count = RIVAL_STEPS * KEYS
    name = f"W&B's offline reader, {RIVAL_STEPS:,} steps, to pandas"
    row(name, "", *(("-", "-") if rival is None else (f"{rival:.2f}", f"{count / rival / 1e6:.1f}")))
    head("limit", "measured", "target", "")
    verdict("to pandas", f"{pandas[0]:.2f} s", "<= 1.0 s", met=pandas[0] <= 1.0)
    verdict("to Arrow", f"{arrow[0]:.2f} s", "<= 0.7 s", met=arrow[0] <= 0.7)


def exported(place: Path) -> None:
    """Measure the export of 10 million samples."""
    directory = place / "ten"
    _fill(directory, 500_000, 20)
    printed = subprocess.run(
        [sys.executable, "-c", EXPORT, directory, place / "out"], capture_output=True, text=True, check=True
    )
    seconds, memory = map(float, printed.stdout.split()[-2:])
    own = sum(path.stat().st_size for path in directory.glob("history.db*"))
    files = sum(path.stat().st_size for path in (place / "out").rglob("*.parquet"))
    verdict("10 million samples to Parquet", f"{seconds:.1f} s", "<= 5 s", met=seconds <= 5)
    verdict("memory of the process", f"{memory:.0f} MiB", "<= 200 MiB", met=memory <= 200)
    verdict("size / the history's", f"{files / own:.2f}", "<= 1.5", met=files <= 1.5 * own)


def fleet(place: Path) -> None:
    """Measure a question over many runs."""
    chance, schema = random.Random(1), schemas()["runs"]
    for number in range(RUNS):
        path = place / "runs" / f"date=2026-{number % 12 + 1:02}-{number % 28 + 1:02}" / f"name=run{number % 50}"
        path.mkdir(parents=True, exist_ok=True)
        lost = chance.expovariate(0.1)
        causes = [
            {"cause": "data_wait", "summary": "the loader is slow", "lost_seconds": lost * 3600, "gpu_hours": lost}
        ] * 3
        facts = {
            "version": 1,
            "run": f"id{number}",
            "name": f"run{number % 50}",
            "host": f"node{number % 64}",
            "state": "finished",
        }
        facts |= {
            "lost_gpu_hours": lost,
            "gpu_hours": lost * 5,
            "causes": causes,
            "config": '{"lr": 0.1}' * 20,
            "tags": ["a"],
        }
        facts |= {"ledger": [("compute", lost), ("data_wait", lost)], "started": 1_790_000_000_000_000 + number}
        pq.write_table(pa.Table.from_pylist([facts], schema=schema), path / f"id{number}.parquet", compression="zstd")
    store = FileStore(str(place))
    seconds, _ = _median(lambda: ask(store, prepared("worst 20 runs by lost GPU hours")))
    verdict("`worst 20 runs by lost GPU hours` over 10,000 runs", f"{seconds:.2f} s", "<= 2 s", met=seconds <= 2)


def _fill(directory: Path, steps: int, keys: int) -> None:
    with history(directory) as one:
        filling = Filling(one.writer, "run", [f"key{number}" for number in range(keys)], floats())
        filling.fill(steps)
        filling.settle()
        one.put([RunState("run", 0, "finished", "", BEGIN / SECOND + steps / 10)])


def _plain_rows(path: Path, table: Any) -> tuple[float, float]:
    import pandas as pd

    keys = [name for name in table.columns if name.startswith("key")]
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE sample (step INTEGER PRIMARY KEY, {', '.join(keys)})")
        marks = ", ".join("?" * (len(keys) + 1))
        connection.executemany(f"INSERT INTO sample VALUES ({marks})", table[["step", *keys]].itertuples(index=False))
        connection.commit()
        return _median(lambda: pd.read_sql_query("SELECT * FROM sample", connection), 1)


def _rival(place: Path) -> float | None:
    if not RIVAL.exists():
        return None
    command = [str(RIVAL), "-c", WANDB, str(place / "w"), str(RIVAL_STEPS), str(KEYS)]
    (place / "w").mkdir()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"W&B's reader cannot be measured: {done.stderr.strip().rpartition(chr(10))[2]}", file=sys.stderr)
        return None
    return float(done.stdout.split()[-1])


def _median(work: Callable[[], Any], rounds: int = ROUNDS) -> tuple[float, float]:
    """Return the median seconds of wall time, and of CPU time."""
    walls, used = [], []
    for _ in range(rounds):
        begun, before = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - begun)
        used.append(time.process_time() - before)
    return median(walls), median(used)


if __name__ == "__main__":
    main()
