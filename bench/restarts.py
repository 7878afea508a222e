"""Measure `trackside run --restart`: trainings with planted faults reach their end, and healthy pauses end nothing.

Each training is deterministic, saves a checkpoint each 20 steps, and has 1 to 4 ranks of gloo. Only root can make the cgroup.
Usage: python bench/restarts.py [TRAININGS WITH FAULTS] [PAUSES] [AT A TIME] [FILE]. The file keeps the result of each training, so that
a measurement that was ended goes on.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import pytest
from process_endings import memory_cgroup
from processes import Daemon, clean_environ, command, eventually

from bench.daemons import fresh_daemon
from bench.table import at_most, head, machine, row, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = 260
HANGS = ("loader deadlock", "collective mismatch", "lock")
FAULTS = ("exception", "SIGKILL of a rank", "os._exit", "out of memory in a cgroup", *HANGS, "NaN")
PAUSES = (
    "eval of 2 min",
    "slow checkpoint",
    "first batches",
    "pdb",
    "gdb",
    "SIGSTOP and SIGCONT",
    "a tenth of a core",
    "slow reads",
    "shorter than the deadline",
    "capture",
    "daemon killed and back",
    "daemon stopped",
    "compilation",
)
AWAY_SECONDS = 25.0  # of a daemon that is killed or stopped
LIMIT = 30.0  # s from the fault to the next start of the script
SETTLE_SECONDS = 60.0  # time limit for a daemon to have all of a training that has ended
SECONDS = 1200.0  # time limit of a training
TRAINING = Path(__file__).with_name("restarted_training.py")


class Case(NamedTuple):
    """A training.

    Attributes:
        number: Its number.
        world: Number of ranks.
        plan: For each start of the command: kind of the fault or pause, the rank that has it, its step.
        launcher: torchrun starts the ranks.
    """

    number: int
    world: int
    plan: list[tuple[str, int, int]]
    launcher: bool = False


class Result(NamedTuple):
    """A training that has ended.

    Attributes:
        case: The training.
        loss: Its last one, in hexadecimal; empty if it did not reach its end.
        restarts: Their number, by the run's attempts and by its events.
        missing: Steps that the history lacks of all ranks: one that is killed loses what it has not sent yet.
        seconds: From each fault to the next start of the script.
        resumed: From each fault to the first step after it.
        output: What `trackside run` printed.
    """

    case: Case
    loss: str
    restarts: tuple[int, int]
    missing: int
    seconds: list[float]
    resumed: list[float]
    output: str


def train(case: Case, shared: Daemon, cgroup: Path) -> Result:
    """Run a training to its end, with the shared daemon, or with its own one if that is killed or stopped."""
    kind = case.plan[0][0] if case.plan else ""
    name = f"heals-{case.number}"
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as place, ExitStack() as stack:
        directory = Path(place)
        own = (
            [Daemon(directory, *_fixed_port(), environ=_own(directory), fresh=True)]
            if kind.startswith("daemon")
            else []
        )
        stack.callback(lambda: own[-1].stop() if own else None)
        daemon = own[-1] if own else shared
        flags = ["--restart=4", "--restart.on=crash,hang,nan"]
        environ = {
            "TRACKSIDE_PUSH__ENDPOINT": daemon.endpoint,
            **(_own(directory) if own else {}),
            "TORCHINDUCTOR_CACHE_DIR": f"{place}/inductor",
            "OMP_NUM_THREADS": "1",
            "CGROUP": str(cgroup),
        }
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.world}"]
        script = [
            *(torchrun if case.launcher else []),
            str(TRAINING),
            place,
            name,
            str(case.world),
            json.dumps(case.plan),
        ]
        noted = ["sh", "-c", 'echo "launch $(date +%s.%N)" >> "$0"; exec "$@"', f"{place}/times"]
        started = command("run", *flags, "--", *noted, sys.executable, *script)
        with subprocess.Popen(
            started, env=clean_environ(environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            timer = threading.Timer(SECONDS, process.send_signal, [signal.SIGTERM])
            timer.start()
            if kind in DISTURBANCES:
                threading.Thread(target=disturb, args=(kind, directory, own, shared, name), daemon=True).start()
            output = process.communicate()[0]
            timer.cancel()
        with suppress(pytest.fail.Exception):  # what is missing is reported
            eventually(lambda: _ended(own[-1] if own else shared, name), deadline=SETTLE_SECONDS)
        times = [line.split() for line in (directory / "times").read_text().splitlines()]
        return _result(case, own[-1] if own else shared, name, times, output)


STALL = {"TRACKSIDE_ALERTS__STALL_AFTER": "10s"}
DISTURBANCES = ("capture", "daemon killed and back", "daemon stopped")


def disturb(kind: str, directory: Path, own: list[Daemon], shared: Daemon, name: str) -> None:
    """Capture the training once its pause has begun, or stop its daemon, or kill it and start another."""
    times = directory / "times"
    while not times.exists() or "fault" not in times.read_text():
        time.sleep(0.5)
    if kind == "capture":
        environ = clean_environ({"TRACKSIDE_ENDPOINT": shared.endpoint})
        asked = command("capture", name, "--seconds=20", "--stacks")
        subprocess.run(asked, env=environ, capture_output=True, check=False)
    elif kind == "daemon stopped":
        own[-1].process.send_signal(signal.SIGSTOP)
        time.sleep(AWAY_SECONDS)
        own[-1].process.send_signal(signal.SIGCONT)
    else:
        port = own[-1].url.rpartition(":")[2]
        own[-1].stop(signal.SIGKILL)
        time.sleep(AWAY_SECONDS)
        own.append(Daemon(directory, f"--web.listen-address=127.0.0.1:{port}", environ=_own(directory), fresh=True))


def _own(directory: Path) -> dict[str, str]:
    """Return the settings of a daemon that shares no spool with the other one."""
    return {**STALL, "TRACKSIDE_SPOOL": f"{directory}/spool"}


def _fixed_port() -> list[str]:
    """Return the flag for a free port, which the next daemon can use, too."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return [f"--web.listen-address=127.0.0.1:{server.getsockname()[1]}"]


