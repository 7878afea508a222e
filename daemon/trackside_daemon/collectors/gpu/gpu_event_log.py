"""The log's word for what befalls GPUs: which were found, lost and seen again, their Xid errors, and what can be cured."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from trackside_daemon.nvml.reading import DOWN, NO_PERMISSION, NOT_ANSWERING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trackside_daemon.nvml.reading import GpuReading, Reading

log = logging.getLogger("trackside")


class Chronicle:
    """Logs each change once, from reading to reading."""

    def __init__(self) -> None:
        self._up: dict[str, bool] | None = None
        self._xids: dict[tuple[str, int], int] = {}
        self._refused: set[tuple[str, str]] = set()
        self._last: dict[tuple[int, str], dict[str, str]] = {}

    def forget(self) -> None:
        """Other GPUs may be there now; they are told of anew."""
        self._up = None

    def tell(self, gpus: Sequence[GpuReading], reading: Reading) -> None:
        """Log what has changed.

        Args:
            gpus: Those that were read, and those that are gone.
            reading: Brings the driver's version, those that may not be opened, and the counts of Xid errors since the
                daemon began.
        """
        self._tell_xids(gpus, reading)
        up = {gpu.uuid: gpu.values != DOWN for gpu in gpus}
        if self._up is None:
            _tell_found(gpus, reading)
            self._up = dict.fromkeys(up, True)
        for gpu in gpus:
            if self._up.get(gpu.uuid, True) and not up[gpu.uuid]:
                why = gpu.unsupported.get("up", NOT_ANSWERING)
                log.warning("%s is lost: %s", _name(gpu), why)
            elif up[gpu.uuid] and not self._up.get(gpu.uuid, False):
                log.info("%s answers%s", _name(gpu), " again" if gpu.uuid in self._up else "")
        self._up |= up
        self._tell_refusals([*gpus, *reading.hidden])

    def _tell_refusals(self, gpus: Iterable[GpuReading]) -> None:
        """Once for each GPU and name, what whoever runs the daemon can cure."""
        for gpu in gpus:
            if self._last.get((gpu.index, gpu.uuid)) == gpu.unsupported:
                continue
            self._last[gpu.index, gpu.uuid] = gpu.unsupported
            cures: dict[str, list[str]] = {}
            for name, why in gpu.unsupported.items():
                one = (gpu.uuid or str(gpu.index), name)
                if why.startswith(NO_PERMISSION) and one not in self._refused:
                    self._refused.add(one)
                    cures.setdefault(why, []).append(name)
            for why, names in cures.items():
                log.warning("%s refuses %s: %s", _name(gpu), ", ".join(names), why)

    def _tell_xids(self, gpus: Iterable[GpuReading], reading: Reading) -> None:
        names = {gpu.uuid: _name(gpu) for gpu in gpus}
        for uuid, counted in reading.xids.items():
            for number, (times, _) in counted.items():
                if times > self._xids.get((uuid, number), 0):
                    log.warning("%s: Xid %d, %d since this daemon began", names.get(uuid, "a GPU"), number, times)
                self._xids[uuid, number] = times


def _tell_found(gpus: Sequence[GpuReading], reading: Reading) -> None:
    kinds = Counter(gpu.info.get("name") or "unknown GPU" for gpu in gpus)
    found = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    if any(gpu.info.get("source") == "simulated" for gpu in gpus):
        log.info("simulates %s, and reads no real GPU", found)
    else:
        log.info("reads %s, driver %s", found, reading.driver.get("driver_version") or "of unknown version")


def _name(gpu: GpuReading) -> str:
    return f"GPU {gpu.index} ({gpu.info.get('name') or 'unknown'}, {gpu.uuid or 'without a UUID'})"
