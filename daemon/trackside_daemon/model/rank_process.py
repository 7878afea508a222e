"""The training processes of this machine, from `training`, which determines them, to the collectors, which measure them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trackside.wire import ProfilePlan, ResourceUsage


class RankProcess(NamedTuple):
    """A process of this machine that is a rank of a run."""

    run: str  # the run's exported name; *run_id* is its id on all machines
    run_id: str
    attempt: int  # the attempt of the run
    rank: int
    local_rank: int
    job_id: str
    pid: int  # the process id in the daemon's namespace; 0 if the process's own namespace hides it
    gpus: tuple[str, ...] = ()  # its GPUs, as in `trackside.wire.Identity`
    k8s_pod: str = ""  # its pod, as in `trackside.wire.About`; likewise namespace and container
    k8s_namespace: str = ""
    k8s_container: str = ""
    room: ResourceUsage | None = None  # the last report of its shared memory and files; None before the first
    peak_flops: float | None = None  # peak FLOP/s of its GPUs, if the user has set it
    plan: ProfilePlan | None = None  # when the user wants the run to be profiled
    owner: str = ""  # the owner of the run, as in `trackside_daemon.model.session.Owner.id`


class RankProcesses:
    """The processes of this machine that train, as of the last tick. Written by one thread, read by any."""

    def __init__(self) -> None:
        self._current: tuple[RankProcess, ...] = ()

    def set(self, processes: tuple[RankProcess, ...]) -> None:
        """Replace all."""
        self._current = processes  # a single assignment, so that readers need no lock

    def get(self) -> tuple[RankProcess, ...]:
        """Return all, run by run, each in the order in which its sessions opened."""
        return self._current
