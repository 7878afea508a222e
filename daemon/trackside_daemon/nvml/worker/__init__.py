"""Run the process that calls NVML: ``python -m trackside_daemon.nvml.worker ORDER [PARENT]``.

In: requests on standard input. Out: readings on standard output, and GPU events.
The only package that imports pynvml.
"""
