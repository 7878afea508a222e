"""The families of NVML itself: its driver, its worker process and its calls, and the numbers of GPUs."""

from trackside_daemon.model.metric import define

DRIVER_INFO = define(
    "trackside_nvidia_driver_info",
    "Versions of the driver, NVML and CUDA, from nvmlSystemGetDriverVersion, nvmlSystemGetNVMLVersion and nvmlSystemGetCudaDriverVersion, sampled by "
    "the daemon's tick.",
    *("driver_version", "nvml_version", "cuda_version"),
)

VISIBLE = define(
    "trackside_gpus_visible",
    "GPUs that nvmlDeviceGetCount reports, 0 when NVML refuses or hangs, absent while the daemon does not query it, "
    "sampled by the daemon's tick.",
)
EXPECTED = define(
    "trackside_gpus_expected",
    "GPUs that should be present; collector.gpu.expected, else the largest number seen since the start or a pause, or "
    "on the PCI bus without a driver other than NVIDIA's, where the daemon is in no container or collector.gpu.whole "
    "is set.",
)
PCI = define(
    "trackside_gpus_pci",
    "NVIDIA GPUs of the whole machine, including those hidden from a container, from /sys/bus/pci/devices.",
)
RESTARTS = define(
    "trackside_nvml_worker_restarts_total", "Replacements of the process that reads NVML, by reason.", "reason"
)
STUCK = define(
    "trackside_nvml_worker_stuck",
    "1 while the process that reads NVML does not end after a signal; that blocks the start of another.",
)
CALLS = define(
    "trackside_nvml_calls_total",
    "Calls of NVML, by function and result; for simulated GPUs, the calls that real ones would need.",
    "function",
    "result",
)
CALL_SECONDS = define(
    "trackside_nvml_call_seconds_total",
    "Time spent in calls of NVML; for simulated GPUs, a plausible time of real ones.",
    "function",
)
REJECTED = define(
    "trackside_samples_rejected_total",
    "Values outside of the family's possible range, which are not exported.",
    "family",
)
