"""NVML workers that are scripts, and helpers to read from their handles."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from typing import TYPE_CHECKING, Any, cast

import pytest
from processes import DEADLINE

from trackside_daemon.nvml.handle.handle import Nvml, NvmlUnavailable

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.linux.worker_process import WorkerProcess

LONG = DEADLINE
"""Timeout in seconds for immediate answers, on a machine that is busy with other tests."""
WALL = 1_700_000_000.0
"""Wall-clock time at 0 of the handle's other clock."""

ANSWER = 'answer = lambda n: print(\'{"gpus": [], "driver": {"number": "%d"}}\' % n, flush=True)\n'
COUNTS = ANSWER + "import sys\nfor n, _ in enumerate(sys.stdin, 1): answer(n)"
HANGING = "import sys\nsys.stdin.read()"
STUBBORN = f"""
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{ANSWER}
sys.stdin.readline()
answer(1)
while True: signal.pause()
"""
# A machine with three cards. The file in its argument has their faults by number: hang, lost or gone. The index of a card
# is its position among those that are not gone.
GPUS = """
import json, sys
uuids = {}
def gpu(index, card, fault, quarantined):
    if index not in quarantined:
        print(index, flush=True)
        if fault == "hang": sys.stdin.read()
        if not fault: uuids[index] = "GPU-%d" % card
    up = not fault and index not in quarantined
    values = [["up", [], 1.0], ["busy_seconds_total", [], 5.0]] if up else [["up", [], 0.0]]
    return {"index": index, "uuid": uuids.get(index, ""), "info": {}, "values": values}
for request in sys.stdin:
    faults = json.load(open(sys.argv[1]))
    if "init" in faults: sys.stdin.read()
    quarantined = json.loads(request)["quarantined"]
    present = [card for card in range(3) if faults.get(str(card)) != "gone"]
    gpus = [gpu(index, card, faults.get(str(card), ""), quarantined) for index, card in enumerate(present)]
    print(json.dumps({"gpus": gpus}), flush=True)
"""


class Clock:
    """Clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        return WALL + self.now


class Workers:
    """Factory of handles whose worker runs a script, all with one clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._handles: list[Nvml] = []

    def __call__(self, script: str, *arguments: str) -> Nvml:
        nvml = Nvml(command=[sys.executable, "-c", script, *arguments], clock=self.clock, wall=self.clock.wall)
        self._handles.append(nvml)
        return nvml

    def close(self) -> None:
        for handle in self._handles:
            handle.close()


class Machine:
    """A worker that runs `GPUS`, and the faults of its GPUs."""

    def __init__(self, workers: Workers, file: Path) -> None:
        self._file = file
        self.set_faults()
        self.nvml = workers(GPUS, str(file))

    def set_faults(self, **faults: str) -> None:
        """Set the faults from the next request on, by ``gpu1`` or ``init``."""
        self._file.write_text(json.dumps({name.removeprefix("gpu"): fault for name, fault in faults.items()}))

    def up(self) -> dict[str, bool]:
        """Return whether each GPU is up, by UUID."""
        return {gpu.uuid: ("up", (), 1.0) in gpu.values for gpu in self.nvml.read(LONG).gpus}

    def hang(self, index: int | None) -> None:
        """Read until the worker hangs at a GPU, or with None before any."""
        unavailable_reason(self.nvml, 0.01)
        while index is not None and not hangs_at(self.nvml, index):
            unavailable_reason(self.nvml, 0.1)


class Unreapable:
    """A worker's process in D state as its parent sees it: no signal ends it, until it is released."""

    def __init__(self, child: WorkerProcess) -> None:
        self._child = child
        self._real = child._process
        self.pid = child.pid
        self.signals: list[str] = []
        child._process = cast("Any", self)

    def poll(self) -> None:
        return None

    def wait(self, timeout: float) -> None:
        raise subprocess.TimeoutExpired("worker", timeout)

    def terminate(self) -> None:
        self.signals.append("TERM")

    def kill(self) -> None:
        self.signals.append("KILL")

    def release(self) -> None:
        """Let it end, by SIGKILL."""
        self._child._process = self._real
        self._real.kill()


def number(nvml: Nvml, patience: float = LONG) -> str:
    return nvml.read(patience).driver["number"]


def unavailable_reason(nvml: Nvml, patience: float = LONG) -> str:
    with pytest.raises(NvmlUnavailable) as caught:
        nvml.read(patience)
    text = str(caught.value)
    assert "\n" not in text
    return text


def child(nvml: Nvml) -> WorkerProcess:
    """Return the worker, as the handle has it."""
    assert nvml.worker is not None
    return nvml.worker


def pid(nvml: Nvml) -> int:
    return child(nvml).pid


def hangs_at(nvml: Nvml, gpu: int) -> bool:
    """Return whether the worker reads a GPU at this moment."""
    return nvml._client is not None and nvml._client.current_gpu == gpu


def await_answer(nvml: Nvml) -> None:
    """Wait until the worker has written something that the handle has not read."""
    assert select.select([child(nvml)._answers], [], [], LONG)[0]


def reap(nvml: Nvml) -> None:
    """Wait until the worker has ended, and leave its status to the handle."""
    if child(nvml).status is None:
        os.waitid(os.P_PID, pid(nvml), os.WEXITED | os.WNOWAIT)
