"""One GPU as the worker knows it, for as long as it has the same UUID."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trackside_daemon.nvml.families import FAMILIES
from trackside_daemon.nvml.readers.unsupported import Refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trackside_daemon.nvml.groups import Group
    from trackside_daemon.nvml.reading import Value
    from trackside_daemon.nvml.worker.library import Library


class Gpu:
    """Its readers, and what it refuses.

    Args:
        uuid: As NVML says it.
        info: By the labels of ``trackside_gpu_info``.
        groups: What is to be read.
        clock: Seconds of a clock that only goes forward.

    Attributes:
        rejected: Values beyond their bounds, by family.
        seconds: What each reader took in the last cycle.
    """

    def __init__(
        self,
        uuid: str,
        info: dict[str, str],
        groups: Mapping[str, Group],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.uuid = uuid
        self.info = info
        self.refusals = Refusals()
        self.rejected: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._readers = {name: (group.make(), group.every) for name, group in groups.items()}
        self._kept: dict[str, tuple[float, list[Value]]] = {}
        self._cleared = 0
        self._answered, self._unknown = False, None

    def read(self, nvml: Library, handle: Any) -> list[Value]:
        """Every value that it measures; one call's refusal costs only that call's families.

        Where two readers give the same series, the first is taken.

        Raises:
            NVMLError_GpuIsLost: It fell off the bus.
            NVMLError_Unknown: Nothing that it was asked was answered, and that was the reason.
        """
        if self._cleared != self.refusals.cleared:
            self._cleared = self.refusals.cleared
            self._kept.clear()
        self.seconds = {}
        self._answered, self._unknown = False, None
        values: dict[tuple[str, tuple[str, ...]], Value] = {}
        try:
            for name in self._readers:
                for value in self._values(name, nvml, handle):
                    values.setdefault(value[:2], value)
            if self._unknown and not self._answered:
                raise self._unknown
        except nvml.NVMLError:
            self._kept.clear()
            raise
        return list(values.values())

    def _values(self, name: str, nvml: Library, handle: Any) -> list[Value]:
        """What a reader gives; nothing where it is refused.

        Raises:
            NVMLError_GpuIsLost: The GPU fell off the bus.
        """
        if name in self.refusals:
            self._kept.pop(name, None)
            return []
        try:
            return self._ask(name, nvml, handle)
        except nvml.NVMLError_GpuIsLost:
            raise
        except nvml.NVMLError as error:
            self.refusals.add(name, nvml.result(error.value))
            if error.value == nvml.NVML_ERROR_UNKNOWN:
                self._unknown = error
        # What a newer driver answers may break a reader in ways that nobody foresaw; the other readers go on, and so do
        # the other GPUs.
        except Exception as error:  # noqa: BLE001
            self.refusals.add(name, f"it failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        return []

    def _ask(self, name: str, nvml: Library, handle: Any) -> list[Value]:
        """What a reader gives; of one that is read seldom, what it gave last until its time has come."""
        reader, every = self._readers[name]
        begun = self._clock()
        due, values = self._kept.get(name, (begun, []))
        if begun < due:
            return values
        try:
            values = [value for value in reader(nvml, handle, self.refusals) if self._is_plausible(value)]
        finally:
            self.seconds[name] = self._clock() - begun
        self._answered = self._answered or bool(values)
        if every:
            self._kept[name] = begun + every, values
        return values

    def _is_plausible(self, value: Value) -> bool:
        family = FAMILIES[value[0]]
        if family.low <= value[2] <= family.high:
            return True
        self.rejected[family.metric.name] = self.rejected.get(family.metric.name, 0) + 1
        return False
