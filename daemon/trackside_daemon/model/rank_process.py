"""The daemon's word for a process that trains now, between who hears of it and who looks at this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trackside.wire import ResourceUsage


class RankProcess(NamedTuple):
    """A process of this machine that is a rank of a run.

    Attributes:
        run: The run's name, as it is exported; *run_id* names it on all machines, and *attempt* which of its attempts.
        pid: As this process counts; 0 when its own namespace hides that.
        gpus: What it says of its GPUs, as `trackside.wire.Identity` has it.
        k8s_pod: As `trackside.wire.About` has it; so its namespace and container.
        room: What it has said last of its shared memory and files; None when it has not.
        peak_flops: FLOP/s that its GPUs can do at most, if it has said so.
    """

    run: str
    run_id: str
    attempt: int
    rank: int
    local_rank: int
    job_id: str
    pid: int
    gpus: tuple[str, ...] = ()
    k8s_pod: str = ""
    k8s_namespace: str = ""
    k8s_container: str = ""
    room: ResourceUsage | None = None
    peak_flops: float | None = None
