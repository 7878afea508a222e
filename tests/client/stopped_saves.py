"""Save checkpoints in processes that are stopped: a line of JSON about them on standard input, one about what they did back.

`interrupted_calls.c` is loaded before: it kills a process at one of its calls, or lets its calls fail.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import random
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from trackside.checkpoints import sharded
from trackside.checkpoints.checkpoints import Checkpoints

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

BYTES = 20_000
HOST = socket.gethostname().replace("/", "_")
"""The machine in the names of unfinished folders."""


def main() -> None:
    logging.disable()
    for line in sys.stdin:
        lives = json.loads(line)
        children = [begin(life) for life in lives]
        if (seconds := lives[0]["seconds"]) is not None:
            time.sleep(seconds)  # that is what is tested: a moment as random as any
            for pid, _ in children:
                os.kill(pid, signal.SIGKILL)
        sys.stdout.write(json.dumps([end(*child) for child in children]) + "\n")
        sys.stdout.flush()


def begin(life: dict[str, Any]) -> tuple[int, int]:
    """Start a process; return its number and where it reports."""
    reports, reporting = os.pipe()
    pid = os.fork()
    if pid:
        os.close(reporting)
        return pid, reports
    try:
        live(life, reporting)
    finally:
        os._exit(0)


def end(pid: int, reports: int) -> list[dict[str, Any]]:
    """Wait for a process; return its reports."""
    os.waitpid(pid, 0)
    with os.fdopen(reports, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def live(life: dict[str, Any], reporting: int) -> None:
    """Save checkpoints, and report each before it begins and when it has returned."""
    chance = random.Random(life["chance"])
    checkpoints = Checkpoints(life["directory"], life["keep"], best=life["best"])
    real = time.time
    time.time = lambda: real() + life["moved_clock"]
    if life["ranks"]:
        as_one_rank()
    if life["loads"]:
        checkpoints.load()
        if life["goes_back"] and (best := checkpoints.best()) is not None:
            checkpoints.load(path=best.path)
    ctypes.CDLL(None).arm(
        *(ctypes.c_long(life[name]) for name in ("kill_at", "readonly_at", "room")), life["flags"], life["chance"]
    )
    for number in range(life["number"], life["number"] + life["saves"]):
        loss = chance.random()
        about = {"number": number, "loss": loss, "begin": time.monotonic()}
        report(reporting, about)
        state = {"number": number, "data": chance.randbytes(BYTES)}
        path = checkpoints.save(state, checkpoints.step + 100, {"loss": loss})
        about |= {"end": time.monotonic(), "saved": path is not None, "exists": path is None or path.is_dir()}
        report(reporting, about)
        # The first save that fails moves on too, as a training does.
        checkpoints.step += 100 * (path is None)


def report(reporting: int, about: dict[str, Any]) -> None:
    os.write(reporting, json.dumps(about).encode() + b"\n")


def as_one_rank() -> None:
    """Write the layout of a sharded model, whose only rank is this process."""

    def write(path: Path, live: Mapping[str, Any]) -> None:
        (path / sharded.FOLDER).mkdir()
        for shard in range(2):
            (path / sharded.FOLDER / f"__{shard}_0.distcp").write_bytes(live["data"])

    sharded.is_sharded = lambda live: live is not None
    sharded.others = dict  # type: ignore[assignment]
    sharded.from_first = lambda make: make()
    sharded._on_all = lambda work: work()
    sharded._write = write


if __name__ == "__main__":
    main()
