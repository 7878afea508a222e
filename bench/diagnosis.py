"""Compare the first cause of slow trainings of four gloo ranks with TraceML's, and what a step costs with either tool.

    python bench/diagnosis.py                        three repeats each, TraceML once; `--full` for five; `--busy` beside four busy loops
    python bench/diagnosis.py --traceml VENV         a virtual environment that has traceml-ai and PyTorch, else it is left out
    python bench/diagnosis.py --only "compute straggler" --repeats 1

trackside gets the script as it is, by `trackside run --auto`; TraceML needs two lines in it. The cost is the CPU time of the
training's thread, which other work of the machine changes least, of processes that take turns.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import socket
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from processes import ROOT, clean_environ, eventually

from bench.daemons import fresh_daemon
from bench.pairs import bootstrapped
from bench.table import head, interval, machine, row

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = ROOT / "tests" / "public" / "four_ranks.py"
LONGEST = 900.0  # seconds of a training
STEPS, PAIRS = 300, 8  # of the training of which the cost is measured

COST = """
import statistics, sys, time
from contextlib import nullcontext
if "traceml" in sys.argv:
    import traceml_ai as traceml
    traceml.init(mode="auto")
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(1)
model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU())], nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = int(sys.argv[1])
loader = DataLoader(TensorDataset(torch.randn(128 * steps, 512), torch.randn(128 * steps, 1)), batch_size=128)
batches, times = iter(loader), []
for _ in range(steps):
    began = time.thread_time_ns()
    x, y = next(batches)
    with traceml.trace_step(model) if "traceml" in sys.argv else nullcontext():
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    times.append(time.thread_time_ns() - began)
print("thread", statistics.mean(sorted(times[20:])[: int(0.9 * steps)]))
"""


class Training(NamedTuple):
    """A training: its flags, the pattern of the first cause with its summary, and that of TraceML's verdict."""

    flags: tuple[str, ...]
    cause: str
    verdict: str


