"""The host time of a push of GPU scalars, and the number of waits for the device."""

from __future__ import annotations

from bench import device
from bench.daemons import fresh_daemon
from bench.gpu_report.result import Figure, Result, Table

LIMIT = 25.0
"""Microseconds of the host per push of two scalars, median."""


def measure(result: Result, *, rehearse: bool) -> None:
    """Measure pushes against a real daemon; in a rehearsal, of tensors on the CPU."""
    with fresh_daemon() as daemon:
        rehearsed = ("cpu", 64, 200) if rehearse else ()
        measured = device.measured(daemon.endpoint, *rehearsed)
    waits = measured.pop("waits")
    result.at_most(
        "push of two GPU scalars, host time, p50", measured["device scalars"]["p50"], LIMIT, "µs", judged=not rehearse
    )
    pushes, reads = waits["device scalars"], waits[".item() of each"]
    # A count of 0 proves something only if the same count sees the waits of `.item()`.
    met = None if rehearse else pushes == 0 < reads
    text = f"{pushes} (with .item(): {reads})"
    result.figures.append(Figure(f"waits for the device in {device.WATCHED} such pushes", text, "0", met))
    rows = [[name, *(f"{times[column]:,.2f}" for column in ("p50", "p99", "max"))] for name, times in measured.items()]
    result.tables.append(Table(["push of two values, host µs", "p50", "p99", "max"], rows))
