"""One GPU as the worker sees it, for as long as it has the same UUID."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trackside_daemon.model.families.gpu import FAMILIES
from trackside_daemon.nvml.readers.unsupported import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trackside_daemon.nvml.reader_groups import Group
    from trackside_daemon.nvml.reading import Value
    from trackside_daemon.nvml.worker.library import CountedNvml


class Gpu:
    """Readers of a GPU, and the record of what it does not support.

    Args:
        uuid: UUID from NVML.
        info: Labels of ``trackside_gpu_info``.
        groups: Reader groups to read.
        clock: Monotonic clock in seconds.

    Attributes:
        rejected: Number of values out of bounds, by family.
        seconds: Duration of each reader in the last cycle.
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
        self.unsupported = Unsupported()
        self.rejected: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._readers = {name: (group.new_reader(), group.every) for name, group in groups.items()}
        self._cached: dict[str, tuple[float, list[Value]]] = {}
        self._generation = 0
        self._has_answered = False
        self._unknown_error: Exception | None = None

    def read(self, nvml: CountedNvml, handle: Any) -> list[Value]:
        """Return every value that it measures; a refused call costs only its own families.

        If two readers measure the same series, the first one counts.

        Raises:
            NVMLError_GpuIsLost: The GPU fell off the bus.
            NVMLError_Unknown: No call succeeded, and at least one failed with this error.
        """
        if self._generation != self.unsupported.generation:
            self._generation = self.unsupported.generation
            self._cached.clear()
        self.seconds = {}
        self._has_answered = False
        self._unknown_error = None
        values: dict[tuple[str, tuple[str, ...]], Value] = {}
        try:
            for name in self._readers:
                for value in self._read_supported(name, nvml, handle):
                    values.setdefault(value[:2], value)
            if self._unknown_error and not self._has_answered:
                raise self._unknown_error
        except nvml.NVMLError:
            self._cached.clear()
            raise
        return list(values.values())

    def _read_supported(self, name: str, nvml: CountedNvml, handle: Any) -> list[Value]:
        """Return the values of a reader; none if it is not supported.

        Raises:
            NVMLError_GpuIsLost: The GPU fell off the bus.
        """
        if name in self.unsupported:
            self._cached.pop(name, None)
            return []
        try:
            return self._read_due(name, nvml, handle)
        except nvml.NVMLError_GpuIsLost:
            raise
        except nvml.NVMLError as error:
            self.unsupported.add(name, nvml.result(error.value))
            if error.value == nvml.NVML_ERROR_UNKNOWN:
                self._unknown_error = error
        # An answer of a newer driver may break a reader in an unforeseen way; the other readers and GPUs continue.
        except Exception as error:  # noqa: BLE001
            self.unsupported.add(name, f"it failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        return []

    def _read_due(self, name: str, nvml: CountedNvml, handle: Any) -> list[Value]:
        """Return the values of a reader; between two reads of a slow one, its last values."""
        reader, every = self._readers[name]
        start = self._clock()
        due, values = self._cached.get(name, (start, []))
        if start < due:
            return values
        try:
            values = [value for value in reader(nvml, handle, self.unsupported) if self._is_plausible(value)]
        finally:
            self.seconds[name] = self._clock() - start
        self._has_answered = self._has_answered or bool(values)
        if every:
            self._cached[name] = start + every, values
        return values

    def _is_plausible(self, value: Value) -> bool:
        family = FAMILIES[value[0]]
        if family.low <= value[2] <= family.high:
            return True
        self.rejected[family.metric.name] = self.rejected.get(family.metric.name, 0) + 1
        return False
