"""Measure what a question about a hang costs a training: the dump of PyTorch's flight recorder, as the client makes it.

The compared ways are those in which PyTorch itself writes the recorder, for `torchfrtrace` and the debug server.
"""

from __future__ import annotations

import json
import pickle
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import distributed
from torch._C import _distributed_c10d as recorder

from bench.table import head, machine, row, verdict
from trackside.captures.flight_recorder import flight

if TYPE_CHECKING:
    from collections.abc import Callable

ENTRIES = (32, 2000)  # a recorder keeps 2,000 by default
ROUNDS = 200
LIMIT = 5.0  # ms

WAYS: dict[str, Callable[[], object]] = {
    "PyTorch's dump as JSON, decoded": lambda: json.loads(recorder._dump_fr_trace_json()),
    "PyTorch's dump as pickle, with stacks, decoded": lambda: pickle.loads(recorder._dump_fr_trace(True, True, False)),
    "PyTorch's dump as pickle, without stacks": lambda: recorder._dump_fr_trace(True, False, False),
    "the client's answer: newest entries and stacks": flight,
}


def main() -> None:
    """Print the tables."""
    machine()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        distributed.init_process_group("gloo", f"file://{Path(directory) / 'store'}", rank=0, world_size=1)
        made = 0
        for entries in ENTRIES:
            for _ in range(entries - made):
                distributed.all_reduce(torch.ones(8))
            made = entries
            head(f"{entries:,} entries, ms", "median", "p95", "max")
            for name, way in WAYS.items():
                took = _measured(way)
                row(name, *(f"{ms:.2f}" for ms in (statistics.median(took), took[ROUNDS * 95 // 100], took[-1])))
        head("answer to a question about a hang", "measured", "limit", "")
        median = statistics.median(_measured(flight))
        verdict("2,000 entries", f"{median:.1f} ms", f"<= {LIMIT:g} ms", met=median <= LIMIT)
        distributed.destroy_process_group()


def _measured(way: Callable[[], object]) -> list[float]:
    """Return the sorted milliseconds of each round."""
    took = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        way()
        took.append(1000 * (time.perf_counter() - begun))
    return sorted(took)


if __name__ == "__main__":
    main()
