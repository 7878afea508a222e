"""Messages between the daemon and the worker process of a mirror."""

from typing import Any

import msgspec

FLUSH_SECONDS = 3.0  # a worker whose input has ended sends on for so long
LONGEST_SECONDS = 60.0  # longest back-off; each is shortened by up to a half at random


class Start(msgspec.Struct):
    """First message to a worker.

    Attributes:
        name: Name of the mirror.
        history: The history's file.
        positions: The file of its positions.
        settings: Its section of the configuration.
    """

    name: str
    history: str
    positions: str
    settings: dict[str, Any]


class MirrorStatus(msgspec.Struct):
    """The counters of a mirror.

    Attributes:
        sent: Samples that the target has accepted.
        lost: Samples that the history has deleted before.
        rejected: Samples and media that the target will never accept, or not in this process's time.
        failures: Requests that failed, and are retried.
        oldest: Unix time of the oldest sample that waits; None for none.
        success: Unix time of the last request that was accepted; None for none.
        error: Error of the last request, in one line; empty if it was accepted.
        left_out: What was rejected last, and why, in one line.
    """

    sent: int = 0
    lost: int = 0
    rejected: int = 0
    failures: int = 0
    oldest: float | None = None
    success: float | None = None
    error: str = ""
    left_out: str = ""
