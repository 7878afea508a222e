"""The process of one mirror: ``python -m trackside_daemon.bridges.mirrors.worker``.

The first line of standard input is a `Start`. Each further line is answered with the mirror's `Status`. At the end of the
input the mirror sends what it has not sent yet, for `FLUSH_SECONDS` at most, and the process ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trackside_daemon.bridges.mirrors.messages import FLUSH_SECONDS, Start
from trackside_daemon.bridges.mirrors.mirror import Mirror
from trackside_daemon.bridges.mirrors.positions import Positions
from trackside_daemon.bridges.mirrors.run_mirror import RunMirror
from trackside_daemon.bridges.mirrors.target import RunTarget
from trackside_daemon.bridges.mirrors.targets import make_target
from trackside_daemon.http_client.errors import SettingError
from trackside_daemon.linux.parent_death import end_with_parent
from trackside_daemon.linux.signals import reset_signals

if TYPE_CHECKING:
    from trackside_daemon.bridges.mirrors.target import Target


def main() -> None:
    """Mirror until the end of the input."""
    reset_signals()
    end_with_parent(None, signal.SIGKILL)
    # Libraries write to standard output, which is for answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=Start)
    os.nice(10)
    ending = threading.Event()
    deadline: list[float] = []

    def is_late() -> bool:
        return bool(deadline) and time.monotonic() > deadline[0]

    try:
        target = make_target(start.name, start.settings)
    except SettingError as error:
        sys.exit(str(error))
    history, positions = Path(start.history), Positions(Path(start.positions))
    if isinstance(target, RunTarget):
        mirror: Mirror = RunMirror(history, positions, target, ending=is_late)
    else:
        mirror = Mirror(history, positions, target, every_rank=start.settings["ranks"] == "all", ending=is_late)
    thread = threading.Thread(target=_run, args=(mirror, target, start.settings["interval"], ending))
    # The connection of the positions belongs to the thread that opened it.
    thread.start()
    for _ in sys.stdin.buffer:
        answers.write(msgspec.json.encode(mirror.status) + b"\n")
    deadline.append(time.monotonic() + FLUSH_SECONDS)
    ending.set()
    thread.join(FLUSH_SECONDS)
    os._exit(0)  # a request may hang


def _run(mirror: Mirror, target: Target | RunTarget, interval: float, ending: threading.Event) -> None:
    try:
        while not ending.is_set():
            pause = mirror.poll()
            ending.wait(max(interval, pause))
        mirror.poll()
        target.close()
    except Exception as error:  # noqa: BLE001  the daemon reports the last line, and starts another process
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(1)  # else the main thread would go on to answer, as if samples were sent


if __name__ == "__main__":
    main()
