"""Targets of the tests, which the processes that measure import."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = {"small": 20_000, "large": 40_000}


def hashing(variant: str = "small") -> Callable[[], bytes]:
    data = bytes(SIZES[variant])
    return lambda: hashlib.sha256(data).digest()


def batches() -> tuple[Callable[[bytes], bytes], Callable[[int], bytes]]:
    return (lambda data: hashlib.sha256(data).digest()), (lambda batch: bytes(10_000 * batch))


def noting() -> Callable[[], None]:
    """A call that never ends, after the first hundred."""
    file, calls = Path(os.environ["NOTES"]), 0

    def call() -> None:
        nonlocal calls
        calls += 1
        if calls > 100:
            file.write_text("waits")
            time.sleep(1000)

    return call


def failing(variant: str = "good") -> Callable[[], object]:
    calls = 0

    def call() -> object:
        nonlocal calls
        calls += 1
        if variant == "raises" and calls > 5:
            raise RuntimeError("no such layer\nin this model")
        if variant == "hungry":
            return bytearray(1 << 46)
        if variant == "exits":
            raise SystemExit(3)
        return None

    return call


def killed() -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), signal.SIGKILL)


def broken() -> Any:
    raise ValueError("no weights")


def stored(checkpoint: str) -> Callable[[], bytes]:
    """A call on what a checkpoint has."""
    data = Path(checkpoint).read_bytes()
    return lambda: hashlib.sha256(data).digest()
