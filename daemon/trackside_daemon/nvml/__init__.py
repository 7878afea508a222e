"""Read NVIDIA GPUs in a separate worker process.

In: NVML, through pynvml. Out: one `Reading` per cycle, in base units.
The driver can hang or crash; only the worker process is lost then.
"""
