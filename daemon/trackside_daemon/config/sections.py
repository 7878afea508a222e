"""The settings by section, with their defaults, bounds and help."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from trackside_daemon.model.setting_types import AbsolutePath, AbsolutePaths, Bytes, Pattern, Seconds, Texts, text


class Section(BaseModel):
    """A group of settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SampleSection(Section):
    """How GPUs and host are sampled."""

    interval: Annotated[Seconds, Field(ge=0.1, le=300, description="Time between two samples of GPUs and host.")] = 1.0


class PathSection(Section):
    """Where the host's files are; in a container they may be mounted elsewhere."""

    procfs: Annotated[AbsolutePath, Field(description="Where the host's /proc is.")] = "/proc"
    sysfs: Annotated[AbsolutePath, Field(description="Where the host's /sys is.")] = "/sys"
    rootfs: Annotated[AbsolutePath, Field(description="Where the host's / is.")] = "/"


class RunSection(Section):
    """What becomes of runs."""

    linger: Annotated[Seconds, Field(ge=0, description="How long an ended run's series stay on /metrics.")] = 60.0


class WebConfigSection(Section):
    """Who may ask, and how."""

    file: Annotated[
        str, Field(description="TLS, client certificates and users, in the format of Prometheus' exporter-toolkit.")
    ] = ""


class WebSection(Section):
    """The HTTP server."""

    listen_address: Annotated[str, Field(description="HOST:PORT to serve HTTP on.")] = "127.0.0.1:21790"
    allowed_hosts: Annotated[Texts, Field(description="Further names that the Host header of the API may have.")] = ()
    public_read: Annotated[bool, Field(description="Open the API for reading without the token.")] = False
    enable_lifecycle: Annotated[bool, Field(description="Allow a reload by POST /-/reload.")] = False
    config: WebConfigSection = WebConfigSection()


class PushSection(Section):
    """Where pushes are taken."""

    endpoint: Annotated[
        Texts,
        Field(
            description="Where to take pushes, ipc://PATH or tcp://HOST:PORT; may be repeated. Beyond this machine with push.keys only.",
        ),
    ] = ()
    keys: Annotated[
        str,
        Field(
            description="Directory that `trackside keys` made; tcp endpoints then take clients that have a key, and no others."
        ),
    ] = ""
    group: Annotated[
        str,
        BeforeValidator(text),
        Field(
            description="Group, by name or number, whose members may push too; for a socket in /run/trackside, it is trackside."
        ),
    ] = ""


class RetentionSection(Section):
    """How much of the history is kept; pinned runs are kept in any case."""

    size: Annotated[
        Bytes,
        Field(
            ge=0,
            description="Size of the history's file, such as 10GiB, that the oldest samples and runs make room for; 0 for no bound.",
        ),
    ] = 10 * 1024**3
    age: Annotated[
        Seconds, Field(ge=0, description="How long after its end a run is kept, such as 90d; 0 for ever.")
    ] = 0.0


class StorageSection(Section):
    """The history of runs, on disk."""

    path: Annotated[
        str,
        Field(
            description="Directory of the history; by default /var/lib/trackside for a system daemon, else $XDG_STATE_HOME/trackside/MACHINE-ID."
        ),
    ] = ""
    synchronous: Annotated[
        Literal["normal", "full"],
        Field(description="normal, or full: each commit waits for the disk, and a power cut loses nothing."),
    ] = "normal"
    interval: Annotated[
        Seconds, Field(ge=0.1, description="Time between two samples of GPUs and host that the history keeps.")
    ] = 10.0
    jsonl: Annotated[str, Field(description="Directory in which everything is appended as JSON lines too.")] = ""
    retention: RetentionSection = RetentionSection()


