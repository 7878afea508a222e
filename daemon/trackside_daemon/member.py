"""The daemon's word for a process that trains now, between who hears of it and who looks at this machine."""

from __future__ import annotations

from typing import NamedTuple


class Member(NamedTuple):
    """A process of this machine that is a rank of a run.

    Attributes:
        run: The run's name, as it is exported; *run_id* names it on all machines.
        pid: As this process counts; 0 when its own namespace hides that.
        gpus: What it says of its GPUs, as `trackside.wire.Identity` has it.
    """

    run: str
    run_id: str
    rank: int
    local_rank: int
    job_id: str
    pid: int
    gpus: tuple[str, ...]
