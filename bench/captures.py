"""Measure captures: from the command to the summary, what they cost, and what being ready for them costs.

python bench/captures.py                 everything, in fourteen minutes
python bench/captures.py idle            one of latency, busy, idle, alive, ended, killed, never, recording and client
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
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from processes import ROOT, Daemon, clean_environ, command, eventually, terminated

from bench import table
from trackside.captures.kineto import SOCKET, socket_directory, variables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

SCRIPT = "bench/captured_training.py"
CAPTURES = 10
STEPS = 10
PAIRS = 10_000
EXITS = 20
STATES = {"alive": "alive", "ended": "ended", "killed": "ended by SIGKILL", "never": "never there"}
WINDOWS = 6
WINDOW_SECONDS = 1.0
NORMAL_SECONDS = 2.0
NORMAL = 1.1
BIN_SECONDS = 0.25
COMPUTE = "while True: pass"
WRITE = """
import os, sys
while True:
    with open(sys.argv[1], "wb") as file:
        file.write(bytes(32 << 20))
        os.fsync(file.fileno())
"""


def main() -> None:
    """Print the tables."""
    parts: dict[str, Callable[[Path], None]] = {
        "latency": latency,
        "busy": partial(latency, busy=True),
        "idle": idle,
        **{state: partial(exits, states=[state]) for state in STATES},
        "recording": recording,
        "client": partial(recording, by_client=True),
    }
    table.machine()
    for name in sys.argv[1:] or parts:
        with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as place:
            parts[name](Path(place))


def latency(place: Path, *, busy: bool = False) -> None:
    """Capture two ranks of torchrun, and one of them; *busy* with other work on all processors and the disk."""
    with ready_ranks(place) as environ, neighbours(place) if busy else nullcontext():
        table.head(
            f"{CAPTURES} captures of {STEPS} steps{', busy machine' * busy}",
            "command to summary, without the steps, s: median",
            "most",
            "ranks start apart, ms: median",
            "most",
            "optimizer steps",
        )
        for what, flags in (("2 ranks", ()), ("1 rank", ("--ranks", "1"))):
            taken, apart, steps = [], [], set()
            for _ in range(CAPTURES):
                begun = time.monotonic()
                captured = capture(environ, "--steps", str(STEPS), *flags)
                every = captured["summary"]["ranks"].values()
                recorded = max(sum(step["seconds"] for step in rank["steps"]) for rank in every)
                taken.append(time.monotonic() - begun - recorded)
                traces = read_traces(place / "history", captured)
                starts = [first_operator(trace) for trace in traces]
                apart.append((max(starts) - min(starts)) * 1000)
                steps |= {optimizer_steps(trace) for trace in traces}
            table.row(
                what,
                f"{statistics.median(taken):.2f}",
                f"{max(taken):.2f}",
                f"{statistics.median(apart):.2f}",
                f"{max(apart):.2f}",
                ", ".join(map(str, sorted(steps))),
            )
            table.verdict(f"{what}: command to summary", f"{max(taken):.2f} s", "<= 3 s", met=max(taken) <= 3)
            if len(traces) > 1:
                table.verdict(f"{what} start apart", f"{max(apart):.2f} ms", "<= 10 ms", met=max(apart) <= 10)
            table.verdict(f"{what}: exactly the steps", f"{steps}", f"{STEPS}", met=steps == {STEPS})


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
    low, middle, high = found["longer"][1], found["longer"][0], found["longer"][2]
    longer = f"{middle:+.3f} % [{low:.3f}, {high:.3f}]"
    table.verdict(
        f"steps of {found['step'] * 1000:.2f} ms, {found['pairs']:,} pairs", longer, "<= 0.2 %", met=middle <= 0.2
    )
    nothing = found["null"]
    table.row("null pairs", f"{nothing[0]:+.3f} % [{nothing[1]:.3f}, {nothing[2]:.3f}]", "", "")
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
    environ = {"TRACKSIDE_ENDPOINT": daemon.endpoint, "PYTHONPATH": "."}
    if not by_client:
        environ |= variables(socket_directory(place / "push.sock"))
    path = place / "steps.json"
    windows: list[tuple[float, float]] = []
    try:
        with subprocess.Popen(
            [sys.executable, SCRIPT, "steps", str(path)], env=clean_environ(environ), cwd=ROOT, stdin=subprocess.PIPE
        ) as training:
            eventually(lambda: daemon.api("runs").json()["runs"])
            time.sleep(8.0)
            for _ in range(WINDOWS):
                captured = capture(
                    {**os.environ, "XDG_RUNTIME_DIR": ""}, "--seconds", str(WINDOW_SECONDS), run="steps", daemon=daemon
                )
                [trace] = read_traces(daemon.history, captured)
                windows.append(span(trace))
                time.sleep(4.0)
            assert training.stdin is not None
            training.stdin.close()
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
    who = "trackside's client" if by_client else "PyTorch"
    table.head(f"{WINDOWS} captures of {WINDOW_SECONDS:g} s by {who}", "measured", "limit", "")
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


def normal_after(bins: list[bool]) -> float:
    """Return when the first second begins in which all steps are normal, of *bins* since a capture; later ones have other reasons."""
    count = round(1 / BIN_SECONDS)
    starts = (start for start in range(len(bins)) if all(bins[start : start + count]))
    return next(starts, len(bins)) * BIN_SECONDS


def seconds(steps: list[tuple[float, float]], begin: float, end: float) -> list[float]:
    """Return the durations of the steps in a time."""
    return [last - first for first, last in steps if begin <= first and last <= end]


@contextmanager
def ready_ranks(place: Path) -> Iterator[dict[str, str]]:
    """Start `trackside run` with two ranks, and yield the environment of its commands once both train."""
    history = place / "history"
    history.mkdir()
    environ = clean_environ(
        {
            "XDG_RUNTIME_DIR": str(place),
            "TRACKSIDE_WEB__LISTEN_ADDRESS": "127.0.0.1:0",
            "TRACKSIDE_STORAGE__PATH": str(history),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": ".",
        }
    )
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", SCRIPT, "ranks")
    with (place / "log").open("w") as log:
        training = subprocess.Popen(command("run", "--", *torchrun), env=environ, cwd=ROOT, stdout=log, stderr=log)
        try:
            eventually(lambda: both_train(environ), pause=1.0)
            time.sleep(6.0)  # PyTorch has asked for the first time
            yield environ
        finally:
            terminated(training)


@contextmanager
def neighbours(place: Path) -> Iterator[None]:
    """Compute with a process for each processor, and write to the disk with one more."""
    commands = [["-c", COMPUTE]] * (os.cpu_count() or 1) + [["-c", WRITE, str(place / "written")]]
    processes = [subprocess.Popen([sys.executable, *one]) for one in commands]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def both_train(environ: Mapping[str, str]) -> bool:
    """Return whether both ranks have pushed."""
    done = subprocess.run(
        command("show", "captured_training", "--json"), env=environ, capture_output=True, text=True, check=False
    )
    metrics = json.loads(done.stdout)["metrics"] if done.returncode == 0 else []
    return {one["rank"] for one in metrics} == {0, 1}


def capture(
    environ: Mapping[str, str], *flags: str, run: str = "captured_training", daemon: Daemon | None = None
) -> dict[str, Any]:
    """Run the command, and return the capture."""
    if daemon is not None:
        token = (daemon.directory / "push.token").read_text().strip()
        flags = (*flags, f"--url={daemon.url}/#token={token}")
    done = subprocess.run(
        command("capture", run, "--json", *flags), env=environ, capture_output=True, text=True, check=False
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


def first_operator(trace: dict[str, Any]) -> float:
    """Return the begin of the first operator, in Unix seconds."""
    return span(trace)[0]


def optimizer_steps(trace: dict[str, Any]) -> int:
    """Return the number of optimizer steps."""
    return sum(one["name"].startswith("Optimizer.step#") for one in trace["traceEvents"] if one.get("ph") == "X")


def import_seconds(more: Mapping[str, str]) -> float:
    """Return the duration of a process."""
    begun = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", "import torch"], env=clean_environ(more), check=True, stderr=subprocess.DEVNULL
    )
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