def _read(kept: Path) -> dict[int, Result]:
    """Return results by the number of their training."""
    lines = kept.read_text().splitlines() if kept.exists() else []
    found = (
        Result(Case(*case), loss, tuple(restarts), *rest) for case, loss, restarts, *rest in map(json.loads, lines)
    )
    return {one.case.number: one for one in found}


def _ended(daemon: Daemon, name: str) -> bool:
    runs = daemon.api(f"runs?name={name}").json()["runs"]
    return any(run["name"] == name and run["ended"] is not None for run in runs)


def _result(case: Case, daemon: Daemon, name: str, times: list[list[str]], output: str) -> Result:
    found = re.search(r"^final (\S+)$", output, re.MULTILINE)
    listed = [run for run in daemon.api(f"runs?name={name}").json()["runs"] if run["name"] == name]
    if not listed:
        return Result(case, "", (0, 0), STEPS, [], [], output)
    run = daemon.api(f"runs/{listed[0]['id']}").json()
    events = daemon.api(f"events?run={run['id']}").json()["events"]
    restarts = sum(event["kind"] == "restart" for event in events)
    ranks = (_series(daemon, run["id"], rank) for rank in range(case.world))
    steps = {step for series in ranks for one in series for step, *_ in one["points"]}
    launches = [float(time) for what, time in times if what == "launch"]
    first = [float(time) for what, time in times if what == "step"]
    faults = [float(time) for what, time in times if what == "fault"][: len(launches) - 1]
    seconds = [begin - fault for begin, fault in zip(launches[1:], faults, strict=False)]
    resumed = [step - fault for step, fault in zip(first[len(first) - len(faults) :], faults, strict=False)]
    attempts = len(run["attempt_list"]) - 1
    missing = len(set(range(STEPS)) - steps)
    return Result(case, "" if found is None else found[1], (attempts, restarts), missing, seconds, resumed, output)


def _series(daemon: Daemon, run: str, rank: int) -> list[dict[str, Any]]:
    return list(daemon.api(f"series?run={run}&points=0&rank={rank}&key=loss").json()["series"])


def with_faults(number: int) -> Iterator[Case]:
    """Yield trainings with each kind in turn; one in four has another fault after the first restart."""
    draw = random.Random(0)
    for index in range(number):
        kind = FAULTS[index % len(FAULTS)]
        world = draw.choice((2, 4) if kind == "collective mismatch" else (1, 1, 2, 4))
        # A crash at any step; a hang or a NaN once the run has a pace.
        at = draw.randrange(1, 130) if FAULTS.index(kind) < 4 else draw.randrange(100, 130)
        plan = [(kind, draw.randrange(world), at)]
        if draw.random() < 0.25:
            plan.append(
                (
                    draw.choice(("exception", "SIGKILL of a rank", "lock")),
                    draw.randrange(world),
                    draw.randrange(235, 255),
                )
            )
        yield Case(index, world, plan, launcher=world > 1 and draw.random() < 0.25)


