"""Measure `trackside run --restart`: trainings with a planted fault reach their end, and healthy pauses end nothing.

Each training is deterministic, saves a checkpoint each 20 steps, and has 1 to 4 ranks of gloo. Usage:
python bench/restarts.py [NUMBER OF TRAININGS WITH FAULTS] [NUMBER OF PAUSES] [AT A TIME].
"""

from __future__ import annotations

import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from processes import clean_environ, command

from bench.table import head, machine, row, verdict

STEPS, FAULT_STEP = 160, 107
FAULTS = ("exception", "kill", "exit", "memory", "loader", "mismatch", "lock", "nan")
PAUSES = ("eval", "busy", "checkpoint", "first", "debugger", "stop", "reads", "short")
SECONDS = 300.0  # time limit of a training

TRAINING = """
import os, pdb, signal, subprocess, sys, threading, time
from pathlib import Path
import torch, torch.distributed as dist
import trackside
kind, directory, victim, at, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
torch.manual_seed(0)
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    dist.init_process_group("gloo")
again = "TRACKSIDE_RESTART" in os.environ
run = trackside.init("heals")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
checkpoints = trackside.Checkpoints(directory / "checkpoints")
training = {"model": model, "optimizer": optimizer}
checkpoints.load(training)
def once(step):
    return step == at and rank == victim and not again
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, _):
        threading.Lock().acquire() and time.sleep(10000)
def pause():
    if kind == "eval":
        with run.phase("eval"):
            time.sleep(40)
    elif kind == "busy":
        until = time.time() + 40
        while time.time() < until:
            pass
    elif kind == "checkpoint":
        with run.phase("checkpoint"):
            time.sleep(40)
    elif kind == "debugger":
        threading.Timer(40, lambda: os.write(writing, b"c\\n")).start()
        reading, writing = os.pipe()
        pdb.Pdb(stdin=os.fdopen(reading), stdout=open(os.devnull, "w")).set_trace()
    elif kind == "stop":
        subprocess.Popen(["sh", "-c", f"sleep 40; kill -CONT {os.getpid()}"], start_new_session=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "reads":
        until = time.time() + 40
        while time.time() < until:
            Path("/proc/self/maps").read_bytes()
            Path(sys.executable).open("rb").read(200_000)
            time.sleep(0.1)
    elif kind == "short":
        time.sleep(8)
if kind == "first":
    time.sleep(40)
for step in range(checkpoints.next_step, steps):
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(step * world + rank))
    if once(step):
        if kind == "exception":
            raise KeyError("planted")
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "exit":
            os._exit(9)
        if kind == "memory":
            raise MemoryError
        if kind == "loader":
            next(iter(torch.utils.data.DataLoader(Slow(), num_workers=1)))
        if kind == "mismatch":
            dist.barrier() if world > 1 else time.sleep(10000)
        if kind == "lock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        pause()
    loss = (model(inputs).sum(1) - inputs.sum(1)).square().mean()
    if kind == "nan" and step >= at and not again:
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    if world > 1:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()
    run.push(step=step, loss=float(loss.detach()))
    time.sleep(0.03 if kind != "nan" or again or step < at else 1.0)
    if rank == 0 and step % 20 == 19:
        checkpoints.save(training, step)
    if world > 1:
        dist.barrier()
if rank == 0:
    print("final", float(loss.detach()).hex(), flush=True)
"""


class Result(NamedTuple):
    """A training that has ended.

    Attributes:
        loss: Its last one, in hexadecimal; empty if it did not reach its end.
        restarts: Their number.
        missing: Steps that the history lacks.
        seconds: From the fault to the first step after it; 0 without a restart.
        output: What it printed.
    """

    loss: str
    restarts: int
    missing: int
    seconds: float
    output: str


