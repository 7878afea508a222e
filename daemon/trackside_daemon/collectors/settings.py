"""The settings of all collectors: add a line here for a new one that can be switched off."""

from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import AbsolutePath, AbsolutePaths, Pattern, setting
from trackside_daemon.nvml.settings import NvmlSection

DASHBOARD = "http://127.0.0.1:8265"  # on the head node, by Ray's default

ENABLED = "Turn the collector on or off: --[no-]collector.NAME."


class CollectorSection(Section):
    """One collector."""

    enabled: bool = setting(ENABLED, True)


class GpuSection(NvmlSection, CollectorSection):
    """The GPU collector."""


class CpuSection(CollectorSection):
    """The CPU collector."""

    per_cpu: bool = setting("Show the time of each CPU too, eight series each.", False)


class DiskSection(CollectorSection):
    """The collector of block devices."""

    exclude: Pattern = setting(
        "Devices to leave out, as a regular expression.",
        r"(z?ram|loop|fd|(h|s|v|xv)d[a-z]+|nvme\d+n\d+p|mmcblk\d+p)\d+",
    )


class FilesystemSection(CollectorSection):
    """The collector of file systems."""

    paths: AbsolutePaths = setting(
        "Paths whose file systems are shown, besides the history's.",
        ("/", "/tmp", "/dev/shm"),  # noqa: S108  nothing is created there
        examples=["/,/data,/checkpoints"],
    )


class NetworkSection(CollectorSection):
    """The collector of network devices."""

    exclude: Pattern = setting(
        "Devices to leave out, as a regular expression.",
        r"(veth|cali|cilium|lxc|azv|cni|flannel|kube-|nodelocaldns|vxlan\.calico|(genev|vxlan)_sys_).*"  # pods, clusters
        r"|(eni|gke)[0-9a-f]{11}|(cbr|tunl)\d+"
        r"|(docker|podman|nerdctl|br-|virbr|lxdbr|incusbr|ovs-|vnet|tap|ifb|dummy).*",  # containers, virtual machines
    )


class ThermalSection(CollectorSection):
    """The collector of temperatures and energy, which is off by default."""

    enabled: bool = setting(ENABLED, False)


class ProcessSection(CollectorSection):
    """The collector of the training's processes."""

    smaps: bool = setting(
        "Read the ranks' smaps_rollup each minute, for unique and proportional memory; this can halt a large training "
        "for seconds.",
        False,
    )


class RanksSection(CollectorSection):
    """The collector of ranks and of the processes on GPUs."""

    others: bool = setting("Show others' processes on the GPUs, by name and user.", True)


class RaySection(CollectorSection):
    """The Ray collector."""

    enabled: bool = setting(ENABLED, False)
    dashboard: str = setting("URL of Ray's dashboard, on the head node; empty to read local nodes alone.", DASHBOARD)
    token_file: str = setting("File with the token of Ray's dashboard; by default the one that Ray would find.", "")


class KubeletSection(CollectorSection):
    """The collector of the Pods that have GPUs, which needs root."""

    enabled: bool = setting(ENABLED, False)
    socket: AbsolutePath = setting(
        "The socket at which the kubelet lists the devices of Pods.", "/var/lib/kubelet/pod-resources/kubelet.sock"
    )


class TextfileSection(CollectorSection):
    """The collector of other programs' text files."""

    directory: str = setting(
        "Directory, or pattern of several, whose *.prom files are served.",
        "",
        examples=["/var/lib/trackside/textfiles"],
    )


class PathSection(Section):
    """Directories of the host's files; in a container they may be mounted elsewhere."""

    procfs: AbsolutePath = setting("Where the host's /proc is.", "/proc")
    sysfs: AbsolutePath = setting("Where the host's /sys is.", "/sys")
    rootfs: AbsolutePath = setting("Where the host's / is.", "/")


class CollectorsSection(Section):
    """The collectors, by name."""

    cpu: CpuSection = CpuSection.model_construct()
    load: CollectorSection = CollectorSection.model_construct()
    memory: CollectorSection = CollectorSection.model_construct()
    vmstat: CollectorSection = CollectorSection.model_construct()
    pressure: CollectorSection = CollectorSection.model_construct()
    disk: DiskSection = DiskSection.model_construct()
    filesystem: FilesystemSection = FilesystemSection.model_construct()
    network: NetworkSection = NetworkSection.model_construct()
    infiniband: CollectorSection = CollectorSection.model_construct()
    cgroup: CollectorSection = CollectorSection.model_construct()
    process: ProcessSection = ProcessSection.model_construct()
    time: CollectorSection = CollectorSection.model_construct()
    thermal: ThermalSection = ThermalSection.model_construct()
    gpu: GpuSection = GpuSection.model_construct()
    ranks: RanksSection = RanksSection.model_construct()
    ray: RaySection = RaySection.model_construct()
    kubelet: KubeletSection = KubeletSection.model_construct()
    textfile: TextfileSection = TextfileSection.model_construct()
