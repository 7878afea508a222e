"""Collect samples, one subject per file.

In: one source each (a /proc or /sys file, a cgroup, the NVML worker). Out: samples for the tick.
A collector that fails or hangs costs only its own samples.
"""
