"""Run every part of the report within ten minutes, and write it.

    python3 -m bench.gpu_report              on a machine with a GPU; `make gpu` does the same
    python3 -m bench.gpu_report --rehearse   anywhere: a fake driver, a fake nvidia-smi, and tensors on the CPU

The exit status is 1 if a limit is missed or a part fails. Needs only the standard library of Python 3.10 or later.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.gpu_report.environment import ROOT, Environment, prepare
from bench.gpu_report.report import Outcome, failures, render
from bench.gpu_report.result import Result, read

if TYPE_CHECKING:
    from collections.abc import Mapping

SHOWN_LINES = 40
RESERVE = 8.0
"""Seconds that writing the report may need."""
GRACE = 5.0
"""Seconds in which a part that is ended writes what it has measured."""


class Part(NamedTuple):
    """A part: its module here, its title, and its limit in seconds."""

    module: str
    title: str
    seconds: float


# Timings come one after the other, so that no part disturbs another. The most important ones come first.
PARTS = (
    Part("machine", "Machine", 60.0),
    Part("suite", "Tests in tests/gpu", 150.0),
    Part("pushes", "Pushes of GPU scalars", 90.0),
    Part("parity", "Parity with nvidia-smi", 100.0),
    Part("training", "Training with all alerts on", 130.0),
    Part("auto", "An unchanged training with --auto", 80.0),
    Part("driver", "Cost with the real driver", 120.0),
    Part("watching", "Watching a model", 100.0),
)


def main() -> int:
    """Write the report that the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rehearse", action="store_true", help="use fakes instead of a GPU")
    parser.add_argument("--minutes", type=float, default=9.5, help="limit of the whole [default: %(default)s]")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "gpu-report.md", help="the report [default: gpu-report.md]"
    )
    parser.add_argument("--only", action="append", choices=[part.module for part in PARTS], help="only this part")
    options = parser.parse_args()
    end = time.monotonic() + options.minutes * 60 - RESERVE
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        outcomes = run(Path(directory), options.only, end, rehearse=options.rehearse, output=options.output)
    print("\n".join(failures(outcomes)) or "every limit is met")
    print(f"report: {options.output}")
    return 1 if failures(outcomes) else 0


def run(place: Path, only: list[str] | None, end: float, *, rehearse: bool, output: Path) -> list[Outcome]:
    """Run the parts until a moment of the monotonic clock; rewrite the report after each, in case this process is killed."""
    begun = time.monotonic()
    _progress("environment")
    outcomes, environ = _environment(place, rehearse=rehearse)
    python = environ.pop("GPU_REPORT_PYTHON")
    for part in PARTS:
        if only and part.module not in only:
            continue
        _progress(f"{part.title}: at most {part.seconds:.0f} s")
        outcomes.append(_outcome(part, python, environ, place, end, rehearse=rehearse))
        output.write_text(render(outcomes, time.monotonic() - begun, rehearse=rehearse))
    return outcomes


def _environment(place: Path, *, rehearse: bool) -> tuple[list[Outcome], dict[str, str]]:
    """Return the outcome of making the environment, and the variables of the parts."""
    begun = time.monotonic()
    failure = ""
    try:
        made = prepare(place / "python")
    except Exception as error:  # noqa: BLE001  the parts run with the Python that is there, and fail for their own reasons
        made, failure = Environment(Path(sys.executable), {}), f"{type(error).__name__}: {error}"
    environ = {**os.environ, **made.environ, "GPU_REPORT_PYTHON": str(made.python), "PYTHONUNBUFFERED": "1"}
    path = [f"{ROOT}/tests", str(ROOT), environ.get("PYTHONPATH", "")]
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    environ |= {"TRACKSIDE_NVML_LOCK": f"trackside-gpu-report-{os.getpid()}", "TRACKSIDE_SPOOL": f"{place}/spool"}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if rehearse:
        try:
            environ |= _fakes(made.python, environ, place / "fakes")
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            failure = f"the fakes cannot be made: {error}"
    outcome = Outcome("Environment", made.result, failure, [], time.monotonic() - begun)
    return [outcome], environ


def _fakes(python: Path, environ: Mapping[str, str], place: Path) -> dict[str, str]:
    """Return the variables with which the parts see a fake driver and a fake nvidia-smi."""
    script = "import sys; from bench.gpu_report.rehearsal import write_environ; write_environ(sys.argv[1])"
    subprocess.run([str(python), "-c", script, str(place)], cwd=ROOT, env=environ, check=True, timeout=60)
    lines = (place / "environ").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def _outcome(
    part: Part, python: str, environ: Mapping[str, str], place: Path, end: float, *, rehearse: bool
) -> Outcome:
    """Run a part as a process; a part without a complete result has failed."""
    begun = time.monotonic()
    seconds = min(part.seconds, end - begun)
    if seconds <= 0:
        return Outcome(part.title, Result(), "no time was left for this part", [], 0.0)
    out, log = place / f"{part.module}.json", place / f"{part.module}.log"
    command = [python, "-W", "ignore", "-m", "bench.gpu_report.part", part.module, str(out)]
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, *(["--rehearse"] if rehearse else [])],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status = _wait(process, seconds)
    lines = log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
    failure = "" if status == 0 else f"took longer than {seconds:.0f} s" if status is None else _reason(status, lines)
    result = Result()
    try:
        result = read(out)
    except (OSError, ValueError) as error:
        failure = failure or f"no result: {error}"
    return Outcome(part.title, result, failure, lines, time.monotonic() - begun)


def _reason(status: int, lines: list[str]) -> str:
    return f"exit status {status}: {lines[-1][:200]}" if lines else f"exit status {status}"


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Wait for a process; after its time, ask it to end, and return None. End all that it has started."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        return None
    finally:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