def with_pauses(number: int) -> Iterator[Case]:
    """Yield trainings with each kind in turn; compilation, which costs CPU time, is half as frequent."""
    draw = random.Random(1)
    kinds = [*PAUSES, *PAUSES[:-1]]
    for index in range(number):
        kind = kinds[index % len(kinds)]
        world = draw.choice((1, 2))
        at = draw.randrange(80, 140)
        yield Case(10_000 + index, world, [(kind, draw.randrange(world), at)])


def report(result: Result, expected: str) -> bool:
    """Print what is wrong with a training at once; return whether nothing is."""
    faults = [one for one in result.case.plan if one[0] in FAULTS]
    right = (
        (result.loss == expected or (not faults and bool(result.loss)))
        and result.restarts == (len(faults), len(faults))
        and not result.missing
    )
    print(
        f"{time.strftime('%H:%M:%S')} {'right' if right else 'WRONG'} {result.case} {result._replace(output='', case=result.case)[1:6]}",
        file=sys.stderr,
        flush=True,
    )
    if not right:
        print(result.output, file=sys.stderr, flush=True)
    return right


def main() -> None:
    """Print the tables."""
    faults, pauses, together = map(int, [*sys.argv[1:], "16", "13", "2"][:3])
    machine()
    with (
        tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as spool,
        mock.patch.dict(os.environ, TRACKSIDE_SPOOL=spool),
        memory_cgroup(f"trackside-restarts-{os.getpid()}") as cgroup,
        fresh_daemon(environ=STALL) as daemon,
        ThreadPoolExecutor(together) as threads,
    ):
        kept = Path(sys.argv[4]) if len(sys.argv) > 4 else Path(spool) / "kept"
        done = _read(kept)
        expected: dict[int, str] = {}

        def judged(case: Case) -> tuple[Result, bool]:
            if (result := done.get(case.number)) is None:
                result = train(case, daemon, cgroup)
                with kept.open("a") as file:
                    file.write(f"{json.dumps(result)}\n")
            return result, report(result, expected.get(case.world, ""))

        if faults:
            plain = list(threads.map(lambda world: train(Case(100_000 + world, world, []), daemon, cgroup), (1, 2, 4)))
            expected |= {one.case.world: one.loss for one in plain}
        healed = list(threads.map(judged, with_faults(faults)))
        paused = list(threads.map(judged, with_pauses(pauses)))
    if faults:
        report_faults(healed)
    if pauses:
        report_pauses(paused)


def report_faults(healed: list[tuple[Result, bool]]) -> None:
    """Print the tables of trainings with faults."""
    head(
        "the first fault",
        "ended alike, restarts and steps complete",
        "s to the next start, median",
        "max",
        "to the next step, median",
    )
    for kind in FAULTS:
        mine = [(one, right) for one, right in healed if one.case.plan[0][0] == kind]
        seconds = [one.seconds[0] for one, _ in mine if one.seconds] or [0.0]
        resumed = [one.resumed[0] for one, _ in mine if one.resumed] or [0.0]
        middle = statistics.median
        row(
            kind,
            f"{sum(right for _, right in mine)} of {len(mine)}",
            f"{middle(seconds):.1f}",
            f"{max(seconds):.1f}",
            f"{middle(resumed):.1f}",
        )
    head("restarts", "measured", "limit", "")
    right = sum(right for _, right in healed)
    verdict(
        "trainings that end alike, and count and keep all", f"{right} of {len(healed)}", "all", met=right == len(healed)
    )
    restarts = sum(len(one.case.plan) for one, _ in healed)
    verdict(
        "restarts",
        str(sum(one.restarts[0] for one, _ in healed)),
        str(restarts),
        met=all(one.restarts[0] == len(one.case.plan) for one, _ in healed),
    )
    at_most(
        "from a fault to the next start, median",
        statistics.median(s for one, _ in healed for s in one.seconds),
        LIMIT,
        "s",
    )


def report_pauses(paused: list[tuple[Result, bool]]) -> None:
    """Print the tables of healthy pauses."""
    head("healthy pause", "trainings", "ended by trackside")
    for kind in PAUSES:
        mine = [one for one, _ in paused if one.case.plan[0][0] == kind]
        row(kind, str(len(mine)), str(sum(one.restarts[0] or not one.loss for one in mine)))
    head("pauses", "measured", "limit", "")
    ended = sum(one.restarts[0] or not one.loss for one, _ in paused)
    verdict(f"of {len(paused)} pauses ended", str(ended), "0", met=not ended)
    missing = sum(one.missing for one, _ in paused)
    verdict("steps that the history lacks", str(missing), "0", met=not missing)


if __name__ == "__main__":
    begun = time.monotonic()
    main()
    print(f"{time.monotonic() - begun:.0f} s")
