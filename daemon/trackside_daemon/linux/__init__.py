"""Read and control processes, cgroups, mounts and signals through Linux interfaces.

In: /proc, /sys/fs/cgroup, pidfds and signals. Out: typed values, and child processes that end with their parent.
No module here depends on runs or metrics.
"""
