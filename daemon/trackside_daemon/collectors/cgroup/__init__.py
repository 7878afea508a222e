"""Collect samples of the cgroups that training runs in.

In: the files of cgroup v1 and v2. Out: memory, CPU, pressure, limits and OOM kills per cgroup.
"""
