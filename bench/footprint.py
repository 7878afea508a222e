"""Measure what the daemon costs the machine: CPU, memory, start time, and what each import adds."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from processes import Daemon, clean_environ, command

from bench.cost import cpu, memory
from bench.gpu import c_driver

if TYPE_CHECKING:
    from collections.abc import Mapping

SECONDS = 60
GPUS = 8
STARTS = 9
IMPORTS = (
    *("zmq", "msgspec", "typer", "yaml", "pydantic", "starlette.applications", "uvicorn"),
    *("pynvml", "trackside.default_run", "trackside_daemon.cli.main", "trackside_daemon.service.daemon"),
)
MEASURE = """
import sys, time
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
before, begun = rss(), time.perf_counter()
__import__(sys.argv[1])
print(time.perf_counter() - begun, rss() - before)
"""

CLIENT = """
import time, zmq, msgspec
begun = time.perf_counter()
import trackside.default_run
print(time.perf_counter() - begun)
"""


def main() -> None:
    """Print the tables."""
    print(f"\n{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    _print_running()
    _print_start()
    _print_commands()
    _print_imports()


def _print_running() -> None:
    print(f"| host and {GPUS} GPUs at 1 s, a scrape every 15 s | CPU, % of a core | RSS, MiB | PSS, MiB |")
    print("|---|---:|---:|---:|")
    _print_daemon("simulated", {}, GPUS)
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        environ = c_driver(Path(directory))
        if environ is not None:
            _print_daemon("C fake", environ, 0)
    print()


def _print_daemon(driver: str, environ: Mapping[str, str], simulated: int) -> None:
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        daemon = Daemon(Path(directory), f"--collector.gpu.simulate={simulated}", environ=environ, fresh=True)
        time.sleep(3.0)  # the start's own work is over
        pids = daemon.pids()
        before, begun = {name: cpu(pid) for name, pid in pids.items()}, time.monotonic()
        for _ in range(SECONDS // 15):
            time.sleep(15.0)
            daemon.get("/metrics")
        took = time.monotonic() - begun
        rows = {name: ((cpu(pid) - before[name]) / took * 100, *memory(pid)) for name, pid in pids.items()}
        rows["together"] = tuple(map(sum, zip(*rows.values(), strict=True)))  # type: ignore[assignment]
        for name, (share, rss, pss) in rows.items():
            print(f"| {driver}: {name} | {share:.2f} | {rss:.1f} | {pss:.1f} |")
        daemon.stop()


def _print_start() -> None:
    bound = statistics.median(_start() for _ in range(STARTS))
    print(f"The push socket is bound {bound:.3f} s after exec (median of {STARTS}).\n")


def _start() -> float:
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        socket = Path(directory) / "push.sock"
        flags = (f"--push.endpoint=ipc://{socket}", "--web.listen-address=127.0.0.1:0", "--log.level=error")
        begun = time.perf_counter()
        with subprocess.Popen(command("daemon", *flags), env=clean_environ()) as process:
            while not socket.exists():
                time.sleep(0.001)
            took = time.perf_counter() - begun
            process.terminate()
        return took


def _print_commands() -> None:
    print(f"| command | CPU, s (median of {STARTS}) |\n|---|---:|")
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        daemon = Daemon(Path(directory), fresh=True)
        daemon.stop()  # it leaves a history, which `runs` reads
        for arguments in ("--version", "--help", f"runs --storage.path={daemon.history}"):
            seconds = statistics.median(_command_cpu(arguments.split()) for _ in range(STARTS))
            print(f"| `trackside {arguments.split()[0]}` | {seconds:.3f} |")
    print()


def _command_cpu(arguments: list[str]) -> float:
    """Return user and system seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command(*arguments), env=clean_environ(), capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _print_imports() -> None:
    own = statistics.median(float(_run(CLIENT).split()[0]) for _ in range(STARTS))
    print(f"`import trackside` takes {1000 * own:.1f} ms longer than `import zmq, msgspec` (median of {STARTS}).\n")
    print("| import, in a fresh interpreter | seconds | RSS, MiB |\n|---|---:|---:|")
    for name in IMPORTS:
        seconds, memory = _import(name)
        print(f"| `{name}` | {seconds:.3f} | {memory:.1f} |")


def _import(name: str) -> tuple[float, float]:
    """Return seconds and MiB, medians of five."""
    runs = [_run(MEASURE, name).split() for _ in range(5)]
    return statistics.median(float(run[0]) for run in runs), statistics.median(float(run[1]) for run in runs)


def _run(script: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    main()
