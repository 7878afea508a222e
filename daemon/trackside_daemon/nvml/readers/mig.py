"""A GPU that is divided by MIG: its devices, found anew in each cycle, since they are made and destroyed at any time."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from trackside_daemon.nvml.readers.basic import memory_info
from trackside_daemon.nvml.readers.calls import MOST, ask
from trackside_daemon.nvml.readers.gpm import Quantity, Window
from trackside_daemon.nvml.readers.identity import text

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.nvml.readers.unsupported import Refusals
    from trackside_daemon.nvml.reading import Value

Answer = TypeVar("Answer")

RATIOS = (
    Quantity(1, "mig_graphics_engine_active_ratio"),
    Quantity(2, "mig_sm_active_ratio"),
    Quantity(3, "mig_sm_occupancy_ratio"),
    Quantity(5, "mig_tensor_active_ratio"),
)
SAMPLE = "mig_gpm"
"""What a refusal of ``nvmlGpmMigSampleGet`` is called."""


class Device(NamedTuple):
    """A MIG device: a compute instance of a GPU instance; its *handle* is good for this cycle."""

    handle: Any
    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: str


class Mig:
    """Of one GPU.

    Args:
        clock: Seconds of a clock that only goes forward.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._layout: tuple[object, ...] | None = None
        self._windows: dict[int, Window] = {}

    def __call__(self, nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
        """``nvmlDeviceGetMigMode``; while it is on, each device, its memory, and what its GPU instance does.

        Where the devices are others than a cycle ago, the GPU is asked for everything again.
        """
        on = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
        devices = _described(nvml, handle, refusals) if on else []
        layout = (on, *(device[1:] for device in devices))
        if self._layout not in (None, layout):
            refusals.clear()
        self._layout = layout
        values: list[Value] = [("mig_mode", (), float(on))]
        for device in devices:
            labels = (device.uuid, str(device.gpu_instance), str(device.compute_instance), device.profile)
            values += [("mig_info", labels, 1.0), *_memory(nvml, device, refusals)]
        return values + self._activity(nvml, handle, devices, refusals)

    def _activity(self, nvml: Any, handle: Any, devices: list[Device], refusals: Refusals) -> list[Value]:
        """``nvmlGpmMigSampleGet`` of each GPU instance, told of each of its devices."""
        instances = {device.gpu_instance for device in devices}
        self._windows = {instance: self._windows.get(instance) or Window(self._clock) for instance in instances}
        values: list[Value] = []
        for instance, window in self._windows.items():
            take = partial(nvml.nvmlGpmMigSampleGet, handle, instance)
            activity = _asked(nvml, refusals, SAMPLE, partial(window.read, nvml, take, RATIOS, refusals)) or []
            uuids = [device.uuid for device in devices if device.gpu_instance == instance]
            values += [(family, (uuid,), value) for uuid in uuids for family, _, value in activity]
        return values


def handles(nvml: Any, handle: Any) -> list[Any]:
    """``nvmlDeviceGetMigDeviceHandleByIndex``: the MIG devices of a GPU; places may be empty, without MIG all are."""
    found = []
    for index in range(min(nvml.nvmlDeviceGetMaxMigDeviceCount(handle), MOST)):
        device = present(nvml, partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index))
        if device is not None:
            found.append(device)
    return found


def present(nvml: Any, question: Callable[[], Answer]) -> Answer | None:
    """The answer; None where the MIG device or its instance is not there, or is just being made or destroyed.

    Raises:
        NVMLError: The driver refuses for another reason.
    """
    try:
        return question()
    except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
        return None


def _asked(nvml: Any, refusals: Refusals, name: str, question: Callable[[], Answer]) -> Answer | None:
    """The same, of a question that may be refused for good."""
    return ask(nvml, refusals, name, lambda: present(nvml, question))


def _described(nvml: Any, handle: Any, refusals: Refusals) -> list[Device]:
    """The devices, without those that are destroyed while they are asked, and those that do not say which they are."""
    described = (_asked(nvml, refusals, "mig_info", partial(_device, nvml, mig)) for mig in handles(nvml, handle))
    return [device for device in described if device and device.uuid]


def _device(nvml: Any, mig: Any) -> Device:
    _, _, profile = text(nvml, lambda: nvml.nvmlDeviceGetName(mig)).partition(" MIG ")
    if not profile:
        attributes = nvml.nvmlDeviceGetAttributes_v2(mig)
        profile = f"{attributes.gpuInstanceSliceCount}g.{round(attributes.memorySizeMB / 1024)}gb"
    instances = nvml.nvmlDeviceGetGpuInstanceId(mig), nvml.nvmlDeviceGetComputeInstanceId(mig)
    return Device(mig, text(nvml, lambda: nvml.nvmlDeviceGetUUID(mig)), *instances, profile)


def _memory(nvml: Any, device: Device, refusals: Refusals) -> list[Value]:
    """What `memory_info` says of a device, in bytes."""
    info = _asked(nvml, refusals, "mig_memory_bytes", lambda: memory_info(nvml, device.handle, refusals))
    if info is None:
        return []
    return [
        ("mig_memory_bytes", (device.uuid,), info.total),
        ("mig_memory_used_bytes", (device.uuid,), info.used),
    ]
