"""Compare the first cause of slow trainings of four gloo ranks with TraceML's, and what a step costs with either tool.

    python bench/diagnosis.py                        five repeats each; `--busy` beside four busy loops
    python bench/diagnosis.py --traceml VENV         a virtual environment that has traceml-ai and PyTorch, else it is left out
    python bench/diagnosis.py --only "compute straggler" --repeats 1 --at-once 1

trackside gets the script as it is, by `trackside run --auto`; TraceML needs two lines in it. A training takes 15 s of CPU time, most
of it for the imports, and sleeps most of the time: so three run at once, with one daemon. The cost is the CPU time of the
training's thread, which other work of the machine changes least, in pairs of steps: see bench/auto_steps.py and bench/watch.py.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from processes import ROOT, clean_environ, eventually

from bench.daemons import fresh_daemon
from bench.table import head, interval, machine, row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from processes import Daemon

SCRIPT = ROOT / "tests" / "public" / "four_ranks.py"
LONGEST = 900.0  # seconds of a training
PAIRS = 1500  # of the steps of which the cost is measured
NUMBERS = count()  # of the runs


class Training(NamedTuple):
    """A training: its flags, the pattern of the first cause with its summary, and that of TraceML's verdict."""

    flags: tuple[str, ...]
    cause: str
    verdict: str


