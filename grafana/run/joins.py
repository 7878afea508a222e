"""From ranks to their GPUs and their processes.

Each side of a join is made one by `max by`: a GPU may be of two runs, and a rank be restarted.
"""

from __future__ import annotations

GPU = "job, instance, gpu, uuid"
GPU_OF_RANK = "rank {{rank}}, GPU {{gpu}} of {{instance}}"
"""How a series of `of_gpu` is called."""


def of_gpu(value: str) -> str:
    """A query: what *value* says of the GPUs of the ranks that are chosen, with the label ``rank``."""
    ranks = f"max by ({GPU}, rank) (trackside_gpu_rank_info{{RANK}})"
    return f"{ranks} * on ({GPU}) group_left () max by ({GPU}) ({value})"


def of_process(value: str) -> str:
    """A query: what *value* says of the processes of the ranks that are chosen, with the label ``rank``."""
    process = "job, instance, pid"
    ranks = f'max by ({process}, rank) (trackside_process_info{{RANK, role="rank"}})'
    return f"sum by (rank) ({ranks} * on ({process}) group_left () max by ({process}) ({value}))"
