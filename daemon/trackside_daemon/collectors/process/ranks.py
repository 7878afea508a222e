"""Which rank trains on which GPU, and whose the processes are that NVML lists.

NVML tells the processes on a GPU by pid, and the connection of a training's client tells its pid, so that each rank is
found where it is, also by the processes that it has started. Where that finds nothing, since CUDA is not initialised
yet, what the client says of its GPUs counts: see `trackside_daemon.collectors.process.gpu_claims`. Only that counts in a container
that does not see the host's pids: there NVML's may be those of others.

Simulated GPUs have no processes and belong to nobody. So that dashboards can be seen, a rank that says nothing of its
GPUs is shown on the one of its local rank.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.collectors.process.container_location import Place, Places
from trackside_daemon.collectors.process.gpu_claims import by_index, by_uuid, is_divided
from trackside_daemon.collectors.process.process_names import Life, Names
from trackside_daemon.collectors.process.roles import role
from trackside_daemon.collectors.process.status import Processes
from trackside_daemon.collectors.process.user_names import Users
from trackside_daemon.model.metric import Metric, Sample
from trackside_daemon.nvml.peaks import peak_flops
from trackside_daemon.nvml.readers.host_pids import PROC, in_host_pid_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from trackside_daemon.collectors.process.roles import Role
    from trackside_daemon.model.rank_process import RankProcess
    from trackside_daemon.nvml.reading import GpuReading

RANK_INFO = Metric(
    "trackside_gpu_rank_info",
    "info",
    "A rank trains on the GPU: NVML lists its process, or one that it has started, or else the rank says so; sampled by "
    "the daemon's tick.",
    ("gpu", "uuid", "run", "rank"),
)
PEAK_FLOPS = Metric(
    "trackside_training_peak_flops_per_second",
    "gauge",
    "FLOP/s that the rank's GPUs can do at most: what the run says, else dense tensor operations in bfloat16 (float16 before "
    "Ampere) by their data sheets; one that several ranks share is divided; absent where one is not known, or under MIG.",
    ("run", "rank"),
    "flops_per_second",
)
PROCESS_INFO = Metric(
    "trackside_process_info",
    "info",
    "A process that is a rank, or that NVML lists on a GPU: one that a rank has started has that rank's labels, and is "
    "dataloader by its name or other, as are strangers; from /proc/PID/status and /proc/PID/cgroup; sampled by the daemon's tick.",
    (
        *("pid", "role", "comm", "user", "run", "run_id", "rank", "local_rank", "job_id"),
        *("k8s_pod", "k8s_namespace", "k8s_container", "container_id", "cgroup"),
    ),
)

OTHERS = 256
"""So many processes at most beside the ranks themselves, first those that they have started; a machine has a few."""

_NOBODY = ("",) * 8
"""What `_whose` says of a process that is no rank's."""

log = logging.getLogger("trackside")


class _Rank(NamedTuple):
    """One rank of a run, as one process."""

    run_id: str
    rank: int
    pid: int


