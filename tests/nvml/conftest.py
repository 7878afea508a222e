"""Fake driver of Python functions under the real pynvml."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any

import pynvml
import pytest
from nvml.answers import MEMBERS, Refused, target
from processes import DEADLINE
from scripted_workers import Clock, Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SUCCESS = 0
NOT_SUPPORTED = 3


def _index(handle: Any) -> int:
    """Return the index of a handle's GPU: the fake's handles are addresses that count from 1."""
    return (ctypes.cast(handle, ctypes.c_void_p).value or 0) - 1


class FakeLibrary:
    """Answers like libnvidia-ml.so.1, with a status and values written through pointers; missing names are no attributes.

    Attributes:
        count: Number of GPUs.
        status: Status of a function by its name, or by its name and the GPU's index; success if absent.
        values: Value that a function writes, by its name, or by its name and arguments such as a clock's domain: a number,
            several as a tuple, bytes, the members of a structure by their names, or a `Refused`.
        fields: Type and value of a field, or a `Refused`, by number and scope; all other fields are not supported.
        asked: Numbers and scopes of each call for fields.
        functions: Functions by name, in addition to `FUNCTIONS` and called like them; they may return a status.
        names: Product name of all GPUs, as bytes.
    """

    def __init__(self) -> None:
        self.count = 2
        self.status: dict[str | tuple[str, int | None], int] = {}
        self.missing: set[str] = set()
        self.functions: dict[str, Callable[..., int | None]] = {}
        self.inits = 0
        self.names = b"NVIDIA H100 80GB HBM3"
        self.utilization = (97, 41)
        self.fields: dict[tuple[int, int], tuple[int, float] | Refused] = {}
        self.asked: list[list[tuple[int, int]]] = []
        self.values: dict[str | tuple[Any, ...], Any] = {
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetPowerUsage": 412_500,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetTotalEnergyConsumption": 1_234_567,
        }

    def __getattr__(self, name: str) -> Callable[..., int]:
        known = any(name in (key, key[0]) for key in self.values)
        write = self.functions.get(name) or FUNCTIONS.get(name) or (_write if known else None)
        if name in self.missing or write is None:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            index = _index(arguments[0]) if isinstance(arguments[0], pynvml.c_nvmlDevice_t) else None
            status = self.status.get(name, self.status.get((name, index), SUCCESS))
            if status == SUCCESS:
                status = write(self, name, *arguments) or SUCCESS
            return status

        return call


def _init(fake: FakeLibrary, name: str, flags: int) -> None:
    fake.inits += 1


def _count(fake: FakeLibrary, name: str, out: Any) -> None:
    target(out).value = fake.count


def _handle(fake: FakeLibrary, name: str, index: Any, out: Any) -> None:
    ctypes.cast(out, ctypes.POINTER(ctypes.c_void_p))[0] = index.value + 1


def _uuid(fake: FakeLibrary, name: str, handle: Any, out: Any, size: Any) -> None:
    out.value = b"GPU-%d" % _index(handle)


def _name(fake: FakeLibrary, name: str, handle: Any, out: Any, size: Any) -> None:
    out.value = fake.names


def _pci(fake: FakeLibrary, name: str, handle: Any, out: Any) -> None:
    target(out).busId = b"00000000:%02X:00.0" % (_index(handle) + 1)


def _utilization(fake: FakeLibrary, name: str, handle: Any, out: Any) -> None:
    target(out).gpu, target(out).memory = fake.utilization


def _memory(fake: FakeLibrary, name: str, handle: Any, out: Any) -> None:
    assert target(out).version == pynvml.nvmlMemory_v2
    target(out).total, target(out).used, target(out).free, target(out).reserved = 80_000, 60_000, 19_000, 1_000


def _version(fake: FakeLibrary, name: str, out: Any, size: Any) -> None:
    out.value = b"580.95.05"


def _cuda(fake: FakeLibrary, name: str, out: Any) -> None:
    target(out).value = 13010


def _write(fake: FakeLibrary, name: str, handle: Any, *rest: Any) -> int:
    given = tuple(getattr(one, "value", one) for one in rest if not hasattr(one, "_obj"))
    value = fake.values.get((name, *given), fake.values.get(name, Refused(NOT_SUPPORTED)))
    if isinstance(value, Refused):
        return value
    if isinstance(value, bytes):
        rest[0].value = value
    elif isinstance(value, dict):
        for member, content in value.items():
            setattr(target(rest[-1]), member, content)
    else:
        numbers = value if isinstance(value, tuple) else (value,)
        for out, number in zip(rest[-len(numbers) :], numbers, strict=True):
            target(out).value = number
    return SUCCESS


def _fields(fake: FakeLibrary, name: str, handle: Any, count: Any, out: Any) -> None:
    fake.asked.append([(one.fieldId, one.scopeId) for one in target(out)])
    for one in target(out):
        answer = fake.fields.get((one.fieldId, one.scopeId), Refused(NOT_SUPPORTED))
        if isinstance(answer, Refused):
            one.nvmlReturn = answer
        else:
            one.valueType, value = answer
            setattr(one.value, MEMBERS.get(one.valueType, "ullVal"), value)


FUNCTIONS: dict[str, Callable[..., int | None]] = {
    "nvmlInitWithFlags": _init,
    "nvmlDeviceGetCount_v2": _count,
    "nvmlDeviceGetHandleByIndex_v2": _handle,
    "nvmlDeviceGetUUID": _uuid,
    "nvmlDeviceGetName": _name,
    "nvmlDeviceGetPciInfo_v3": _pci,
    "nvmlDeviceGetUtilizationRates": _utilization,
    "nvmlDeviceGetMemoryInfo_v2": _memory,
    "nvmlDeviceGetFieldValues": _fields,
    "nvmlSystemGetDriverVersion": _version,
    "nvmlSystemGetNVMLVersion": _version,
    "nvmlSystemGetCudaDriverVersion": _cuda,
}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLibrary]:
    """Yield a machine with two GPUs that answer everything; afterwards, check that no event thread is left."""
    fake = FakeLibrary()
    monkeypatch.setattr(pynvml, "nvmlLib", fake)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    yield fake
    for thread in threading.enumerate():
        if thread.name in {"gpu events", "driver unbind"}:
            thread.join(DEADLINE)
            assert not thread.is_alive(), thread.name


@pytest.fixture
def worker() -> Iterator[Workers]:
    """Yield a factory of handles whose worker runs a script; close them after the test."""
    workers = Workers(Clock())
    yield workers
    workers.close()


@pytest.fixture
def clock(worker: Workers) -> Clock:
    """Return the clock of these handles."""
    return worker.clock
