"""Families about the numbers of other programs, and those of NCCL's Inspector, which the daemon also reads itself."""

import re
from collections.abc import Mapping

from trackside_daemon.model.metric import define

TEXTFILE_MTIME = define(
    "trackside_textfile_mtime_seconds", "When a file that is served was written, in Unix time.", "file"
)
TEXTFILE_ERROR = define("trackside_textfile_scrape_error", "1 if a file of the directory cannot be served, else 0.")

# Of NCCL's Inspector (https://github.com/NVIDIA/nccl, plugins/profiler/inspector), by what they measure: collectives, and
# operations between two ranks.
BANDWIDTH = ("nccl_bus_bandwidth_gbs", "nccl_p2p_bus_bandwidth_gbs")  # in GB/s
EXEC_TIME = ("nccl_collective_exec_time_microseconds", "nccl_p2p_exec_time_microseconds")

# The labels of an operation's fields, the first that a series has.
OPERATION = {
    "host": ("node", "host_name", "hostname"),
    "gpu": ("gpu", "gpu_uuid", "device"),
    "communicator": ("comm_name", "comm_id", "comm_hash"),
    "ranks": ("nranks",),
    "operation": ("collective", "p2p", "operation"),
    "size": ("message_size",),
    "algorithm": ("algo_proto",),
}
PID = ("pid", "process_pid")
_NUMBER = re.compile(r"(?:gpu|cuda)?[-_: ]*(\d+)", re.IGNORECASE)


def operation(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of an operation from the labels of its series; those that it lacks are empty."""
    return {field: next((labels[name] for name in names if name in labels), "") for field, names in OPERATION.items()}


def is_gpu(name: str, index: str, uuid: str) -> bool:
    """Return whether the Inspector's name of a GPU, such as ``3``, ``GPU3`` or a UUID, is that of a GPU."""
    number = _NUMBER.fullmatch(name)
    return number[1] == index if number else bool(name) and uuid.endswith(name.removeprefix("GPU-"))
