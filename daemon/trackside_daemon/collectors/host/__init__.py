"""Collect samples of the host.

In: /proc, /sys and statvfs. Out: samples of CPUs, memory, disks, file systems, network, temperatures and clocks.
"""