class RanksCollector:
    """Joins the processes that train with the GPUs' processes.

    Args:
        gpus: As they were read last.
        members: The processes of this machine that train.
        others: Whether processes that are no rank's are told too.
        proc: Where procfs is mounted.
        host_pids: Says of that whether NVML's pids mean here what they mean to the driver.
    """

    name = "ranks"
    metrics = (RANK_INFO, PEAK_FLOPS, PROCESS_INFO)

    def __init__(
        self,
        gpus: Callable[[], Sequence[GpuReading]],
        members: Callable[[], Sequence[RankProcess]],
        *,
        others: bool = True,
        proc: Path = PROC,
        host_pids: Callable[[Path], bool] = in_host_pid_namespace,
    ) -> None:
        self._gpus = gpus
        self._members = members
        self._host_pids = host_pids(proc)
        self._others = others
        self._proc = proc
        self._users = Users()
        self._names = Names()
        self._places = Places(proc)
        self._told = False
        self._held: dict[_Rank, set[str]] = {}

    def collect(self) -> list[Sample]:
        """A sample for each rank on a GPU, and one for each process; none when nobody trains and no GPU is used."""
        self._names.begin()
        self._places.begin()
        gpus, members = self._gpus(), self._members()
        processes = Processes(self._proc)
        ranks = {member.pid for member in members if member.pid}
        listed = [(pid, gpu.uuid) for gpu in gpus for pid in sorted(_pids(gpu))] if self._host_pids else []
        elders = {pid: processes.elder(pid, ranks) for pid, _ in listed}
        seen: dict[int, set[str]] = {}
        for pid, uuid in listed:
            seen.setdefault(elders[pid], set()).add(uuid)
        return [*self._on_gpus(members, gpus, seen, processes), *self._processes(members, elders, processes)]

    def _on_gpus(
        self,
        members: Iterable[RankProcess],
        gpus: Sequence[GpuReading],
        seen: Mapping[int, set[str]],
        processes: Processes,
    ) -> Iterable[Sample]:
        """Where the ranks are. One that was *seen* on a GPU stays there while it lives and NVML does not list who is there."""
        told = {gpu.uuid for gpu in gpus if any(family == "processes" for family, _, _ in gpu.values)}
        held: dict[_Rank, set[str]] = {}
        places: dict[tuple[str, str], dict[str, GpuReading]] = {}
        told_peaks: dict[tuple[str, str], float] = {}
        for member in members:
            key = _Rank(member.run_id, member.rank, member.pid)
            now = seen.get(member.pid, set()) if member.pid else set()
            if uuids := now | (self._held.get(key, set()) - told):
                held[key] = uuids
            on = [gpu for gpu in gpus if gpu.uuid in uuids] if uuids else _claimed(member, gpus, processes)
            who = member.run, str(member.rank)
            places.setdefault(who, {}).update({gpu.uuid: gpu for gpu in on})
            if member.peak_flops is not None:
                told_peaks[who] = member.peak_flops
        self._held = held
        for who, there in places.items():
            yield from (Sample(RANK_INFO, (str(gpu.index), uuid, *who), 1) for uuid, gpu in there.items())
        shares = Counter(uuid for there in places.values() for uuid in there)
        peaks = {who: peak for who, there in places.items() if (peak := _peak(there.values(), shares)) is not None}
        yield from (Sample(PEAK_FLOPS, who, peak) for who, peak in {**peaks, **told_peaks}.items())

    def _processes(
        self, members: Iterable[RankProcess], elders: Mapping[int, int], processes: Processes
    ) -> Iterable[Sample]:
        """Each process once; of several runs in one process the oldest."""
        by_pid: dict[int, RankProcess] = {}
        for member in members:
            if member.pid:
                by_pid.setdefault(member.pid, member)
        for pid, member in by_pid.items():
            yield self._process(pid, processes, member)
        listed = [pid for pid in elders if pid not in by_pid and (self._others or elders[pid])]
        known = sorted((pid for pid in listed if processes.get(pid)), key=lambda pid: not elders[pid])
        self._tell_cut(len(known))
        for pid in known[:OTHERS]:
            yield self._process(pid, processes, by_pid.get(elders[pid]))

    def _process(self, pid: int, processes: Processes, member: RankProcess | None) -> Sample:
        status, comm, who, place = processes.get(pid), "", ("", ""), Place()
        if status is not None:
            comm = status.comm
            life = Life(pid, processes.started(pid))
            who = (self._names.first(life, comm), self._users.name(status.uid))
            place = self._places.of(life)
        *run, job, pod, namespace, container = _NOBODY if member is None else _whose(member)
        where = (job or place.job, pod, namespace, container, place.container, place.cgroup)
        return Sample(PROCESS_INFO, (str(pid), _role(pid, member, processes), *who, *run, *where), 1)

    def _tell_cut(self, count: int) -> None:
        """Log, once, that there are more processes than are shown."""
        if count > OTHERS and not self._told:
            self._told = True
            log.warning(
                "%d processes beside the ranks are on the GPUs, and %s shows %d of them; --no-collector.ranks.others "
                "leaves those out that no rank has started",
                *(count, PROCESS_INFO.name, OTHERS),
            )


def _role(pid: int, member: RankProcess | None, processes: Processes) -> Role:
    """What a process is to the training of the rank that it is, or that has started it."""
    if member is None:
        return "other"
    if pid == member.pid:
        return "rank"
    status = processes.get(pid)
    parent = None if status is None or status.parent == member.pid else processes.get(status.parent)
    return "other" if status is None else role(status.comm, "" if parent is None else parent.comm)


def _whose(member: RankProcess) -> tuple[str, ...]:
    """Run, run id, rank, local rank, job, pod, namespace and container."""
    numbers = (str(member.rank), str(member.local_rank))
    names = (member.k8s_pod, member.k8s_namespace, member.k8s_container)
    return (member.run, member.run_id, *numbers, member.job_id, *names)


def _pids(gpu: GpuReading) -> set[int]:
    """The processes on a GPU, also one whose memory NVML does not tell; a simulated one's are not real."""
    if _is_simulated(gpu):
        return set()
    return {
        int(labels[0]) for family, labels, _ in gpu.values if family.startswith("process_") and labels[0].isdecimal()
    }


def _claimed(member: RankProcess, gpus: Sequence[GpuReading], processes: Processes) -> list[GpuReading]:
    """The GPUs that the rank says are its own."""
    found = [by_uuid(claim, gpus) for claim in member.gpus if claim.startswith(("GPU-", "MIG-"))]
    indexes = [claim for claim in member.gpus if not claim.startswith(("GPU-", "MIG-"))]
    if indexes and processes.sees_the_same(member.pid):
        found += [by_index(claim, gpus) for claim in indexes]
    if not member.gpus and all(_is_simulated(gpu) for gpu in gpus):
        found = [gpu for gpu in gpus if gpu.index == member.local_rank]
    return [gpu for gpu in found if gpu is not None]


def _peak(gpus: Collection[GpuReading], shares: Mapping[str, int]) -> float | None:
    """FLOP/s of some GPUs together, each divided by its *shares*; None when that of one is not known."""
    known = [(peak_flops(gpu.info.get("name", "")), shares[gpu.uuid]) for gpu in gpus if not is_divided(gpu)]
    if not known or len(known) < len(gpus) or any(peak is None for peak, _ in known):
        return None
    return sum(peak / ranks for peak, ranks in known if peak is not None)


def _is_simulated(gpu: GpuReading) -> bool:
    return gpu.info.get("source") == "simulated"