STRAGGLER = ("--rank=2", "--seconds=0.18", "--slow")
TRAININGS = {
    "healthy": Training(("--steps=150",), r"none|long_steps|cpu_contention|communication", r"(?!.*(STRAGGLER|INPUT))"),
    "input-bound": Training(("--slow=data",), r"data_wait: the training waited for data", r"INPUT-BOUND"),
    "data loader": Training(
        ("--slow=data", "--workers=1", "--seconds=0.25"), r"data_wait: the training waited for data", r"INPUT-BOUND"
    ),
    "input straggler": Training(
        (*STRAGGLER, "data"), r"straggler: .*rank 2 waits [\d.]+ m?s for its data", r"INPUT STRAGGLER.*r2"
    ),
    "compute straggler": Training(
        (*STRAGGLER, "forward"),
        r"straggler: .*rank 2 takes [\d.]+ m?s longer in forward",
        r"COMPUTE STRAGGLER.*r2.*orward",
    ),
    "memory creep": Training(("--slow=memory", "--steps=700", "--seconds=0.2"), r"host_memory_leak", r"MEMORY|CREEP"),
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--theirs", type=int, default=5, help="repeats of TraceML")
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--traceml", type=Path)
    parser.add_argument("--cost", type=int, default=PAIRS, help="pairs; 0 for no table of costs")
    asked = parser.parse_args()
    machine()
    traceml = asked.traceml and asked.traceml.absolute()
    if traceml is None or not (traceml / "bin" / "traceml").exists():
        print("\nTraceML is left out: --traceml names no virtual environment that has traceml-ai.")
        traceml = None
    names = [name for name in TRAININGS if asked.only in {"", name}]
    with busy(4 if asked.busy else 0):
        beside = "four busy loops" if asked.busy else "none"
        causes(names, traceml, (asked.repeats, asked.theirs), asked.at_once, beside)
        if asked.cost:
            costs(traceml, asked.cost)


def causes(names: list[str], traceml: Path | None, repeats: tuple[int, int], at_once: int, beside: str) -> None:
    """Print the table of first causes, and on standard error each as it comes."""
    place = tempfile.TemporaryDirectory()
    os.environ["TRACKSIDE_SPOOL"] = place.name  # of the daemon, too, for what is not sent at the end of a training
    with place, fresh_daemon() as daemon, ThreadPoolExecutor(at_once) as pool:
        ways: list[Callable[[Training], str]] = [partial(first_cause, daemon)]
        ways += [partial(verdict, traceml)] if traceml else []
        begun: dict[str, list[list[Future[str]]]] = {name: [] for name in names}
        for way, number in zip(ways, repeats, strict=False):
            for name in names:
                begun[name].append([pool.submit(first_answer, way, name) for _ in range(number)])
        head(f"{repeats[0]} repeats, beside: {beside}", "right", "trackside run --auto", "right", "TraceML")
        for name in names:
            ours, theirs = [[one.result() for one in of] for of in (*begun[name], [])[:2]]
            row(name, *shown(ours, TRAININGS[name].cause), *shown(theirs, TRAININGS[name].verdict))


def first_answer(way: Callable[[Training], str], name: str) -> str:
    """Return what a tool finds in a training; the error if there is one, which is not right."""
    try:
        found = way(TRAININGS[name])
    except (RuntimeError, subprocess.TimeoutExpired, pytest.fail.Exception) as error:
        found = f"failed: {error}"
    print(f"{name}: {found}", file=sys.stderr, flush=True)
    return found


def shown(found: list[str], right: str) -> tuple[str, str]:
    """Return how many are right, and one that is wrong, else the last one."""
    wrong = [one for one in found if not re.match(right, one, re.DOTALL)]
    return (f"{len(found) - len(wrong)} of {len(found)}", (wrong or found)[-1]) if found else ("-", "-")


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep so many processes busy."""
    processes = [multiprocessing.Process(target=spin, daemon=True) for _ in range(loops)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()


def spin() -> None:
    """Use a CPU until the process is ended."""
    while True:
        pass


def ran(command: list[str], **environ: str) -> str:
    """Return the output of a command; the files that it leaves in its directory are deleted."""
    same = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(
            command,
            cwd=place,
            env=clean_environ({**same, **environ}),
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def first_cause(daemon: Daemon, training: Training) -> str:
    """Return the first listed cause of a training under `trackside run --auto`, but its start and its end, with its summary."""
    under = [sys.executable, "-m", "trackside_daemon", "run", "--auto", "--"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4", f"--master-port={free_port()}"]
    run = f"run{next(NUMBERS)}"
    place = {"TRACKSIDE_ENDPOINT": daemon.endpoint, "TRACKSIDE_URL": daemon.url, "TRACKSIDE_RUN_ID": run}
    ran([*under, *torchrun, str(SCRIPT), *training.flags], **place)
    eventually(lambda: daemon.api(f"runs/{run}").json()["state"] == "finished")
    last = [flag for flag in ("--steps=40", *training.flags) if flag.startswith("--steps=")][-1]
    eventually(lambda: ends(daemon, run) == [int(last.removeprefix("--steps=")) - 1] * 4)
    listed = [one for one in daemon.api(f"runs/{run}/diagnosis").json()["causes"] if one["listed"]]
    # These trainings last a minute, most of which a busy machine takes to import PyTorch and to end the processes.
    first = next((one for one in listed if one["cause"] not in {"start_up", "idle_end"}), None)
    return f"{first['cause']}: {first['summary']}" if first else "none"


def ends(daemon: Daemon, run: str) -> list[int]:
    """Return the last step of each rank that has arrived: of a busy machine, the daemon reads the last ones from the spool."""
    return [one["last_step"] for one in daemon.api(f"runs/{run}").json()["metrics"] if one["key"] == "loss"]


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def verdict(venv: Path, training: Training) -> str:
    """Return TraceML's verdict."""
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "training.py"
        script.write_text(with_traceml(SCRIPT.read_text(encoding="utf-8")), encoding="utf-8")
        logs = ("--logs-dir", f"{place}/logs", "--run-name", "run")
        ranks = ("--nproc-per-node=4", f"--master-port={free_port()}")
        port = f"--aggregator-port={free_port()}"
        ran([str(venv / "bin" / "traceml"), "run", str(script), *logs, *ranks, port, "--args", *training.flags])
        summary = json.loads((Path(place) / "logs" / "run" / "final_summary.json").read_text(encoding="utf-8"))
        found: dict[str, Any] = summary["primary_diagnosis"]
        return f"{found['status']}: {found['summary']}"


def with_traceml(text: str) -> str:
    """Return the training with TraceML's lines, each step within its context manager."""
    before, loop, after = re.split(r"(?m)(^    for x, y in .*\n(?:        .*\n)+)", text, maxsplit=1)
    first, *body = loop.splitlines()
    steps = "\n".join(f"    {line}" for line in body)
    return f"import traceml_ai as traceml\ntraceml.init(mode='auto')\n{before}{first}\n        with traceml.trace_step(model):\n{steps}\n{after}"


def costs(traceml: Path | None, pairs: int) -> None:
    """Print by how much steps of 10 ms are longer with each tool, by the CPU time of their thread."""
    head("a step", "pairs", "step, ms", "longer by, mean", "null pairs")
    with fresh_daemon() as daemon:
        tools = {
            "trackside run --auto": [
                sys.executable,
                str(ROOT / "bench" / "auto_steps.py"),
                daemon.endpoint,
                str(pairs),
                "stages",
            ]
        }
        if traceml is not None:
            tools["TraceML"] = [
                str(traceml / "bin" / "python"),
                str(ROOT / "bench" / "watch.py"),
                "traceml",
                daemon.endpoint,
                str(pairs),
            ]
        for name, command in tools.items():
            places = ":".join(map(str, (ROOT, ROOT / "tests", ROOT / "client", ROOT / "daemon")))
            found = json.loads(ran(command, PYTHONPATH=places).strip().splitlines()[-1])
            both = (interval(found[key]) for key in ("mean of cpu", "null mean of cpu"))
            row(name, f"{found['pairs']:,}", f"{found['step'] * 1e3:.1f}", *both)


if __name__ == "__main__":
    main()
