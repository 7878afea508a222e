"""The settings of the host's collectors."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trackside_daemon.collectors.collector_settings import CollectorSection
from trackside_daemon.model.setting_types import AbsolutePaths, Pattern  # noqa: TC001  pydantic reads them


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
            description="Paths whose file systems are shown, such as those of data and checkpoints; the history's is shown too.",
            examples=["/,/data,/checkpoints"],
        ),
    ] = ("/", "/tmp", "/dev/shm")  # noqa: S108  nothing is created there


class NetworkSection(CollectorSection):
    """The collector of network devices."""

    exclude: Annotated[Pattern, Field(description="Devices to leave out, as a regular expression.")] = (
        r"(veth|cali|cilium|lxc|azv|cni|flannel|kube-|nodelocaldns|vxlan\.calico|(genev|vxlan)_sys_).*"  # pods, clusters
        r"|(eni|gke)[0-9a-f]{11}|(cbr|tunl)\d+"
        r"|(docker|podman|nerdctl|br-|virbr|lxdbr|incusbr|ovs-|vnet|tap|ifb|dummy).*"  # containers, virtual machines
    )


class ThermalSection(CollectorSection):
    """The collector of temperatures and energy, which is off by default."""

    enabled: Annotated[
        bool, Field(description="Turn the collector on or off; on the command line, --[no-]collector.NAME.")
    ] = False
