"""Checks of the NVIDIA driver and the GPUs for `trackside doctor`, from the daemon's status or from a reading without it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from trackside_daemon import __version__
from trackside_daemon.cli.commands.gpu import clock
from trackside_daemon.model.text import ranges, some
from trackside_daemon.nvml.handle.handle import NvmlLocked
from trackside_daemon.nvml.reading import NO_PERMISSION
from trackside_daemon.nvml.worker.lock import REMEDY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trackside_daemon.collectors.gpu.gpu import GpuCollector

PATIENCE = 30.0  # time limit of a first reading, in seconds: a driver without persistence mode initialises all GPUs
NAMES = 12  # maximum number of missing families to list per reason

# A group; or a family, optionally with a label's value or with the NVML field of its source.
_PART = re.compile(r"([\w-]+)(\{.*\})?( from field \d+)?")

SEE = "check dmesg for NVRM and Xid, and whether nvidia-smi works"

Level = Literal["ok", "warn", "FAIL"]


class Check(NamedTuple):
    """A result, printed as one line; *text* contains the remedy unless the level is ok."""

    level: Level
    about: str
    text: str


class _Fault(msgspec.Struct):
    """A fault of a GPU that answers; *grave* if it does not recover without intervention."""

    what: str
    grave: bool


class _Gpu(msgspec.Struct):
    """A GPU in ``/api/v1/status``."""

    index: int
    uuid: str
    name: str
    up: bool | None
    refused: dict[str, str]
    measured: tuple[str, ...] = ()
    ailments: tuple[_Fault, ...] = ()


class _Nvml(msgspec.Struct):
    """The driver in ``/api/v1/status``."""

    error: str
    absent: bool
    paused_until: float | str | None
    visible: int = 0
    expected: int = 0
    pci: int | None = None
    driver_version: str = ""
    cuda_version: str = ""


class _GpuStatus(msgspec.Struct):
    """The parts of a status about GPUs; no driver if the collector is off."""

    nvml: _Nvml | None
    gpus: tuple[_Gpu, ...] = ()


def check(status: Mapping[str, Any] | None) -> Iterator[Check]:
    """Check the driver, the number of GPUs, and each of them."""
    from trackside_daemon.config.loading import ConfigError

    if status is not None and status.get("version") != __version__:
        yield Check("warn", "driver", "unknown: the daemon is another version of trackside; restart it")
        return
    try:
        gpu_status = msgspec.convert(_read_status() if status is None else status, _GpuStatus)
    except ConfigError as error:
        yield Check("FAIL", "configuration", str(error))
    except NvmlLocked as error:
        holder = str(error).removesuffix(f"; {REMEDY}")
        yield Check(
            "warn", "driver", f"not queried: {holder}; run this as that user, where its daemon runs, for details"
        )
    except msgspec.ValidationError as error:
        yield Check("warn", "driver", f"the daemon's status has another format ({error}); restart the daemon")
    else:
        yield from _all(gpu_status)


def _all(status: _GpuStatus) -> Iterator[Check]:
    if status.nvml is None:
        yield Check("ok", "driver", "not queried: the GPU collector is off")
        return
    yield _driver(status.nvml, status.gpus)
    if not status.nvml.error:
        yield _count(status.nvml)
        yield from _each(status.gpus)


def _read_status() -> dict[str, Any]:
    """Return the status that a daemon of this user would have, from one reading.

    Raises:
        ConfigError: The configuration is invalid.
        NvmlLocked: Another process samples the GPUs.
    """
    from trackside_daemon.collectors.gpu.gpu import GpuCollector
    from trackside_daemon.collectors.gpu.nvml_worker import NvmlCollector, sees_part
    from trackside_daemon.config.loading import load
    from trackside_daemon.nvml.handle.handle import Nvml, worker_settings
    from trackside_daemon.service.config import Config

    config = load(Config)
    on = config.collector.gpu
    if not on.enabled:
        return {"nvml": None}
    nvml = Nvml(worker_settings(on))
    gpu = GpuCollector(nvml, PATIENCE)
    try:
        _read(gpu)
        return NvmlCollector(
            nvml, gpu, on.expected, None if on.simulate else Path("/sys"), whole=on.whole or not sees_part()
        ).status()
    finally:
        nvml.close()


def _read(gpu: GpuCollector) -> None:
    try:
        gpu.collect()
    except NvmlLocked:
        raise
    except Exception:  # noqa: BLE001, S110  the status contains the error
        pass


def _driver(nvml: _Nvml, gpus: Sequence[_Gpu]) -> Check:
    error, pci = nvml.error, nvml.pci
    if nvml.paused_until is not None:
        return Check("warn", "driver", f"not read: {_paused(nvml.paused_until)}")
    if not error:
        versions = f"NVIDIA {nvml.driver_version}, CUDA {nvml.cuda_version}"
        return Check("ok", "driver", versions if nvml.driver_version else "not queried: the GPUs are simulated")
    if not nvml.absent:
        late = any(gpu.up for gpu in gpus)  # the driver answered a moment ago
        return Check("warn" if late else "FAIL", "driver", error)
    if pci == 0 and not gpus and not nvml.expected:
        return Check("ok", "driver", "not needed: there is no NVIDIA GPU on the PCI bus")
    if pci is None and not gpus and not nvml.expected:
        return Check("warn", "driver", error)
    container = "; give a container access to the GPUs, for example with docker run --gpus all" if pci else ""
    return Check("FAIL", "driver", f"{error}{container}")


def _paused(until: float | str) -> str:
    end = clock(until) if isinstance(until, float) else "further notice"
    return f"paused until {end}; trackside resume-gpu ends the pause"


def _count(nvml: _Nvml) -> Check:
    visible, expected, pci = nvml.visible, nvml.expected, nvml.pci
    if visible < expected:
        return Check("FAIL", "gpus", f"{visible} of the {expected} expected; {SEE}")
    if pci is not None and visible < pci:
        hint = "a container may have access to fewer; else"
        return Check("warn", "gpus", f"{visible}, but {pci} on the PCI bus: {hint} {SEE}")
    return Check("ok", "gpus", f"{visible}, as expected")


def _each(gpus: Sequence[_Gpu]) -> Iterator[Check]:
    """Yield a check per faulty GPU, and one for all GPUs that lack the same measurements."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for gpu in gpus:
        index = gpu.index
        name = gpu.name or "of unknown model"
        if gpu.up is None:  # the driver's check gives the reason
            continue
        if not gpu.up:
            remedy = f"{SEE}; reset it with nvidia-smi --gpu-reset, or reboot"
            yield Check("FAIL", f"gpu {index}", f"{name} {gpu.uuid}: does not answer; {remedy}")
            continue
        if gpu.ailments:
            faults = "; ".join(fault.what for fault in gpu.ailments)
            grave = any(fault.grave for fault in gpu.ailments)
            yield Check("FAIL" if grave else "warn", f"gpu {index}", f"{name} {gpu.uuid}: {faults}")
        alike.setdefault((name, *_missing(gpu)), []).append(index)
    for (name, *refused), indexes in alike.items():
        about = f"gpu {ranges(indexes)}"
        if not refused:
            yield Check("ok", about, f"{name}: all requested families are measured")
            continue
        curable = any(why.startswith(NO_PERMISSION) for _, why in refused)
        yield Check("warn" if curable else "ok", about, f"{name}: not measured: {_reasons(refused)}")


def _missing(gpu: _Gpu) -> list[tuple[str, str]]:
    """Return the families that are not measured in any way, and the reason of each."""
    missing: dict[str, str] = {}
    for name, why in gpu.refused.items():
        part = _PART.fullmatch(name)
        if part is not None and part[1] not in gpu.measured:
            missing.setdefault(part[1], why)
    return sorted(missing.items())


def _reasons(refused: Sequence[tuple[str, str]]) -> str:
    """Return the missing families by reason; those that a permission would fix come first."""
    by_reason: dict[str, list[str]] = {}
    for name, why in refused:
        by_reason.setdefault(why, []).append(name)
    parts = []
    for why, names in sorted(by_reason.items(), key=lambda item: not item[0].startswith(NO_PERMISSION)):
        parts.append(f"{some(names, NAMES)} ({why})")
    return "; ".join(parts)
