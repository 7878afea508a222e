"""MIG devices of a GPU, listed anew in each cycle, since they can be made and destroyed at any time."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from trackside_daemon.nvml.readers.basic import memory_info
from trackside_daemon.nvml.readers.gpm import GpmMetric, SamplePair
from trackside_daemon.nvml.readers.identity import text_or_empty
from trackside_daemon.nvml.readers.unsupported import MAX_COUNT, Unsupported, call_if_supported
from trackside_daemon.nvml.reading import Value

Result = TypeVar("Result")

RATIOS = (
    GpmMetric(1, "mig_graphics_engine_active_ratio"),
    GpmMetric(2, "mig_sm_active_ratio"),
    GpmMetric(3, "mig_sm_occupancy_ratio"),
    GpmMetric(5, "mig_tensor_active_ratio"),
)
GPM_NAME = "mig_gpm"  # name of `nvmlGpmMigSampleGet` among the unsupported calls


class MigDevice(NamedTuple):
    """A MIG device: a compute instance of a GPU instance; the *handle* is valid in this cycle."""

    handle: Any
    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: str


class MigReader:
    """Reader of one GPU's MIG devices.

    Args:
        clock: Monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._layout: tuple[object, ...] | None = None
        self._samples: dict[int, SamplePair] = {}

    def __call__(self, nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
        """Read ``nvmlDeviceGetMigMode``; while it is on, each device, its memory and its GPU instance's activity.

        If the devices have changed since the last cycle, the GPU's list of unsupported calls is cleared.
        """
        on = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
        devices = _read_devices(nvml, handle, unsupported) if on else []
        layout = (on, *(device[1:] for device in devices))
        if self._layout not in (None, layout):
            unsupported.clear()
        self._layout = layout
        values: list[Value] = [("mig_mode", (), float(on))]
        for device in devices:
            labels = (device.uuid, str(device.gpu_instance), str(device.compute_instance), device.profile)
            values += [("mig_info", labels, 1.0), *_memory(nvml, device, unsupported)]
        return values + self._activity(nvml, handle, devices, unsupported)

    def _activity(self, nvml: Any, handle: Any, devices: list[MigDevice], unsupported: Unsupported) -> list[Value]:
        """Read ``nvmlGpmMigSampleGet`` of each GPU instance, and give it to each of the instance's devices."""
        instances = {device.gpu_instance for device in devices}
        self._samples = {instance: self._samples.get(instance) or SamplePair(self._clock) for instance in instances}
        values: list[Value] = []
        for instance, samples in self._samples.items():
            sample = partial(nvml.nvmlGpmMigSampleGet, handle, instance)
            read = partial(samples.read, nvml, sample, RATIOS, unsupported)
            activity = _call_if_possible(nvml, unsupported, GPM_NAME, read) or []
            uuids = [device.uuid for device in devices if device.gpu_instance == instance]
            values += [(family, (uuid,), value) for uuid in uuids for family, _, value in activity]
        return values


def device_handles(nvml: Any, handle: Any) -> list[Any]:
    """Return the handles of a GPU's MIG devices, from ``nvmlDeviceGetMigDeviceHandleByIndex``; none without MIG."""
    handles = []
    for index in range(min(nvml.nvmlDeviceGetMaxMigDeviceCount(handle), MAX_COUNT)):
        device = call_if_present(nvml, partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index))
        if device is not None:
            handles.append(device)
    return handles


def call_if_present(nvml: Any, call: Callable[[], Result]) -> Result | None:
    """Return the result of the call; None if the MIG device or its instance is absent, or being made or destroyed.

    Raises:
        NVMLError: The call failed for another reason.
    """
    try:
        return call()
    except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
        return None


def _call_if_possible(nvml: Any, unsupported: Unsupported, name: str, call: Callable[[], Result]) -> Result | None:
    """Return the result of the call; None if it is not supported, or the device or instance is absent."""
    return call_if_supported(nvml, unsupported, name, lambda: call_if_present(nvml, call))


def _read_devices(nvml: Any, handle: Any, unsupported: Unsupported) -> list[MigDevice]:
    """Return the devices, without those that are destroyed meanwhile or have no UUID."""
    devices = (
        _call_if_possible(nvml, unsupported, "mig_info", partial(_read_device, nvml, mig))
        for mig in device_handles(nvml, handle)
    )
    return [device for device in devices if device and device.uuid]


def _read_device(nvml: Any, mig: Any) -> MigDevice:
    # A name is, for example, NVIDIA A100-SXM4-40GB MIG 1g.5gb.
    _, _, profile = text_or_empty(nvml, lambda: nvml.nvmlDeviceGetName(mig)).partition(" MIG ")
    if not profile:
        attributes = nvml.nvmlDeviceGetAttributes_v2(mig)
        profile = f"{attributes.gpuInstanceSliceCount}g.{round(attributes.memorySizeMB / 1024)}gb"
    gpu_instance = nvml.nvmlDeviceGetGpuInstanceId(mig)
    compute_instance = nvml.nvmlDeviceGetComputeInstanceId(mig)
    uuid = text_or_empty(nvml, lambda: nvml.nvmlDeviceGetUUID(mig))
    return MigDevice(mig, uuid, gpu_instance, compute_instance, profile)


def _memory(nvml: Any, device: MigDevice, unsupported: Unsupported) -> list[Value]:
    """Read the `memory_info` of a device, in bytes."""
    info = _call_if_possible(
        nvml, unsupported, "mig_memory_bytes", lambda: memory_info(nvml, device.handle, unsupported)
    )
    if info is None:
        return []
    return [
        ("mig_memory_bytes", (device.uuid,), info.total),
        ("mig_memory_used_bytes", (device.uuid,), info.used),
    ]
