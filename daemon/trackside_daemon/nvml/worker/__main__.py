"""The process that alone talks to NVML: ``python -m trackside_daemon.nvml.worker ORDER [PARENT]``.

The order is an `Order` in JSON, the parent the id of the process that reads the answers. A request is a `Request` as one
line of JSON on stdin; its answer a `Reading` as one line of JSON on stdout, after a line with the index of each GPU that
it goes on to. The worker ends with its input, with its parent, and after a reading that
is an error: what mends it may be another library, and only a new process loads it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from trackside_daemon.nvml.groups import chosen
from trackside_daemon.nvml.reading import Order, Reading, Request
from trackside_daemon.nvml.simulation.calls import Calls
from trackside_daemon.nvml.simulation.simulate import Start, simulate
from trackside_daemon.nvml.worker.driver import Driver
from trackside_daemon.nvml.worker.lock import Locked, lock

if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Answers until the input ends (status 0), or the parent is gone or there is an error to tell (status 1)."""
    _set_signals()
    if len(arguments) > 1 and os.getppid() != int(arguments[1]):
        return 1  # it died before it was ours to die with
    # Only answers may reach the parent's pipe: what vendor code prints goes to stderr.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def reading(index: int) -> None:
        answers.write(b"%d\n" % index)
        answers.flush()

    order = msgspec.json.decode(arguments[0], type=Order)
    read = _simulation(order) if order.simulate else _real(order, reading)
    for request in sys.stdin.buffer:
        answer = read(_decode(request))
        answer.measured = time.monotonic()
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()
        if answer.error:
            return 1
    return 0


_decode = msgspec.json.Decoder(Request).decode


def _real(order: Order, reading: Callable[[int], None]) -> Callable[[Request], Reading]:
    try:
        import pynvml
    except ImportError:
        missing = "nvidia-ml-py is not installed; pip install 'trackside[daemon]'"
        return _saying(Reading(error=missing, absent=True, reason="no_pynvml"))
    try:
        lock()
    except Locked as error:
        return _saying(Reading(error=str(error), reason="locked"))
    driver = Driver(pynvml, chosen(order.extra, order.skip), reading)
    return lambda request: driver.read(request.avoid, request.interval)


def _saying(reading: Reading) -> Callable[[Request], Reading]:
    return lambda _: reading


def _simulation(order: Order) -> Callable[[Request], Reading]:
    # The monotonic clock counts from boot, as a driver's energy counter does, and goes on when a worker is replaced.
    start = Start(time.monotonic(), time.time() - time.monotonic())
    calls = Calls()

    def read(_: Request) -> Reading:
        try:
            reading = simulate(order.simulate, time.monotonic(), order.profile, order.troubles, start)
        except ValueError as error:
            return Reading(error=str(error), reason="bad_order")
        calls.read(reading.gpus)
        reading.calls, reading.seconds = calls.counts, calls.seconds
        return reading

    return read


def _set_signals() -> None:
    """Signals as this process needs them, whatever it inherited.

    SIGTERM keeps its default, since a Python handler never runs inside a driver call that hangs. Ctrl-C reaches the
    whole foreground group, and it is the parent that ends the worker. A closed pipe ends it without a traceback.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (signal.SIGTERM, 0, 0, 0)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
