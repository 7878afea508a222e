"""Measure how long the API takes for the maps of a model of 48 layers over 100,000 steps; print a table.

python bench/layer_map.py             fill a history, and ask a daemon over HTTP
python bench/layer_map.py DIRECTORY   keep the history in that directory, and use one that is there
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import httpx
from histories import History, opened
from layer_frames import buckets_of, column_values
from processes import Daemon
from session_records import batch_ingested

from bench.table import head, machine, row, verdict
from trackside.packing import pack
from trackside.wire import DISTRIBUTION_COLUMNS, DistributionFrame

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STEPS, EVERY = 100_000, 64
BLOCKS, HEADS = 48, 8
PARTS = ("attn.qkv", "attn.out", "mlp.up", "mlp.down", "norm")
REQUESTS = 30
POINTS = 300  # of the dashboard
LIMIT = 0.1
SECOND = 10**9


def main() -> None:
    """Print the table."""
    machine()
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as own:
        place = Path(sys.argv[1] if sys.argv[1:] else own)
        place.mkdir(exist_ok=True)
        if not (place / "history").exists():
            _fill(place / "history")
        daemon = Daemon(place, fresh=True)
        try:
            _measure(daemon)
        finally:
            daemon.stop()


def _fill(directory: Path) -> None:
    history = History(directory)
    for run, every in (("deep-0", 20 * EVERY), ("deep-1", EVERY)):
        record = opened(run, name=run)
        history.put([record])
        for number, step in enumerate(range(every, STEPS + 1, every)):
            frames = [_frame(kind, names, step, every) for kind, names in KINDS.items()]
            history.put([batch_ingested(record.session.id, number + 1, distributions=frames)])
    history.wait_until_packed()
    history.close()


def _frame(kind: str, names: Sequence[str], step: int, seed: int) -> DistributionFrame:
    spread = random.Random(step + seed)
    drift = 1 + step / STEPS
    rows = []
    for place in range(len(names)):
        values = {**COLUMNS, "update_ratio": 1e-3, "rank": 8.0, "saturated": 0.01}
        values |= {"entropy": 0.5, "logit": 9.0}
        rows.append({name: one * drift * (1 + place / 99) * spread.uniform(0.9, 1.1) for name, one in values.items()})
    columns = {name: pack("f", [one[name] for one in rows]) for name in DISTRIBUTION_COLUMNS[kind]}
    buckets = [BUCKETS[(place + 4 * step // STEPS) % len(BUCKETS)] for place in range(len(names))]
    return DistributionFrame(
        kind, step * SECOND // 100, list(names), columns, [] if kind == "attention" else buckets, step
    )


def _measure(daemon: Daemon) -> None:
    token = (daemon.directory / "push.token").read_text().strip()
    head(f"{BLOCKS} layers, {STEPS:,} steps", "rows", "columns", "size, kB", "median, ms", "longest, ms")
    medians = {}
    with httpx.Client(base_url=daemon.url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
        for name, query in _queries():
            taken, body = [], {}
            for _ in range(REQUESTS):
                begun = time.perf_counter()
                answer = client.get(f"/api/v1/runs/deep-1/{query}")
                taken.append(time.perf_counter() - begun)
                body = answer.raise_for_status().json()
            medians[name] = median(taken)
            rows, columns = len(body.get("layers", "1")), len(body["steps"])
            size, times = len(answer.content) / 1e3, [f"{one * 1e3:.0f}" for one in (median(taken), max(taken))]
            row(name, str(rows if isinstance(body.get("layers"), list) else 1), str(columns), f"{size:.0f}", *times)
    head("limit", "measured", "target", "")
    most = max(one for name, one in medians.items() if name.startswith("map"))
    verdict("the slowest map", f"{most * 1e3:.0f} ms", f"<= {LIMIT * 1e3:.0f} ms", met=most <= LIMIT)


def _queries() -> Iterator[tuple[str, str]]:
    for kind, value in (
        ("weights", "norm"),
        ("weights", "update_ratio"),
        ("activations", "largest"),
        ("attention", "entropy"),
    ):
        yield f"map, {kind}: {value}", f"layers?kind={kind}&value={value}&points={POINTS}"
    yield "map, weights: norm, of a tenth of the steps", f"layers?kind=weights&from=50000&to=60000&points={POINTS}"
    yield "bands of one layer", f"layers/{KINDS['weights'][-1]}?kind=weights&points={POINTS}"


SAMPLE = [random.Random(4711).gauss(0, 0.02) for _ in range(4096)]
COLUMNS = column_values(SAMPLE)
BUCKETS = [buckets_of([one * 2**scale for one in SAMPLE]).packed() for scale in range(8)]
_LAYERS = [f"blocks.{block}.{part}" for block in range(BLOCKS) for part in PARTS]
KINDS: dict[str, Any] = {
    "weights": _LAYERS,
    "gradients": _LAYERS,
    "activations": [f"blocks.{block}.{part}" for block in range(BLOCKS) for part in ("attn", "mlp")],
    "attention": [f"blocks.{block}.attn/{one}" for block in range(BLOCKS) for one in range(HEADS)],
}

if __name__ == "__main__":
    main()
