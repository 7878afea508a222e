"""Assign ranks to GPUs, and the processes that NVML lists to ranks.

NVML lists the processes on a GPU by pid, and the connection of a training's client has the client's pid. So a rank is
found on the GPUs of its process and of the processes that it started. Where that finds nothing, because CUDA is not
initialised yet, the GPUs that the client reports count: see `trackside_daemon.collectors.process.ranks`. In a
container that does not see the host's pids, only the client's report counts, because NVML's pids may be those of others.

Simulated GPUs have no processes. For dashboards to show something, a rank that reports no GPU is shown on the simulated
GPU of its local rank.
"""

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trackside.environment.identity import start_time
from trackside.log_once import LogOnce
from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.collectors.process.process_tree import FirstNames, ProcessKey, Role, role
from trackside_daemon.linux.cgroups import label
from trackside_daemon.linux.user_names import UserNames
from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.families import process as process_families
from trackside_daemon.model.families import training
from trackside_daemon.model.metric import Sample
from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.nvml.peaks import peak_flops
from trackside_daemon.nvml.readers.host_pids import in_host_pid_namespace
from trackside_daemon.nvml.reading import GpuReading

AGAIN_SECONDS = 30.0  # time until a location is read again: a process can be moved to another cgroup, but seldom is

# /docker/ID, docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope, libpod-ID.scope
_CONTAINER = re.compile(rb"[/:-]([0-9a-f]{12})[0-9a-f]{52}(?:\.scope)?(?=/|$)", re.MULTILINE)

# /slurm/uid_1000/job_7/step_0, slurmstepd.scope/job_7/step_0; from Slurm 26.05 on, a SLUID instead of the number
_JOB = re.compile(rb"slurm[^/\n]*/(?:uid_\d+/)?(?:job_(\d+)|(s[0-9A-HJKMNP-TV-Z]{13}))(?=/|$)", re.MULTILINE)


class ContainerLocation(NamedTuple):
    """The cgroup, container and job of a process."""

    cgroup: str = ""  # label value of its cgroup, from `trackside_daemon.linux.cgroups.label`
    # First 12 digits of its container's id, as ``docker ps`` shows it; of nested ones the innermost.
    container: str = ""
    job: str = ""  # the number of its Slurm job, or the job's SLUID