class LogSection(Section):
    """What is logged, on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Field(description="debug, info, warning or error.")
    ] = "info"
    format: Annotated[Literal["logfmt", "json"], Field(description="logfmt or json.")] = "logfmt"


class CollectorSection(Section):
    """One collector."""

    enabled: Annotated[bool, Field(description="Whether it collects; on the command line, --[no-]collector.NAME.")] = (
        True
    )


class CpuSection(CollectorSection):
    """The CPU collector."""

    per_cpu: Annotated[bool, Field(description="Show the time of each CPU too, eight series each.")] = False


class DiskSection(CollectorSection):
    """The collector of block devices."""

    exclude: Annotated[Pattern, Field(description="Devices to leave out, as a regular expression.")] = (
        r"(z?ram|loop|fd|(h|s|v|xv)d[a-z]+|nvme\d+n\d+p|mmcblk\d+p)\d+"
    )


class FilesystemSection(CollectorSection):
    """The collector of file systems."""

    paths: Annotated[
        AbsolutePaths,
        Field(
            description="Paths whose file systems are shown, such as those of data and checkpoints; the history's is shown too."
        ),
    ] = ("/", "/tmp", "/dev/shm")  # noqa: S108  only looked at


class NetworkSection(CollectorSection):
    """The collector of network devices."""

    exclude: Annotated[Pattern, Field(description="Devices to leave out, as a regular expression.")] = (
        r"(veth|cali|cilium|lxc|azv|cni|flannel|kube-|nodelocaldns|vxlan\.calico|(genev|vxlan)_sys_).*"  # pods, clusters
        r"|(eni|gke)[0-9a-f]{11}|(cbr|tunl)\d+"
        r"|(docker|podman|nerdctl|br-|virbr|lxdbr|incusbr|ovs-|vnet|tap|ifb|dummy).*"  # containers, virtual machines
    )


class ProcessSection(CollectorSection):
    """The collector of the training's processes."""

    smaps: Annotated[
        bool,
        Field(
            description="Read the ranks' smaps_rollup each minute, for unique and proportional memory; it can halt a large training for seconds."
        ),
    ] = False


class ThermalSection(CollectorSection):
    """The collector of temperatures and energy."""

    enabled: Annotated[bool, Field(description="Whether it collects; on the command line, --[no-]collector.NAME.")] = (
        False
    )


class GpuSection(CollectorSection):
    """The GPU collector."""

    extra: Annotated[
        Texts, Field(description="Groups of readings beyond the default ones, such as links,engines; or all.")
    ] = ()
    skip: Annotated[Texts, Field(description="Groups of readings to leave out, such as processes.")] = ()
    expected: Annotated[
        int, Field(ge=0, description="GPUs that should be there; 0 for the most that were seen since the start.")
    ] = 0
    simulate: Annotated[int, Field(ge=0, le=64, description="Show that many simulated GPUs instead of real ones.")] = 0
    profile: Annotated[
        Literal["h100", "a100", "l40s"], Field(description="What the simulated GPUs are: h100, a100 or l40s.")
    ] = "h100"
    trouble: Annotated[
        Texts,
        Field(
            description="What ails the simulated GPUs: hot, throttled, xid or lost, with :INDEX for another than the last.",
        ),
    ] = ()


class RanksSection(CollectorSection):
    """The collector of ranks and processes."""

    others: Annotated[bool, Field(description="Show others' processes on the GPUs, by name and user.")] = True


class CollectorsSection(Section):
    """The collectors, by name."""

    cpu: CpuSection = CpuSection()
    load: CollectorSection = CollectorSection()
    memory: CollectorSection = CollectorSection()
    vmstat: CollectorSection = CollectorSection()
    pressure: CollectorSection = CollectorSection()
    disk: DiskSection = DiskSection()
    filesystem: FilesystemSection = FilesystemSection()
    network: NetworkSection = NetworkSection()
    infiniband: CollectorSection = CollectorSection()
    cgroup: CollectorSection = CollectorSection()
    process: ProcessSection = ProcessSection()
    time: CollectorSection = CollectorSection()
    thermal: ThermalSection = ThermalSection()
    gpu: GpuSection = GpuSection()
    ranks: RanksSection = RanksSection()


class LimitsSection(Section):
    """What may be on /metrics at once; what is over it is counted, and kept off the page."""

    runs: Annotated[int, Field(ge=1, description="Live runs on /metrics at once.")] = 64
    keys: Annotated[int, Field(ge=1, description="Keys without a family of their own, for each rank of a run.")] = 1000
    series: Annotated[int, Field(ge=1, description="Series of such keys in all.")] = 10_000
    label_bytes: Annotated[int, Field(ge=16, description="Length of a label's value in bytes of UTF-8.")] = 256
