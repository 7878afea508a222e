"""Run the process that calls NVML: ``python -m trackside_daemon.nvml.worker SETTINGS [PARENT]``.

In: requests on standard input. Out: readings on standard output.
The only package that imports pynvml.
"""
