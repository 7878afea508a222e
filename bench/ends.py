"""Measure how soon the end of a process is on /metrics, and how much the client delays the end of the script."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from http.client import HTTPConnection
from typing import NamedTuple

from process_endings import ENDS, End, memory_cgroup, script
from processes import Daemon, clean_environ, eventually

from bench.daemons import fresh_daemon
from bench.table import head, machine, row

ROUNDS = 10
PATIENCE_SECONDS = 60.0


class Measured(NamedTuple):
    """Seconds of one script from the request to end until its end, and from there to /metrics; None if not watched."""

    leaving: float
    shown: float | None


def main() -> None:
    """Print the table."""
    machine()
    columns = (
        "from the end to /metrics, ms: median",
        "the script takes to end, ms: median",
        "with TRACKSIDE_DISABLED=1: median",
    )
    head(f"end, {ROUNDS} rounds", "shown as", *(cell for one in columns for cell in (one, "max")))
    with fresh_daemon() as daemon, ExitStack() as stack:
        environ = {"oom": {"CGROUP": str(stack.enter_context(memory_cgroup(f"trackside-bench-{os.getpid()}")))}}
        for kind, end in ENDS.items():
            watched, disabled = measure(daemon, kind, end, environ.get(kind, {}))
            shown = [one.shown for one in watched if one.shown is not None]
            numbers = (shown, [one.leaving for one in watched], [one.leaving for one in disabled])
            cells = (f"{middle(some) * 1e3:.1f}" for some in numbers for middle in (statistics.median, max))
            row(kind, f"{end.state}{f': {end.cause}' if end.cause else ''}", *cells)


def measure(daemon: Daemon, kind: str, end: End, environ: dict[str, str]) -> tuple[list[Measured], list[Measured]]:
    """Measure a kind of end repeatedly, alternately with the client on and off."""
    watched, disabled = [], []
    for number in range(ROUNDS):
        watched.append(once(daemon, f"{kind}-{number}", end, environ))
        disabled.append(once(daemon, f"{kind}-{number}", end, {**environ, "TRACKSIDE_DISABLED": "1"}))
    return watched, disabled


def once(daemon: Daemon, run: str, end: End, environ: dict[str, str]) -> Measured:
    """Run a training to its end."""
    more = {"TRACKSIDE_ENDPOINT": daemon.endpoint, "TRACKSIDE_RUN_NAME": run, **environ}
    with subprocess.Popen(
        [sys.executable, "-c", script(end)],
        env=clean_environ(more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as training:
        assert training.stdin is not None
        assert training.stdout is not None
        training.stdout.readline()
        disabled = "TRACKSIDE_DISABLED" in environ
        if not disabled:
            eventually(lambda: f'trackside_training_state{{run="{run}",state="running"}} 1' in _page(daemon))
        reported = time.monotonic()
        training.stdin.write("end\n")
        training.stdin.flush()
        training.wait()  # with a timeout it would sleep and look
        over = time.monotonic()
        if disabled:
            return Measured(over - reported, None)
        wanted = f'trackside_training_state{{run="{run}",state="{end.state}"}} 1'
        while wanted not in _page(daemon):
            if time.monotonic() > over + PATIENCE_SECONDS:
                raise TimeoutError(f"{run} is not shown as {end.state}")
        return Measured(over - reported, time.monotonic() - over)


def _page(daemon: Daemon) -> str:
    connection = HTTPConnection("127.0.0.1", int(daemon.url.rpartition(":")[2]))
    connection.request("GET", "/metrics?collect[]=training")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


if __name__ == "__main__":
    main()
