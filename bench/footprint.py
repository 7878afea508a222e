"""Measure what the daemon costs the machine: CPU, memory, start time, and what each import adds."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from processes import Daemon, clean_environ, command

from bench.gpu import CPU_LIMIT, GPUS, RSS_LIMIT, c_driver, running
from bench.table import at_most, head, machine, row
from trackside_daemon.nvml.reading import WorkerSettings

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
    machine()
    _print_running()
    _print_start()
    _print_commands()
    _print_imports()


def _print_running() -> None:
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        drivers = {
            "simulated": (WorkerSettings(simulate=GPUS), {}),
            "C fake": (WorkerSettings(), c_driver(Path(directory))),
        }
        head(f"host and {GPUS} GPUs at 1 s, a scrape every 15 s", "CPU, % of a core", "RSS, MiB", "PSS, MiB")
        together = {}
        for driver, (order, environ) in drivers.items():
            if environ is not None:
                costs, page = running(order, environ)
                assert page.count("\ntrackside_gpu_up{") == GPUS
                together[driver] = costs["together"]
                for name, cost in costs.items():
                    row(f"{driver}: {name}", f"{cost.cpu:.2f}", f"{cost.rss:.1f}", f"{cost.pss:.1f}")
    head("limit, all processes together", "measured", "target", "")
    for driver, cost in together.items():
        at_most(f"{driver}: CPU", cost.cpu, CPU_LIMIT, "% of a core")
        at_most(f"{driver}: RSS", cost.rss, RSS_LIMIT, "MiB")


def _print_start() -> None:
    bound = statistics.median(_start() for _ in range(STARTS))
    print(f"\nThe push socket is bound {bound:.3f} s after exec (median of {STARTS}).")


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
    head("command", f"CPU, s (median of {STARTS})")
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        daemon = Daemon(Path(directory), fresh=True)
        daemon.stop()  # it leaves a history, which `runs` reads
        for arguments in ("--version", "--help", f"runs --storage.path={daemon.history}"):
            seconds = statistics.median(_command_cpu(arguments.split()) for _ in range(STARTS))
            row(f"`trackside {arguments.split()[0]}`", f"{seconds:.3f}")


def _command_cpu(arguments: list[str]) -> float:
    """Return user and system seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command(*arguments), env=clean_environ(), capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _print_imports() -> None:
    own = statistics.median(float(_run(CLIENT).split()[0]) for _ in range(STARTS))
    print(f"\n`import trackside` takes {1000 * own:.1f} ms longer than `import zmq, msgspec` (median of {STARTS}).")
    head("import, in a fresh interpreter", "seconds", "RSS, MiB")
    for name in IMPORTS:
        seconds, memory = _import(name)
        row(f"`{name}`", f"{seconds:.3f}", f"{memory:.1f}")


def _import(name: str) -> tuple[float, float]:
    """Return seconds and MiB, medians of five."""
    runs = [_run(MEASURE, name).split() for _ in range(5)]
    return statistics.median(float(run[0]) for run in runs), statistics.median(float(run[1]) for run in runs)


def _run(script: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    main()
