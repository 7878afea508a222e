"""The variables with which NCCL's Inspector sends what it measures to the daemon of `trackside run`."""

import os
from collections.abc import Mapping, Sequence
from glob import escape, glob
from pathlib import Path
from typing import Any

from trackside_daemon.captures.kineto.environment import interpreter

AUTO, OFF = "auto", "off"
LIBRARY = "libnccl-profiler-inspector.so"
PLACES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/opt/nccl/lib",
)
MICROSECONDS = 30_000_000  # between two writes; the Inspector's text files are no faster
OF_USER = ("NCCL_PROFILER_PLUGIN", "NCCL_INSPECTOR_ENABLE")


def library(wanted: str, command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the path of the Inspector's library; empty if it is not wanted, not found, or the user has set it up.

    Args:
        wanted: A path, ``auto`` or ``off``.
        command: The program and its arguments, whose environment may have NCCL from a wheel.
        environ: Its variables.

    Raises:
        ValueError: There is no file at the path.
    """
    if wanted == OFF or any(name in environ for name in OF_USER):
        return ""
    if wanted != AUTO:
        if not Path(wanted).is_file():
            raise ValueError(f"--nccl-inspector: {wanted} is no file; give the path of {LIBRARY}, auto or off")
        return str(Path(wanted).absolute())
    homes = [f"{environ[name]}/lib" for name in ("NCCL_HOME", "NCCL_ROOT") if environ.get(name)]
    paths = [place for place in environ.get("LD_LIBRARY_PATH", "").split(":") if place.startswith("/")]
    python = interpreter(command[0])
    prefix = escape(os.path.dirname(os.path.dirname(python))) if python else ""  # noqa: PTH120  not resolved: of the venv
    wheels = glob(f"{prefix}/lib/python3*/site-packages/nvidia/nccl/lib") if prefix else []  # noqa: PTH207
    found = (Path(place) / LIBRARY for place in (*homes, *paths, *wheels, *PLACES))
    return next((str(path) for path in found if path.is_file()), "")


def variables(path: str, status: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables for a library and the status of a daemon; none if the daemon has no way in.

    OTLP comes before text files, which would stay in their directory.
    """
    address, directory = status.get("otlp_endpoint"), status.get("textfile_directory")
    way = {}
    if address:
        way = {"NCCL_INSPECTOR_OTEL_EXPORT": "1", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://{address}/v1/metrics"}
    elif directory and os.path.isdir(directory) and os.access(directory, os.W_OK):  # noqa: PTH112
        way = {"NCCL_INSPECTOR_PROM_DUMP": "1", "NCCL_INSPECTOR_DUMP_DIR": directory}
    if not path or not way:
        return {}
    every = {"NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": str(MICROSECONDS)}
    return {"NCCL_PROFILER_PLUGIN": path, "NCCL_INSPECTOR_ENABLE": "1", **every, **way}
