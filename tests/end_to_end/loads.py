"""A training whose data loader has four workers that follow the lines of standard input: ``loads.py METHOD [--small-shm]``."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

import trackside

CROWD = 15 * 1024**2
"""Most of the /dev/shm of 16 MiB that the tests give, in bytes; and what does not fit into it."""
SHM = 32 * 1024**2

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000  # sched.h, sys/mount.h


class Data(Dataset[torch.Tensor]):  # type: ignore[misc]  # torch may be missing where types are checked
    """A dataset that acts by the number in *told*, an index of `LINES`; only the first worker is killed."""

    def __init__(self) -> None:
        self.line = torch.zeros(1, dtype=torch.int32).share_memory_()

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        while time.process_time() < 0.05:  # the kernel counts CPU time in hundredths of a second
            pass
        act, worker = LINES[int(self.line)], -1 if info is None else info.id
        if act == "fill":
            fill()
        elif act == "kill" and worker == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.001)
        return torch.zeros(16)


LINES = ("", "fill", "kill")


def fill() -> None:
    """Write more to a file of /dev/shm than fits."""
    path = Path(f"/dev/shm/{os.getpid()}")
    with path.open("wb+") as file:
        file.truncate(SHM)
        with mmap.mmap(file.fileno(), SHM) as memory:
            memory[:] = b"x" * SHM


def mount_shm() -> None:
    """Mount a /dev/shm of 16 MiB that only this process and those below it see."""
    libc = ctypes.CDLL(None, use_errno=True)
    for failed in (
        libc.unshare(CLONE_NEWNS),
        libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None),
        libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=16m"),
    ):
        if failed:
            raise OSError(ctypes.get_errno(), "the small /dev/shm")


def main() -> None:
    """Load a batch, then do as the line of standard input demands."""
    if "--small-shm" in sys.argv:
        mount_shm()
    data = Data()
    loader = DataLoader(data, num_workers=4, persistent_workers=True, multiprocessing_context=sys.argv[1])
    batches = iter(loader)
    next(batches)
    trackside.push(step=1, loss=1.0)
    line = sys.stdin.readline().strip()
    if line == "crowd":
        Path("/dev/shm/crowd").write_bytes(b"x" * CROWD)
        sys.stdout.write("crowded\n")
        sys.stdout.flush()
        line = sys.stdin.readline().strip()
    if line in LINES[1:]:
        data.line.fill_(LINES.index(line))
        for _ in batches:
            pass
    del batches, loader
    sys.stdin.read()


if __name__ == "__main__":
    main()
