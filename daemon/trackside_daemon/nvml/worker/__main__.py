"""The process that alone calls NVML: ``python -m trackside_daemon.nvml.worker SETTINGS [PARENT]``.

SETTINGS is a `WorkerSettings` in JSON; PARENT is the id of the process that reads the answers. Each line of standard
input is a `ReadingRequest` in JSON. The answer on standard output is a line with the index of each GPU that the worker starts
to read, then a line with a `Reading` in JSON. The worker ends when its input or its parent ends, and after a reading
with an error.
"""

import os
import signal
import sys
import time
from collections.abc import Callable

import msgspec

from trackside_daemon.linux.signals import end_with_parent, reset_signals
from trackside_daemon.nvml.reading import Reading, ReadingRequest, WorkerSettings

_decode = msgspec.json.Decoder(ReadingRequest).decode


def main(arguments: list[str]) -> int:
    """Answer requests; return 0 at the end of the input, and 1 after an error or when the parent is gone."""
    reset_signals()
    end_with_parent(int(arguments[1]) if len(arguments) > 1 else None, signal.SIGTERM)
    # Only answers may reach the parent's pipe: what vendor code prints goes to stderr.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def report_gpu(index: int) -> None:
        answers.write(b"%d\n" % index)
        answers.flush()

    settings = msgspec.json.decode(arguments[0], type=WorkerSettings)
    read = _simulation(settings) if settings.simulate else _driver(settings, report_gpu)
    for request in sys.stdin.buffer:
        reading = read(_decode(request))
        reading.measured_at = time.monotonic()
        answers.write(msgspec.json.encode(reading) + b"\n")
        answers.flush()
        # The remedy of an error may be another library, and only a new process loads that.
        if reading.error:
            return 1
    return 0


def _driver(settings: WorkerSettings, report_gpu: Callable[[int], None]) -> Callable[[ReadingRequest], Reading]:
    try:
        import pynvml
    except ImportError:
        missing = "nvidia-ml-py is not installed; pip install 'trackside[daemon]'"
        return _always(Reading(error=missing, absent=True, reason="no_pynvml"))
    # The readers and the simulation are imported where they are used, because a worker needs only one of the two.
    from trackside_daemon.nvml.reader_groups import selected_groups
    from trackside_daemon.nvml.worker.driver import Driver
    from trackside_daemon.nvml.worker.lock import Locked, lock

    try:
        lock()
    except Locked as error:
        return _always(Reading(error=str(error), reason="locked"))
    driver = Driver(pynvml, selected_groups(settings.extra, settings.skip), report_gpu)
    return lambda request: driver.read(request.quarantined, request.interval)


def _always(reading: Reading) -> Callable[[ReadingRequest], Reading]:
    return lambda _: reading


def _simulation(settings: WorkerSettings) -> Callable[[ReadingRequest], Reading]:
    from trackside_daemon.nvml.simulation.simulate import SimulatedCalls, WorkerStart, simulate

    # The monotonic clock counts from boot, as a driver's energy counter does, and continues in a new worker.
    start = WorkerStart(time.monotonic(), time.time() - time.monotonic())
    calls = SimulatedCalls()

    def read(_: ReadingRequest) -> Reading:
        try:
            reading = simulate(
                settings.simulate, time.monotonic(), settings.profile, settings.faults, start, skip=settings.skip
            )
        except ValueError as error:
            return Reading(error=str(error), reason="bad_settings")
        calls.count_cycle(reading.gpus)
        reading.calls = calls.counts
        reading.call_seconds = calls.seconds
        return reading

    return read


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
