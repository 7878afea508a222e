"""Joins of GPU and process series with the ranks that use them.

Each side of a join is made unique by `max by`: a GPU may belong to two runs, and a rank may have been restarted.
"""

from __future__ import annotations

GPU = "job, instance, gpu, uuid"
GPU_OF_RANK = "rank {{rank}}, GPU {{gpu}} of {{instance}}"
"""Legend of the series of `of_gpu`."""


def of_gpu(value: str) -> str:
    """Return a query for *value* of the selected ranks' GPUs, with the label ``rank``."""
    ranks = f"max by ({GPU}, rank) (trackside_gpu_rank_info{{RANK}})"
    return f"{ranks} * on ({GPU}) group_left () max by ({GPU}) ({value})"


def of_process(value: str) -> str:
    """Return a query for *value* of the selected ranks' processes, with the label ``rank``."""
    process = "job, instance, pid"
    ranks = f'max by ({process}, rank) (trackside_process_info{{RANK, role="rank"}})'
    return f"sum by (rank) ({ranks} * on ({process}) group_left () max by ({process}) ({value}))"
