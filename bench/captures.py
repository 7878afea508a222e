"""Measure what captures cost, and what being ready for them costs.

python bench/captures.py                 everything
python bench/captures.py idle            one of idle, alive, ended, killed, never, recording, client and summary
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from processes import ROOT, Daemon, clean_environ, command, eventually

from bench import table
from trackside.captures.kineto import SOCKET, socket_directory, variables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

SCRIPT = "bench/captured_training.py"
PAIRS = 10_000
EXITS = 20
STATES = {"alive": "alive", "ended": "ended", "killed": "ended by SIGKILL", "never": "never there"}
WINDOWS = 6
WINDOW_SECONDS = 1.0
NORMAL_SECONDS = 2.0
BUSY = 2
SUMMARY_SECONDS = 3.0
NORMAL = 1.1
BIN_SECONDS = 0.25


def main() -> None:
    """Print the tables."""
    parts: dict[str, Callable[[Path], None]] = {
        "idle": idle,
        **{state: partial(exits, states=[state]) for state in STATES},
        "recording": recording,
        "client": partial(recording, by_client=True),
        "summary": summary,
    }
    table.machine()
    for name in sys.argv[1:] or parts:
        with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as place:
            parts[name](Path(place))


def idle(place: Path) -> None:
    """Compare steps with the hook that counts them, and without; measure the thread that asks."""
    daemon = Daemon(place)
    try:
        environ = clean_environ({**variables(socket_directory(place / "push.sock")), "PYTHONPATH": "."})
        done = subprocess.run(
            [sys.executable, SCRIPT, "paired", str(PAIRS)],
            env=environ,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        daemon.stop()
    found = json.loads(done.stdout)
    assert found["hooks"] == 1, found
    table.head("no capture running", "measured", "limit", "")
    what, longer = f"steps of {found['step'] * 1000:.2f} ms, {found['pairs']:,} pairs", found["longer"]
    table.verdict(what, table.interval(longer, "+.3f"), "<= 0.2 %", met=longer[0] <= 0.2)
    table.row("null pairs", table.interval(found["null"], "+.3f"), "", "")
    table.row("CPU of all threads of a process that sleeps and asks", f"{found['asks']:.3%} of a core", "", "")


def exits(place: Path, states: Iterable[str] = STATES) -> None:
    """Time processes that import PyTorch and end, with the variables and without, in turn."""
    table.head(
        f"import torch, {EXITS} times each", "without, s: median", "most", "with, s: median", "most", "longer, s", ""
    )
    for state in states:
        own = place / state
        own.mkdir()
        daemon = None if state == "never" else Daemon(own)
        files = socket_directory(own / "push.sock")
        if daemon is not None and state != "alive":
            assert (files / SOCKET).is_socket()
            daemon.stop(signal.SIGKILL if state == "killed" else signal.SIGTERM)
            eventually(lambda files=files: not (files / SOCKET).exists())  # type: ignore[misc]
        plain, asking = [], []
        for _ in range(EXITS):
            plain.append(import_seconds({}))
            asking.append(import_seconds(variables(files)))
        if state == "alive" and daemon is not None:
            daemon.stop()
        longer = statistics.median(asking) - statistics.median(plain)
        cells = (f"{number:.2f}" for some in (plain, asking) for number in (statistics.median(some), max(some)))
        table.row(f"daemon {STATES[state]}", *cells, f"{longer:+.3f}", "met" if longer <= 0.3 else "**MISSED**")


def recording(place: Path, *, by_client: bool = False) -> None:
    """Compare the steps during a capture with those before, and find when they are as before."""
    daemon = Daemon(place)
    path = place / "steps.json"
    windows: list[tuple[float, float]] = []
    try:
        with training(daemon, place, path, by_client=by_client):
            for _ in range(WINDOWS):
                [trace] = read_traces(daemon.history, capture(daemon))
                windows.append(span(trace))
                time.sleep(4.0)
    finally:
        daemon.stop()
    steps = json.loads(path.read_text())
    ratios, worst, normal = [], [], []
    for begin, end in windows:
        before = statistics.median(seconds(steps, begin - 2.0, begin - 0.2))
        ratios.append(statistics.median(seconds(steps, begin, end)) / before)
        worst.append(max(seconds(steps, end, end + 4.0)) * 1000)
        bins = [seconds(steps, end + number * BIN_SECONDS, end + (number + 1) * BIN_SECONDS) for number in range(16)]
        normal.append(normal_after([bool(one) and statistics.median(one) <= NORMAL * before for one in bins]))
    recorder = "trackside's client" if by_client else "PyTorch"
    table.head(f"{WINDOWS} captures of {WINDOW_SECONDS:g} s by {recorder}", "measured", "limit", "")
    recorded = statistics.median(end - begin for begin, end in windows)
    table.row("recorded, median", f"{recorded:.2f} s", "", "")
    ratio = statistics.median(ratios)
    spread = f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    table.verdict("steps during a capture / before, median", spread, "<= 1.3", met=ratio <= 1.3)
    late = max(normal)
    table.verdict(
        "within 10 % of before for a second, after",
        f"{late:.2f} s",
        f"<= {NORMAL_SECONDS:g} s",
        met=late <= NORMAL_SECONDS,
    )
    table.row("the longest step in the 4 s afterwards, median", f"{statistics.median(worst):.0f} ms", "", "")


@contextmanager
def training(daemon: Daemon, place: Path, path: Path, *, by_client: bool = False) -> Iterator[None]:
    """Train beside the block, and write the times of the steps to *path*."""
    environ = {"TRACKSIDE_ENDPOINT": daemon.endpoint, "PYTHONPATH": "."}
    if not by_client:
        environ |= variables(socket_directory(place / "push.sock"))
    script = [sys.executable, SCRIPT, "steps", str(path)]
    with subprocess.Popen(script, env=clean_environ(environ), cwd=ROOT, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        with process.stdin:
            eventually(lambda: daemon.api("runs").json()["runs"])
            time.sleep(8.0)
            yield


def summary(place: Path) -> None:
    """Time captures of ten steps, from the command to the printed summary, beside busy loops."""
    daemon = Daemon(place)
    took, recorded = [], []
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        with training(daemon, place, place / "steps.json"):
            for _ in range(WINDOWS):
                begun = time.monotonic()
                captured = capture(daemon, "--steps", "10")
                took.append(time.monotonic() - begun)
                recorded.append(captured["ended"] - captured["asked"])
                time.sleep(2.0)
    finally:
        for loop in loops:
            loop.kill()
        daemon.stop()
    table.head(f"{WINDOWS} captures of 10 steps, beside {BUSY} busy loops", "measured", "limit", "")
    median = statistics.median(took)
    shown = f"{median:.2f} s (most {max(took):.2f})"
    table.verdict(
        "from the command to its summary, median", shown, f"<= {SUMMARY_SECONDS:g} s", met=median <= SUMMARY_SECONDS
    )
    table.row("of which in the daemon, median", f"{statistics.median(recorded):.2f} s", "", "")


def normal_after(bins: list[bool]) -> float:
    """Return when the first second begins in which all steps are normal, of *bins* since a capture; later ones have other reasons."""
    count = round(1 / BIN_SECONDS)
    starts = (start for start in range(len(bins)) if all(bins[start : start + count]))
    return next(starts, len(bins)) * BIN_SECONDS


def seconds(steps: list[tuple[float, float]], begin: float, end: float) -> list[float]:
    """Return the durations of the steps in a time."""
    return [last - first for first, last in steps if begin <= first and last <= end]


def capture(daemon: Daemon, *length: str) -> dict[str, Any]:
    """Run the command, and return the capture."""
    token = (daemon.directory / "push.token").read_text().strip()
    flags = (*(length or ("--seconds", str(WINDOW_SECONDS))), f"--url={daemon.url}/#token={token}")
    environ = {**os.environ, "XDG_RUNTIME_DIR": ""}
    done = subprocess.run(
        command("capture", "steps", "--json", *flags), env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def read_traces(history: Path, captured: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the stored traces."""
    files = (history / "captures" / captured["id"] / one["name"] for one in captured["files"])
    return [json.loads(gzip.decompress(file.read_bytes())) for file in files]


def span(trace: dict[str, Any]) -> tuple[float, float]:
    """Return begin and end of the operators, in Unix seconds."""
    base = trace["baseTimeNanoseconds"] / 1e9
    every = [one for one in trace["traceEvents"] if one.get("cat") == "cpu_op"]
    return base + min(one["ts"] for one in every) / 1e6, base + max(one["ts"] + one["dur"] for one in every) / 1e6


def import_seconds(more: Mapping[str, str]) -> float:
    """Return the duration of a process."""
    begun = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", "import torch"], env=clean_environ(more), check=True, stderr=subprocess.DEVNULL
    )
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