class ContainerLocations:
    """Locations of processes, each kept until a tick in which nothing asks for it.

    Args:
        proc: Path of procfs.
        clock: Seconds of the monotonic clock.
    """

    def __init__(self, proc: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._before: dict[ProcessKey, tuple[float, ContainerLocation]] = {}
        self._now: dict[ProcessKey, tuple[float, ContainerLocation]] = {}

    def begin(self) -> None:
        """Begin a tick, and forget processes that the last tick did not ask for."""
        self._before = self._now
        self._now = {}

    def of(self, key: ProcessKey) -> ContainerLocation:
        """Return the location of a process, at most `AGAIN_SECONDS` old; an empty one when it is gone or hidden."""
        cached = self._now.get(key) or self._before.get(key)
        if cached is None or self._clock() - cached[0] >= AGAIN_SECONDS:
            cached = self._clock(), self._read(key.pid)
        self._now[key] = cached
        return cached[1]

    def _read(self, pid: int) -> ContainerLocation:
        try:
            text = read(self._proc / str(pid) / "cgroup")
        except OSError:
            return ContainerLocation()
        containers = _CONTAINER.findall(text)
        container = containers[-1].decode() if containers else ""
        return ContainerLocation(label(text.decode(errors="replace")), container, slurm_job(text).decode())


def slurm_job(text: bytes) -> bytes:
    """Return the Slurm job in the text of a /proc/PID/cgroup; empty for none."""
    match = _JOB.search(text)
    return b"" if match is None else match[1] or match[2]


GENERATIONS = 16  # longest search for an ancestor, in processes
OTHERS = 256  # most processes in addition to the ranks, those that ranks started first; a machine normally has a few
_NO_RANK = ("",) * 8  # result of `_rank_labels` for a process that belongs to no rank

log = logging.getLogger("trackside")


def by_uuid(claim: str, gpus: Sequence[GpuReading]) -> GpuReading | None:
    """Return the only GPU whose UUID, or whose MIG device's UUID, begins with *claim*; None without or with several.

    Accepted forms: ``GPU-8932f937``, ``MIG-5c3a…`` and, from drivers before 470, ``MIG-GPU-8932f937…/1/0``.
    """
    # The prefix before the number is ignored: PyTorch has none, so clients report a MIG device's UUID as a GPU's.
    start = _bare(claim)
    matching = [gpu for gpu in gpus if any(_bare(uuid).startswith(start) for uuid in (gpu.uuid, *_mig_uuids(gpu)))]
    return matching[0] if start and len(matching) == 1 else None


def by_index(claim: str, gpus: Sequence[GpuReading]) -> GpuReading | None:
    """Return the GPU with a CUDA index, or with ``PCI-`` an index of nvidia-smi; None when it is ambiguous."""
    # CUDA counts the fastest GPU first, which changes nothing where all are alike. With MIG, CUDA counts other devices.
    number = claim.removeprefix("PCI-")
    if not number.isdecimal() or any(_mig_uuids(gpu) for gpu in gpus):
        return None
    names = {gpu.info["name"] for gpu in gpus if gpu.info.get("name")}  # a GPU lost before the first reading has none
    if number == claim and len(names) > 1:
        return None
    return next((gpu for gpu in gpus if gpu.index == int(number)), None)


def _mig_uuids(gpu: GpuReading) -> list[str]:
    return [labels[0] for family, labels, _ in gpu.values if family == "mig_info"]


def _bare(uuid: str) -> str:
    return uuid.removeprefix("MIG-").removeprefix("GPU-").partition("/")[0].lower()


class ProcessStatus(NamedTuple):
    """A process, from /proc/PID/status; *contained* when it has a pid namespace of its own."""

    comm: str
    parent: int
    uid: int
    contained: bool


class ProcessStatuses:
    """The processes at one moment; each is read once, on first use.

    Args:
        proc: Path of procfs.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._cache: dict[int, ProcessStatus | None] = {}

    def get(self, pid: int) -> ProcessStatus | None:
        """Return one process; None when it is gone, hidden, or on another machine."""
        if pid not in self._cache:
            self._cache[pid] = _read_status(self._proc / str(pid) / "status")
        return self._cache[pid]

    def started(self, pid: int) -> int:
        """Return the start of a process in ticks since boot; 0 when hidden."""
        return start_time(self._proc, pid)

    def nearest_ancestor(self, pid: int, among: Collection[int]) -> int:
        """Return the nearest of the pids *among* that is the process or its ancestor; 0 for none."""
        for _ in range(GENERATIONS):
            if pid in among:
                return pid
            status = self.get(pid)
            if status is None or not status.parent:
                break
            pid = status.parent
        return 0

    def sees_same_gpus(self, pid: int) -> bool:
        """Return whether the process is assumed to see the same GPUs as this one, in the same order.

        A process in its own container or Slurm job is not: those number their GPUs from 0.
        """
        status = self.get(pid)
        return status is not None and not status.contained and self._job(str(pid)) == self._job("self")

    def _job(self, pid: str) -> bytes:
        try:
            return slurm_job((self._proc / pid / "cgroup").read_bytes())
        except OSError:
            return b""


def _read_status(file: Path) -> ProcessStatus | None:
    try:
        lines = file.read_bytes().decode(errors="replace").split("\n")
        fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        # NSpid has the pid in each nested namespace, so a process in no other namespace has one.
        pids = fields.get("NSpid", "").split()  # missing before Linux 4.1
        return ProcessStatus(fields["Name"], int(fields["PPid"]), int(fields["Uid"].split()[0]), len(pids) > 1)
    except (OSError, KeyError, ValueError, IndexError):
        return None


class _RankKey(NamedTuple):
    """One process of a rank of a run."""

    run_id: str
    rank: int
    pid: int


class RanksCollector:
    """The join of rank processes and the processes on GPUs.

    Args:
        gpus: Returns the GPUs of the last reading.
        rank_processes: Returns the processes of this machine that train.
        others: Include processes that belong to no rank.
        proc: Path of procfs.
        host_pids: Returns, for *proc*, whether NVML's pids are those of this pid namespace.
    """

    name = "ranks"

    def __init__(
        self,
        gpus: Callable[[], Sequence[GpuReading]],
        rank_processes: Callable[[], Sequence[RankProcess]],
        *,
        others: bool = True,
        proc: Path = Path("/proc"),
        host_pids: Callable[[Path], bool] = in_host_pid_namespace,
    ) -> None:
        self._gpus = gpus
        self._rank_processes = rank_processes
        self._host_pids = host_pids(proc)
        self._others = others
        self._proc = proc
        self._users = UserNames()
        self._names = FirstNames()
        self._locations = ContainerLocations(proc)
        self._logged = LogOnce()
        self._last_uuids: dict[_RankKey, set[str]] = {}

    def collect(self) -> list[Sample]:
        """Return a sample per rank on a GPU, one per process, and the peak FLOP/s; none when nothing trains or uses a GPU."""
        self._names.begin()
        self._locations.begin()
        gpus = self._gpus()
        rank_processes = self._rank_processes()
        statuses = ProcessStatuses(self._proc)
        rank_pids = {process.pid for process in rank_processes if process.pid}
        listed = [(pid, gpu.uuid) for gpu in gpus for pid in sorted(_pids(gpu))] if self._host_pids else []
        rank_of = {pid: statuses.nearest_ancestor(pid, rank_pids) for pid, _ in listed}
        uuids_by_rank: dict[int, set[str]] = {}
        for pid, uuid in listed:
            uuids_by_rank.setdefault(rank_of[pid], set()).add(uuid)
        return [
            *self._rank_samples(rank_processes, gpus, uuids_by_rank, statuses),
            *self._process_samples(rank_processes, rank_of, statuses),
        ]

    def _rank_samples(
        self,
        rank_processes: Iterable[RankProcess],
        gpus: Sequence[GpuReading],
        uuids_by_rank: Mapping[int, set[str]],
        statuses: ProcessStatuses,
    ) -> Iterable[Sample]:
        """Yield the GPUs and the peak FLOP/s of each rank.

        A rank that NVML listed on a GPU stays on it while the rank lives and NVML lists no processes of that GPU.
        """
        with_list = {gpu.uuid for gpu in gpus if any(family == "processes" for family, _, _ in gpu.values)}
        last_uuids: dict[_RankKey, set[str]] = {}
        gpus_by_rank: dict[tuple[str, str], dict[str, GpuReading]] = {}
        used_by_rank: dict[tuple[str, str], dict[str, GpuReading]] = {}
        reported_peaks: dict[tuple[str, str], float] = {}
        for process in rank_processes:
            key = _RankKey(process.run_id, process.rank, process.pid)
            listed = uuids_by_rank.get(process.pid, set()) if process.pid else set()
            if uuids := listed | (self._last_uuids.get(key, set()) - with_list):
                last_uuids[key] = uuids
                used = rank_gpus = [gpu for gpu in gpus if gpu.uuid in uuids]
            else:
                rank_gpus = _claimed(process, gpus, statuses)
                # A GPU that is only visible does no work, if NVML's list of processes can show that.
                seen = with_list if process.pid and self._host_pids else ()
                used = [gpu for gpu in rank_gpus if gpu.uuid not in seen and not _is_simulated(gpu)]
            labels = process.run, str(process.rank)
            gpus_by_rank.setdefault(labels, {}).update({gpu.uuid: gpu for gpu in rank_gpus})
            used_by_rank.setdefault(labels, {}).update({gpu.uuid: gpu for gpu in used})
            if process.peak_flops is not None:
                reported_peaks[labels] = process.peak_flops
        self._last_uuids = last_uuids
        for labels, gpus_by_uuid in gpus_by_rank.items():
            yield from (
                Sample(gpu_families.RANK_INFO, (str(gpu.index), uuid, *labels), 1) for uuid, gpu in gpus_by_uuid.items()
            )
        shares = Counter(uuid for gpus_by_uuid in used_by_rank.values() for uuid in gpus_by_uuid)
        peaks = {
            labels: peak
            for labels, gpus_by_uuid in used_by_rank.items()
            if (peak := _peak(gpus_by_uuid.values(), shares)) is not None
        }
        yield from (Sample(training.PEAK_FLOPS, labels, peak) for labels, peak in {**peaks, **reported_peaks}.items())

    def _process_samples(
        self, rank_processes: Iterable[RankProcess], rank_of: Mapping[int, int], statuses: ProcessStatuses
    ) -> Iterable[Sample]:
        """Yield each process once; a process with several runs has the labels of the oldest."""
        by_pid: dict[int, RankProcess] = {}
        for process in rank_processes:
            if process.pid:
                by_pid.setdefault(process.pid, process)
        for pid, process in by_pid.items():
            yield self._process_sample(pid, statuses, process)
        listed = [pid for pid in rank_of if pid not in by_pid and (self._others or rank_of[pid])]
        others = sorted((pid for pid in listed if statuses.get(pid)), key=lambda pid: not rank_of[pid])
        if len(others) > OTHERS and self._logged.first():
            log.warning(
                "%d processes other than ranks are on the GPUs, and %s shows %d of them; --no-collector.ranks.others "
                "leaves out those that no rank has started",
                len(others),
                process_families.PROCESS_INFO.name,
                OTHERS,
            )
        for pid in others[:OTHERS]:
            yield self._process_sample(pid, statuses, by_pid.get(rank_of[pid]))

    def _process_sample(self, pid: int, statuses: ProcessStatuses, rank_process: RankProcess | None) -> Sample:
        comm = ""
        user = ""
        location = ContainerLocation()
        if (status := statuses.get(pid)) is not None:
            key = ProcessKey(pid, statuses.started(pid))
            comm = self._names.first(key, status.comm)
            user = self._users.name(status.uid)
            location = self._locations.of(key)
        *run, job, pod, namespace, container = _NO_RANK if rank_process is None else _rank_labels(rank_process)
        where = (job or location.job, pod, namespace, container, location.container, location.cgroup)
        return Sample(
            process_families.PROCESS_INFO, (str(pid), _role(pid, rank_process, statuses), comm, user, *run, *where), 1
        )


def _role(pid: int, rank_process: RankProcess | None, statuses: ProcessStatuses) -> Role:
    """Return the role of a process in the training of the rank that it is, or that started it."""
    if rank_process is None:
        return "other"
    if pid == rank_process.pid:
        return "rank"
    status = statuses.get(pid)
    parent = None if status is None or status.parent == rank_process.pid else statuses.get(status.parent)
    return "other" if status is None else role(status.comm, "" if parent is None else parent.comm)


def _rank_labels(process: RankProcess) -> tuple[str, ...]:
    """Return run, run id, rank, local rank, job, pod, namespace and container."""
    numbers = (str(process.rank), str(process.local_rank))
    names = (process.k8s_pod, process.k8s_namespace, process.k8s_container)
    return (process.run, process.run_id, *numbers, process.job_id, *names)


def _pids(gpu: GpuReading) -> set[int]:
    """Return the processes on a GPU, also those without a memory value; none of a simulated GPU."""
    if _is_simulated(gpu):
        return set()
    return {
        int(labels[0]) for family, labels, _ in gpu.values if family.startswith("process_") and labels[0].isdecimal()
    }


def _claimed(process: RankProcess, gpus: Sequence[GpuReading], statuses: ProcessStatuses) -> list[GpuReading]:
    """Return the GPUs that the rank's client reports."""
    claimed = [by_uuid(claim, gpus) for claim in process.gpus if claim.startswith(("GPU-", "MIG-"))]
    indexes = [claim for claim in process.gpus if not claim.startswith(("GPU-", "MIG-"))]
    if indexes and statuses.sees_same_gpus(process.pid):
        claimed += [by_index(claim, gpus) for claim in indexes]
    if not process.gpus and all(_is_simulated(gpu) for gpu in gpus):
        claimed = [gpu for gpu in gpus if gpu.index == process.local_rank]
    return [gpu for gpu in claimed if gpu is not None]


def _peak(gpus: Collection[GpuReading], shares: Mapping[str, int]) -> float | None:
    """Return the FLOP/s of some GPUs together, each divided by its *shares*; None when that of one is unknown."""
    peaks = [(peak_flops(gpu.info.get("name", "")), shares[gpu.uuid]) for gpu in gpus if not _mig_uuids(gpu)]
    if not peaks or len(peaks) < len(gpus) or any(peak is None for peak, _ in peaks):
        return None
    return sum(peak / ranks for peak, ranks in peaks if peak is not None)


def _is_simulated(gpu: GpuReading) -> bool:
    return gpu.info.get("source") == "simulated"
