"""What the doctor says of the NVIDIA driver and the GPUs, from a status of the daemon or one of its own making."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trackside_daemon import __version__
from trackside_daemon.cli.commands.doctor_check import Check
from trackside_daemon.cli.commands.gpu import clock
from trackside_daemon.nvml.handle.handle import NvmlLocked
from trackside_daemon.nvml.reading import NO_PERMISSION
from trackside_daemon.nvml.worker.lock import REMEDY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trackside_daemon.collectors.gpu.gpu import GpuCollector

PATIENCE = 30.0
"""Seconds for a first reading: a driver without persistence mode wakes all GPUs up."""

NAMES = 12
"""So many of what is not measured are named for each reason."""

_PART = re.compile(r"([\w-]+)(\{.*\})?( from field \d+)?")
"""A group, or a family with a label's value, or with the field that it would be read from."""

SEE = "see dmesg for NVRM and Xid, and whether nvidia-smi works"


class _Ailment(msgspec.Struct):
    """Of a GPU that answers; *grave* when it does not pass by itself."""

    what: str
    grave: bool


class _Gpu(msgspec.Struct):
    """One, as ``/api/v1/status`` tells of it."""

    index: int
    uuid: str
    name: str
    up: bool | None
    refused: dict[str, str]
    measured: tuple[str, ...] = ()
    ailments: tuple[_Ailment, ...] = ()


class _Nvml(msgspec.Struct):
    """The driver, as ``/api/v1/status`` tells of it."""

    error: str
    absent: bool
    paused_until: float | str | None
    visible: int = 0
    expected: int = 0
    pci: int | None = None
    driver_version: str = ""
    cuda_version: str = ""


class _Told(msgspec.Struct):
    """What a status has of GPUs; no driver where the collector is switched off."""

    nvml: _Nvml | None
    gpus: tuple[_Gpu, ...] = ()


def look(status: Mapping[str, Any] | None) -> Iterator[Check]:
    """The driver, how many GPUs there are, and each of them."""
    from trackside_daemon.config.loading import ConfigError

    if status is not None and status.get("version") != __version__:
        yield Check("warn", "driver", "not told: the daemon is another version of trackside; restart it")
        return
    try:
        told = msgspec.convert(_own() if status is None else status, _Told)
    except ConfigError as error:
        yield Check("FAIL", "configuration", str(error))
    except NvmlLocked as error:
        holder = str(error).removesuffix(f"; {REMEDY}")
        yield Check("warn", "driver", f"not asked: {holder}; run this as its user, beside its daemon, for more")
    except msgspec.ValidationError as error:
        yield Check("warn", "driver", f"the daemon tells of it in another way ({error}); restart it")
    else:
        yield from _all(told)


def _all(told: _Told) -> Iterator[Check]:
    if told.nvml is None:
        yield Check("ok", "driver", "not asked: the GPU collector is switched off")
        return
    yield _driver(told.nvml, told.gpus)
    if not told.nvml.error:
        yield _count(told.nvml)
        yield from _each(told.gpus)


def _own() -> dict[str, Any]:
    """What a daemon of this user would say, from one reading.

    Raises:
        ConfigError: The configuration cannot be used.
        NvmlLocked: Another process samples the GPUs.
    """
    from trackside_daemon.collectors.gpu.gpu import GpuCollector
    from trackside_daemon.collectors.gpu.nvml import NvmlCollector, sees_part
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
            nvml, gpu, on.expected, None if on.simulate else Path("/sys"), whole=not sees_part()
        ).status()
    finally:
        nvml.close()


def _read(gpu: GpuCollector) -> None:
    try:
        gpu.collect()
    except NvmlLocked:
        raise
    except Exception:  # noqa: BLE001, S110  whatever it is, the status says it
        pass


