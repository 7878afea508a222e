"""Collect samples of GPUs from the NVML worker.

In: readings of `nvml`. Out: samples under the exported family names, and log lines about GPU events.
"""
