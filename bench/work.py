"""Steps of real CPU work: layers of a network. The memory they touch decides how cold the caches of the next call are."""

from __future__ import annotations

import statistics
import time
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = 16
WIDTH = 256
MEBIBYTE = 2**20 // (4 * WIDTH * WIDTH)
"""So many layers have weights of a mebibyte."""


def calibrated(milliseconds: float, mebibytes: float) -> Callable[[], None]:
    """Return a function that works for about the wanted time and cycles through weights of the wanted MiB.

    BLAS must use one thread (``OPENBLAS_NUM_THREADS=1``).

    """
    each = max(1, round(mebibytes * MEBIBYTE))
    random = np.random.default_rng(1)
    weights = cycle([random.standard_normal((WIDTH, WIDTH), np.float32) / WIDTH**0.5 for _ in range(each)])
    batch = random.standard_normal((ROWS, WIDTH), np.float32)

    def forward(layers: int) -> None:
        hidden = batch
        for _ in range(layers):
            hidden = np.tanh(hidden @ next(weights))

    def timed(layers: int) -> float:
        begun = time.perf_counter()
        forward(layers)
        return time.perf_counter() - begun

    forward(1000)
    one = statistics.median(timed(32) for _ in range(200)) / 32
    layers = max(1, round(milliseconds / 1000 / one))
    whole = statistics.median(timed(layers) for _ in range(max(50, round(1000 / milliseconds))))
    layers = max(1, round(layers * milliseconds / 1000 / whole))
    return lambda: forward(layers)
