"""One of two gloo ranks that meet in a collective after each step; a line on standard input says what goes wrong.

``python ailing_ranks.py STORE``, or without a file for a rank that meets nobody; ``slow``: this rank's own time is three times as long from now on; ``stay away``: it does not
come to the collective any more.
"""

from __future__ import annotations

import os
import sys
import threading
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
from torch import distributed

import trackside

said: set[str] = set()


def listen() -> None:
    """What is said on standard input, until it ends; then all is over."""
    for line in sys.stdin:
        said.add(line.strip())
    os._exit(0)


def main() -> None:
    """Steps of 5 ms, and the collective."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    store = next(iter(sys.argv[1:]), "")
    if store:
        distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world)
    threading.Thread(target=listen, daemon=True).start()
    loss = torch.ones(1)
    for step in range(1_000_000):
        with trackside.phase("forward"):
            time.sleep(0.045 if "slow" in said else 0.015)
        while "stay away" in said:
            threading.Event().wait()
        if store:
            with trackside.phase("sync"):
                distributed.all_reduce(loss, distributed.ReduceOp.MAX)
        trackside.push(step=step, loss=float(loss))
        if step == 20:
            sys.stdout.write("trains\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
