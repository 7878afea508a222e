"""Log GPU events: GPUs found, lost and recovered, Xid errors, and missing permissions."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

from trackside.log_once import LogOnce
from trackside_daemon.nvml.reading import DOWN, NO_PERMISSION, NOT_ANSWERING, GpuReading, Reading

log = logging.getLogger("trackside")


class GpuEventLog:
    """A log of changes from reading to reading, each logged once."""

    def __init__(self) -> None:
        self._up: dict[str, bool] | None = None
        self._xids: dict[tuple[str, int], int] = {}
        self._refused = LogOnce()
        self._last: dict[tuple[int, str], dict[str, str]] = {}

    def forget(self) -> None:
        """Log all GPUs anew at the next reading, because others may be present now."""
        self._up = None

    def log_changes(self, gpus: Sequence[GpuReading], reading: Reading) -> None:
        """Log the changes since the last reading.

        Args:
            gpus: GPUs that were read, and GPUs that are gone.
            reading: Has the driver's version, the GPUs that this process may not open, and the counts of Xid errors
                since the daemon started.
        """
        # First, because an Xid often gives the reason for the loss that is logged after it.
        self._log_xids(gpus, reading)
        up = {gpu.uuid: gpu.values != DOWN for gpu in gpus}
        if self._up is None:
            _log_found(gpus, reading)
            # All of them, so that the loop below also logs a GPU that is lost from the start.
            self._up = dict.fromkeys(up, True)
        for gpu in gpus:
            if self._up.get(gpu.uuid, True) and not up[gpu.uuid]:
                why = gpu.unsupported.get("up", NOT_ANSWERING)
                log.warning("%s is lost: %s", _name(gpu), why)
            elif up[gpu.uuid] and not self._up.get(gpu.uuid, False):
                log.info("%s answers%s", _name(gpu), " again" if gpu.uuid in self._up else "")
        self._up |= up
        self._log_refusals([*gpus, *reading.hidden])

    def _log_refusals(self, gpus: Iterable[GpuReading]) -> None:
        """Log, once per GPU and value, refusals that you can remedy with permissions."""
        for gpu in gpus:
            if self._last.get((gpu.index, gpu.uuid)) == gpu.unsupported:
                continue
            self._last[gpu.index, gpu.uuid] = gpu.unsupported
            remedies: dict[str, list[str]] = {}
            for name, why in gpu.unsupported.items():
                key = (gpu.uuid or str(gpu.index), name)
                if why.startswith(NO_PERMISSION) and self._refused.first(key):
                    remedies.setdefault(why, []).append(name)
            for why, names in remedies.items():
                log.warning("%s refuses %s: %s", _name(gpu), ", ".join(names), why)

    def _log_xids(self, gpus: Iterable[GpuReading], reading: Reading) -> None:
        names = {gpu.uuid: _name(gpu) for gpu in gpus}
        for uuid, counted in reading.xids.items():
            for number, (times, _) in counted.items():
                if times > self._xids.get((uuid, number), 0):
                    log.warning("%s: Xid %d, %d since this daemon started", names.get(uuid, "a GPU"), number, times)
                self._xids[uuid, number] = times


def _log_found(gpus: Sequence[GpuReading], reading: Reading) -> None:
    kinds = Counter(gpu.info.get("name") or "unknown GPU" for gpu in gpus)
    summary = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    if any(gpu.info.get("source") == "simulated" for gpu in gpus):
        log.info("simulates %s, and reads no real GPU", summary)
    else:
        log.info("reads %s, driver %s", summary, reading.driver.get("driver_version") or "of unknown version")


def _name(gpu: GpuReading) -> str:
    return f"GPU {gpu.index} ({gpu.info.get('name') or 'unknown'}, {gpu.uuid or 'without a UUID'})"
