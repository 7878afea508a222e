"""One GPU as the worker knows it, for as long as it has the same UUID."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.nvml.families import FAMILIES
from trackside_daemon.nvml.refusals import Refusals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.nvml.groups import Group
    from trackside_daemon.nvml.library import Library
    from trackside_daemon.nvml.reading import Value


class Gpu:
    """Its readers, and what it refuses.

    Args:
        uuid: As NVML says it.
        info: By the labels of ``trackside_gpu_info``.
        groups: What is to be read.

    Attributes:
        rejected: Values beyond their bounds, by family.
    """

    def __init__(self, uuid: str, info: dict[str, str], groups: Mapping[str, Group]) -> None:
        self.uuid = uuid
        self.info = info
        self.refusals = Refusals()
        self.rejected: dict[str, int] = {}
        self._readers = {name: group.make() for name, group in groups.items()}

    def read(self, nvml: Library, handle: Any) -> list[Value]:
        """Every value that it measures; one call's refusal costs only that call's families.

        Raises:
            NVMLError_GpuIsLost: It fell off the bus.
        """
        values: list[Value] = []
        for name, reader in self._readers.items():
            if name in self.refusals:
                continue
            try:
                values += reader(nvml, handle, self.refusals)
            except nvml.NVMLError_GpuIsLost:
                raise
            except nvml.NVMLError as error:
                self.refusals.add(name, nvml.result(error.value))
        return [value for value in values if self._is_plausible(value)]

    def _is_plausible(self, value: Value) -> bool:
        family = FAMILIES[value[0]]
        if family.low <= value[2] <= family.high:
            return True
        self.rejected[family.metric.name] = self.rejected.get(family.metric.name, 0) + 1
        return False
