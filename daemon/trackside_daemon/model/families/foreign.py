"""Families about the numbers of other programs, and those of NCCL's Inspector, which the daemon also reads itself."""

from trackside_daemon.model.metric import define

TEXTFILE_MTIME = define(
    "trackside_textfile_mtime_seconds", "When a file that is served was written, in Unix time.", "file"
)
TEXTFILE_ERROR = define("trackside_textfile_scrape_error", "1 if a file of the directory cannot be served, else 0.")

# Of NCCL's Inspector (https://github.com/NVIDIA/nccl, plugins/profiler/inspector), by what they measure: collectives, and
# operations between two ranks.
BANDWIDTH = ("nccl_bus_bandwidth_gbs", "nccl_p2p_bus_bandwidth_gbs")  # in GB/s
EXEC_TIME = ("nccl_collective_exec_time_microseconds", "nccl_p2p_exec_time_microseconds")
