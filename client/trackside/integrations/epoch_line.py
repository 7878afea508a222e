"""Lines on standard error of a framework's training: an epoch's throughput and waits, and the machine's use every N batches."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trackside.integrations.run_adapter import never_raises

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
        _write(self.text(epoch))


class ResourceLine:
    """Writes what a training's GPU and its machine use, after every N batches, from a thread: NVML may hang.

    Args:
        every: Number of batches; 0 for no lines.
        proc: Path of procfs.
    """

    def __init__(self, every: int, proc: Path = Path("/proc")) -> None:
        self._every, self._proc = int(every), proc
        self._batches = 0
        self._thread: threading.Thread | None = None
        self._before = self._cpu()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the thread."""
        return {**vars(self), "_thread": None}

    @never_raises  # a GPU that fails must not cost the loss of the same step
    def count(self) -> None:
        """Count a batch, and begin a line if it is due and the last one was written."""
        self._batches += 1
        if self._every < 1 or self._batches % self._every or (self._thread is not None and self._thread.is_alive()):
            return
        cuda, number, memory = _cuda(), 0, ""
        if cuda is not None:  # CUDA is asked from the thread of the training alone
            number = cuda.current_device()
            total = cuda.get_device_properties(number).total_memory
            memory = f"{cuda.memory_reserved(number) / 1e9:.1f} of {total / 1e9:.1f} GB"
        self._thread = threading.Thread(target=self._write, args=(self._batches, cuda, number, memory), daemon=True)
        self._thread.start()

    def _write(self, batches: int, cuda: Any, number: int, memory: str) -> None:
        parts = []
        if cuda is not None:
            use = "-"
            with suppress(Exception):  # without the package nvidia-ml-py
                use = f"{cuda.utilization(number)} %"
            parts.append(f"GPU {number} {use}, {memory}")
        with suppress(OSError, ValueError, KeyError, IndexError):
            (busy, total), before = self._cpu(), self._before
            self._before = busy, total
            lines = (line.split() for line in (self._proc / "meminfo").read_text().splitlines())
            sizes = {line[0]: int(line[1]) / 1e6 for line in lines}
            all_ = sizes["MemTotal:"]
            share = (busy - before[0]) / max(1, total - before[1])
            parts.append(f"CPU {100 * share:.0f} %, RAM {all_ - sizes['MemAvailable:']:.1f} of {all_:.1f} GB")
        _write(f"trackside: batch {batches}: {', '.join(parts)}")

    def _cpu(self) -> tuple[int, int]:
        """Return the ticks of all processors so far that were busy, and all; zeros if they cannot be read."""
        try:
            ticks = [int(one) for one in (self._proc / "stat").read_text().partition("\n")[0].split()[1:9]]
        except (OSError, ValueError):
            return 0, 0
        return sum(ticks) - sum(ticks[3:5]), sum(ticks)  # idle, iowait


def _write(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _quantile(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def _cuda() -> Any:
    """Return ``torch.cuda`` of a training on a GPU; None on another device."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _device_peak() -> int:
    """Return the most bytes that PyTorch has allocated on this process's GPU; 0 without one."""
    cuda = _cuda()
    return 0 if cuda is None else int(cuda.max_memory_allocated())