STRAGGLER = ("--rank=2", "--seconds=0.18", "--slow")
TRAININGS = {
    "healthy": Training(
        ("--steps=150",), r"none|long_steps|start_up|cpu_contention|communication", r"(?!.*(STRAGGLER|INPUT))"
    ),
    "input-bound": Training(("--slow=data",), r"data_wait: the training waited for data", r"INPUT-BOUND"),
    "data loader": Training(
        ("--slow=data", "--workers=1", "--seconds=0.25"), r"data_wait: the training waited for data", r"INPUT-BOUND"
    ),
    "input straggler": Training(
        (*STRAGGLER, "data"), r"straggler: .*rank 2 waits [12]\d\d ms for its data", r"INPUT STRAGGLER.*r2"
    ),
    "compute straggler": Training(
        (*STRAGGLER, "forward"), r"straggler: .*rank 2 takes \d+ ms longer in forward", r"COMPUTE STRAGGLER.*r2.*orward"
    ),
    "memory creep": Training(("--slow=memory", "--steps=700", "--seconds=0.2"), r"host_memory_leak", r"MEMORY|CREEP"),
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--traceml", type=Path)
    parser.add_argument("--cost", type=int, default=PAIRS, help="pairs; 0 for no table of costs")
    asked = parser.parse_args()
    machine()
    traceml = asked.traceml if asked.traceml and (asked.traceml / "bin" / "traceml").exists() else None
    if traceml is None:
        print("\nTraceML is left out: --traceml names no virtual environment that has traceml-ai.")
    repeats = asked.repeats or (5 if asked.full else 3)
    with busy(4 if asked.busy else 0):
        head(
            f"{repeats} repeats" + ", four busy loops" * asked.busy, "right", "trackside run --auto", "right", "TraceML"
        )
        for name, training in TRAININGS.items():
            if asked.only in {"", name}:
                ours = [first_cause(training) for _ in range(repeats)]
                theirs = [verdict(traceml, training) for _ in range(repeats if asked.full else 1)] if traceml else []
                row(name, *shown(ours, training.cause), *shown(theirs, training.verdict))
        if asked.cost:
            costs(traceml, asked.cost)


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
    """Return the output of a command."""
    same = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        command, env=clean_environ({**same, **environ}), capture_output=True, text=True, timeout=LONGEST, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def first_cause(training: Training) -> str:
    """Return the first listed cause of a training under `trackside run --auto`, with its summary."""
    with fresh_daemon() as daemon:
        under = [sys.executable, "-m", "trackside_daemon", "run", "--auto", "--"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4", f"--master-port={free_port()}"]
        place = {"TRACKSIDE_ENDPOINT": daemon.endpoint, "TRACKSIDE_URL": daemon.url, "TRACKSIDE_RUN_ID": "run"}
        spool = {"TRACKSIDE_SPOOL": str(daemon.directory / "spool")}
        ran([*under, *torchrun, str(SCRIPT), *training.flags], **place, **spool)
        eventually(lambda: daemon.api("runs/run").json()["state"] == "finished")
        causes = [one for one in daemon.api("runs/run/diagnosis").json()["causes"] if one["listed"]]
        return f"{causes[0]['cause']}: {causes[0]['summary']}" if causes else "none"


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
        traceml_run(
            venv, script, Path(place), "--nproc-per-node=4", f"--master-port={free_port()}", "--args", *training.flags
        )
        summary = json.loads((Path(place) / "logs" / "run" / "final_summary.json").read_text(encoding="utf-8"))
        found: dict[str, Any] = summary["primary_diagnosis"]
        return f"{found['status']}: {found['summary']}"


def traceml_run(venv: Path, script: Path, place: Path, *flags: str) -> str:
    """Return the output of a script under TraceML."""
    logs = ("--logs-dir", str(place / "logs"), "--run-name", "run")
    ran([str(venv / "bin" / "traceml"), "run", str(script), *logs, *flags])
    (output,) = (place / "logs" / "run").rglob("training.stdout.log")
    return output.read_text(encoding="utf-8")


def with_traceml(text: str) -> str:
    """Return the training with TraceML's lines, each step within its context manager."""
    before, loop, after = re.split(r"(?m)(^    for x, y in .*\n(?:        .*\n)+)", text, maxsplit=1)
    first, *body = loop.splitlines()
    steps = "\n".join(f"    {line}" for line in body)
    return f"import traceml_ai as traceml\ntraceml.init(mode='auto')\n{before}{first}\n        with traceml.trace_step(model):\n{steps}\n{after}"


def costs(traceml: Path | None, pairs: int) -> None:
    """Print by how much a step is longer with each tool."""
    head("a step, CPU time of its thread", "pairs", "step", "longer by")
    with fresh_daemon() as daemon, tempfile.TemporaryDirectory() as place:
        script = Path(place) / "steps.py"
        script.write_text(COST, encoding="utf-8")
        plain = [sys.executable, str(script), str(STEPS)]
        to = {"TRACKSIDE_ENDPOINT": daemon.endpoint, "TRACKSIDE_URL": daemon.url}
        under = [sys.executable, "-m", "trackside_daemon", "run", "--auto", "--", *plain]
        found: dict[str, list[tuple[float, float]]] = {}
        for number in range(pairs):
            without = microseconds(ran(plain))
            found.setdefault("trackside run --auto", []).append((without, microseconds(ran(under, **to))))
            if traceml is not None:
                run = Path(place) / str(number)
                output = traceml_run(traceml, script, run, "--args", str(STEPS), "traceml")
                found.setdefault("TraceML", []).append((without, microseconds(output)))
    for name, each in found.items():
        more = np.array([(with_ - without) / without * 100 for without, with_ in each])
        step = statistics.median(without for without, _ in each)
        row(name, str(len(each)), f"{step:,.0f} µs", interval(bootstrapped(more)))


def microseconds(output: str) -> float:
    """Return the mean step that the script has printed, in µs."""
    (found,) = re.findall(r"^thread ([\d.]+)", output, re.MULTILINE)
    return float(found) / 1000


if __name__ == "__main__":
    main()
