"""A line on standard error for each epoch of a framework's training: throughput, waits for data, and peak memory."""

from __future__ import annotations

import sys
from resource import RUSAGE_SELF, getrusage
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST = 8192  # waits that are kept; of more, every second, fourth, … one


class EpochLine:
    """Measures an epoch by the host's clock. What is between `began` and `stepped` is a step, the time before it a wait for data."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin an epoch."""
        self._samples = self._stepping = self._waiting = 0.0
        self._waits: list[float] = []
        self._stride, self._count = 1, 0
        self._since = perf_counter()

    def pause(self) -> None:
        """Leave out the time since the last step: an evaluation, a checkpoint."""
        self._since = perf_counter()

    def began(self) -> None:
        """Note that the batch of a step has arrived."""
        now = perf_counter()
        wait, self._since = now - self._since, now
        self._waiting += wait
        if self._count % self._stride == 0:
            self._waits.append(wait)
            if len(self._waits) >= MOST:
                self._waits, self._stride = self._waits[::2], 2 * self._stride
        self._count += 1

    def stepped(self, samples: float) -> None:
        """Note that a step is over."""
        now = perf_counter()
        self._stepping += now - self._since
        self._samples += samples
        self._since = now

    @property
    def efficiency(self) -> float | None:
        """The throughput, as a share of what the steps alone would allow; None before a step."""
        return self._stepping / (self._stepping + self._waiting) if self._stepping else None

    def text(self, epoch: object) -> str:
        """Return the line."""
        rate = self._samples / (self._stepping + self._waiting) if self._stepping else 0.0
        waits = sorted(self._waits) or [0.0]
        p50, p95 = (1000 * _quantile(waits, share) for share in (0.5, 0.95))
        device = _device_peak()
        memory = f"{device / 1e9:.1f} GB on the GPU, " if device else ""
        efficiency = "-" if self.efficiency is None else f"{100 * self.efficiency:.0f} %"
        return (
            f"trackside: epoch {epoch}: {rate:.1f} samples/s, {efficiency} of what the steps alone allow, "
            f"load {p50:.1f} ms (p95 {p95:.1f} ms), peak memory {memory}{getrusage(RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB of the host"
        )

    def write(self, epoch: object) -> None:
        """Write the line to standard error, whole."""
        sys.stderr.write(f"{self.text(epoch)}\n")
        sys.stderr.flush()


def _quantile(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def _device_peak() -> int:
    """Return the most bytes that PyTorch has allocated on this process's GPU; 0 without one."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return int(cuda.max_memory_allocated()) if cuda is not None and cuda.is_initialized() else 0