def _driver(nvml: _Nvml, gpus: Sequence[_Gpu]) -> Check:
    error, pci = nvml.error, nvml.pci
    if nvml.paused_until is not None:
        return Check("warn", "driver", f"left alone: {_paused(nvml.paused_until)}")
    if not error:
        versions = f"NVIDIA {nvml.driver_version}, CUDA {nvml.cuda_version}"
        return Check("ok", "driver", versions if nvml.driver_version else "not asked: the GPUs are simulated")
    if not nvml.absent:
        late = any(gpu.up for gpu in gpus)  # it has answered a moment ago
        return Check("warn" if late else "FAIL", "driver", error)
    if pci == 0 and not gpus and not nvml.expected:
        return Check("ok", "driver", "not needed: there is no NVIDIA GPU on the PCI bus")
    if pci is None and not gpus and not nvml.expected:
        return Check("warn", "driver", error)
    container = "; in a container, give it the GPUs, as docker run --gpus all does" if pci else ""
    return Check("FAIL", "driver", f"{error}{container}")


def _paused(until: float | str) -> str:
    end = clock(until) if isinstance(until, float) else "further notice"
    return f"paused until {end}; trackside resume-gpu goes on at once"


def _count(nvml: _Nvml) -> Check:
    visible, expected, pci = nvml.visible, nvml.expected, nvml.pci
    if visible < expected:
        return Check("FAIL", "gpus", f"{visible} of {expected} that should be there; {SEE}")
    if pci is not None and visible < pci:
        given = "a container may have been given fewer; if this is none"
        return Check("warn", "gpus", f"{visible}, but {pci} on the PCI bus: {given}, {SEE}")
    return Check("ok", "gpus", f"{visible}, all that should be there")


def _each(gpus: Sequence[_Gpu]) -> Iterator[Check]:
    """A line for all that are alike."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for gpu in gpus:
        index, name = gpu.index, gpu.name or "of unknown make"
        if gpu.up is None:  # the driver's line says why nobody knows
            continue
        if not gpu.up:
            mend = f"{SEE}; reset it with nvidia-smi --gpu-reset, or reboot"
            yield Check("FAIL", f"gpu {index}", f"{name} {gpu.uuid}: does not answer; {mend}")
            continue
        if gpu.ailments:
            what = "; ".join(one.what for one in gpu.ailments)
            grave = any(one.grave for one in gpu.ailments)
            yield Check("FAIL" if grave else "warn", f"gpu {index}", f"{name} {gpu.uuid}: {what}")
        alike.setdefault((name, *_lacks(gpu)), []).append(index)
    for (name, *refused), indexes in alike.items():
        about = f"gpu {_ranges(indexes)}"
        if not refused:
            yield Check("ok", about, f"{name}: measures all that is asked for")
            continue
        curable = any(why.startswith(NO_PERMISSION) for _, why in refused)
        yield Check("warn" if curable else "ok", about, f"{name}: does not measure {_reasons(refused)}")


def _lacks(gpu: _Gpu) -> list[tuple[str, str]]:
    """What is not measured at all, and why: a family that refuses a label, or one of two ways to read it, is no loss."""
    found: dict[str, str] = {}
    for name, why in gpu.refused.items():
        part = _PART.fullmatch(name)
        if part is not None and part[1] not in gpu.measured:
            found.setdefault(part[1], why)
    return sorted(found.items())


def _reasons(refused: Sequence[tuple[str, str]]) -> str:
    """What is not measured, by why; what can be cured first."""
    by_reason: dict[str, list[str]] = {}
    for name, why in refused:
        by_reason.setdefault(why, []).append(name)
    parts = []
    for why, names in sorted(by_reason.items(), key=lambda one: not one[0].startswith(NO_PERMISSION)):
        more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
        parts.append(f"{', '.join(names[:NAMES])}{more} ({why})")
    return "; ".join(parts)


def _ranges(indexes: Sequence[int]) -> str:
    """``0-3, 5`` of 0, 1, 2, 3 and 5."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
