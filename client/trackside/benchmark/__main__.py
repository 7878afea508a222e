"""The process that measures: ``python -m trackside.benchmark``.

Standard input has a `Request` as a line of JSON; another line, or its end, ends the measurement. Standard output has an object
a line: the ``answer``, with ``rounds`` of a load, ``facts``, ``agreement``, or ``failed``. The user's own output goes to standard error.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import msgspec

from trackside.benchmark.failures import reason
from trackside.benchmark.request import Request
from trackside.benchmark.rounds import Calls, Load, measure
from trackside.benchmark.target import Function, alone, build

if TYPE_CHECKING:
    from trackside.benchmark.rounds import Round, Subject

WRITE_SECONDS = 0.5  # between two writes, so that the reader does not disturb each round
ENDING_SECONDS = 2.0  # from the request to end until the process ends in the middle of a call
NICE = 10  # of a polite process: a busy training keeps nine tenths of a processor
OOM_SCORE = 800  # the kernel ends this process before the training next to it


class _Writer:
    """Receiver of what is measured, as lines on a pipe."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._lock = Lock()
        self._load: Load | None = None
        self._rounds: list[Round] = []
        self._written = monotonic()

    def round(self, load: Load, values: Round) -> None:
        """See `trackside.benchmark.rounds.Report`."""
        if load != self._load:
            self.flush()
        with self._lock:
            self._load = load
            self._rounds.append(values)
        if monotonic() - self._written > WRITE_SECONDS:
            self.flush()

    def failed(self, name: str, load: Load | None, why: str) -> None:
        """See `trackside.benchmark.rounds.Report`; no load stands for all."""
        self.write(failed={"name": name, "load": load, "reason": why})

    def flush(self) -> None:
        """Write the rounds."""
        with self._lock:
            load, rounds, self._rounds = self._load, self._rounds, []
        if rounds:
            self.write(load=load, rounds=rounds)

    def write(self, **fields: Any) -> None:
        """Write an object."""
        data = msgspec.json.encode({"answer": fields}) + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._pipe, data) :]
            self._written = monotonic()


def main() -> int:
    """Answer one request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends the measurement
    pipe = os.dup(1)
    os.dup2(2, 1)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=Request)
    if request.polite:
        os.nice(NICE)
    writer, stop = _Writer(pipe), Event()
    Thread(target=_await_end, args=(writer, stop), daemon=True).start()
    if request.mode == "alone":
        _alone(request, writer)
    else:
        _measure(request, writer, stop)
    writer.flush()
    writer.write(end=True)
    return 0


def _await_end(writer: _Writer, stop: Event) -> None:
    """Wait for the request to end, and end the process if a call of the user's takes longer."""
    os.read(0, 1)
    stop.set()
    sleep(ENDING_SECONDS)
    writer.flush()
    os._exit(0)


def _alone(request: Request, writer: _Writer) -> None:
    [spec] = request.specs
    try:
        writer.write(facts={spec.name: alone(spec, request.loads[0], request.device)})
    except (Exception, SystemExit) as error:  # noqa: BLE001  the user's code may raise anything
        writer.failed(spec.name, None, reason(error))


def _measure(request: Request, writer: _Writer, stop: Event) -> None:
    subjects: list[Subject] = []
    if request.is_endpoint:
        from trackside.benchmark.endpoint import Endpoint

        subjects += [Endpoint(spec.name, spec.target, request.requests) for spec in request.specs]
    else:
        targets = _targets(request, writer)
        if request.mode == "compare":
            _compare(request, targets, writer, stop)
        subjects += [Calls(name, target.prepare) for name, target in targets.items()]
    measure(subjects, request.loads, request.plan, writer, stop.is_set)


def _targets(request: Request, writer: _Writer) -> dict[str, Any]:
    targets: dict[str, Any] = {}
    for spec in request.specs:
        try:
            targets[spec.name] = build(spec, request.device)
        except (Exception, SystemExit) as error:  # noqa: BLE001  the same
            writer.failed(spec.name, None, reason(error))
    return targets


def _compare(request: Request, targets: dict[str, Any], writer: _Writer, stop: Event) -> None:
    """Compare the outputs of models with those of the first one."""
    if (
        len(targets) < 2
        or request.specs[0].name not in targets
        or any(isinstance(one, Function) for one in targets.values())
    ):
        return
    from trackside.benchmark.agreement import agreements

    length = max(load.length for load in request.loads)
    for name, found in agreements(targets, request.rows, length, request.tokens):
        if isinstance(found, str):
            writer.write(note=f"{name}: its outputs cannot be compared: {found}")
        else:
            writer.write(agreement={name: {measure: one._asdict() for measure, one in found.items()}})
        if stop.is_set():
            return


if __name__ == "__main__":
    sys.exit(main())
