"""One of two gloo ranks that meet in a collective after each step; lines of standard input cause failures.

Run ``python failing_ranks.py STORE SECONDS``, or without a file for a rank without a collective; a step takes the seconds,
by default 10 ms. The line ``slow`` makes this rank's own time three times as long. The line ``stay away`` keeps it from the
collective.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable

printed: set[str] = set()


def listen() -> None:
    """Record each line of standard input; exit at its end."""
    for line in sys.stdin:
        printed.add(line.strip())
    os._exit(0)


def meeting(store: str, rank: int, world: int) -> Callable[[], None]:
    """Return a collective in which all ranks wait for each other."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    from torch import distributed

    distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world)

    def meet() -> None:
        with trackside.phase("sync"):
            distributed.all_reduce(torch.ones(1))

    return meet


def main() -> None:
    """Run steps, each with the collective."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    store, seconds = [*sys.argv[1:], *("", "0.01")[len(sys.argv) - 1 :]]
    meet = meeting(store, rank, world) if store else lambda: None
    threading.Thread(target=listen, daemon=True).start()
    for step in range(1_000_000):
        with trackside.phase("forward"):
            time.sleep(float(seconds) * (3 if "slow" in printed else 1))
        while "stay away" in printed:
            threading.Event().wait()
        meet()
        trackside.push(step=step, loss=1.0)
        if step == 20:
            sys.stdout.write("trains\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