def train(kind: str, world: int, victim: int, at: int) -> Result:
    """Run a training in a directory, and with a daemon, of its own."""
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as place:
        (Path(place) / "train.py").write_text(TRAINING)
        history = f"--storage.path={place}/history"
        environ = clean_environ(
            {
                "TRACKSIDE_PUSH__ENDPOINT": f"ipc://{place}/push.sock",
                "TRACKSIDE_SPOOL": f"{place}/spool",
                "TRACKSIDE_ALERTS__STALL_AFTER": "10s",
                "OMP_NUM_THREADS": "1",
            }
        )
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"] if world > 1 else []
        arguments = [kind, place, str(victim), str(at), str(STEPS)]
        flags = ["--restart=3", "--restart.on=crash,hang,nan", history, "--web.listen-address=127.0.0.1:0"]
        started = command("run", *flags, "--", sys.executable, *torchrun, f"{place}/train.py", *arguments)
        done = subprocess.run(started, env=environ, capture_output=True, text=True, check=False, timeout=SECONDS)
        output = done.stdout + done.stderr
        shown = subprocess.run(
            command("show", "heals", "--json", history), env=environ, capture_output=True, check=False
        )
        run = json.loads(shown.stdout)
        asked = command("export", "heals", "--format=jsonl", history)
        exported = subprocess.run(asked, env=environ, capture_output=True, text=True, check=False).stdout
    steps = {int(step) for step in re.findall(r'"step": ?(\d+)', exported)}
    attempts = run["attempt_list"]
    resumes = [resume for attempt in attempts for resume in attempt["resumes"]]
    seconds = sum(float(one.get("lost_seconds", 0)) + float(one.get("down_seconds", 0)) for one in resumes)
    found = re.search(r"^final (\S+)$", done.stdout, re.MULTILINE)
    return Result("" if found is None else found[1], len(attempts) - 1, len(set(range(STEPS)) - steps), seconds, output)


def main() -> None:
    """Print the tables."""
    faults, pauses, together = map(int, [*sys.argv[1:], "16", "8", "2"][:3])
    machine()
    draw = random.Random(0)
    with ThreadPoolExecutor(together) as threads:
        undisturbed = {world: threads.submit(train, "none", world, 0, 0) for world in (1, 2, 4)}
        chosen = [(FAULTS[number % len(FAULTS)], draw.choice((1, 1, 2, 4))) for number in range(faults)]
        healed = [threads.submit(train, kind, world, draw.randrange(world), FAULT_STEP) for kind, world in chosen]
        paused = [
            threads.submit(train, PAUSES[number % len(PAUSES)], draw.choice((1, 2)), 0, FAULT_STEP)
            for number in range(pauses)
        ]
        expected = {world: one.result().loss for world, one in undisturbed.items()}
    head("fault", "ended alike", "restarts", "missing steps", "s to the next step")
    results = [(kind, world, one.result()) for (kind, world), one in zip(chosen, healed, strict=True)]
    for kind in FAULTS:
        mine = [(world, one) for name, world, one in results if name == kind]
        alike = sum(one.loss == expected[world] for world, one in mine)
        seconds = statistics.median([one.seconds for _, one in mine] or [0.0])
        restarts = sorted({one.restarts for _, one in mine})
        row(kind, f"{alike} of {len(mine)}", str(restarts), str(sum(one.missing for _, one in mine)), f"{seconds:.1f}")
    for kind, world, one in results:
        if one.loss != expected[world] or one.restarts != 1 or one.missing:
            print(f"{kind} with {world} ranks: {one}")
    ended = [one.result() for one in paused]
    for number, result in enumerate(ended):
        if result.restarts or not result.loss:
            print(f"{PAUSES[number % len(PAUSES)]}: {result}")
    kills = sum(result.restarts for result in ended)
    head("restarts", "measured", "limit", "")
    verdict("pauses that were ended", str(kills), "0", met=not kills)
    alike = sum(one.loss == expected[world] for _, world, one in results)
    verdict("trainings that end alike", f"{alike} of {faults}", "all", met=alike == faults)


if __name__ == "__main__":
    begun = time.monotonic()
    main()
    print(f"{time.monotonic() - begun:.0f} s")
