"""Messages between the daemon and the worker process of a mirror."""

from typing import Any

import msgspec

FLUSH_SECONDS = 3.0  # a worker whose input has ended sends on for so long
LONGEST_SECONDS = 60.0  # longest back-off; each is shortened by up to a half at random


class Start(msgspec.Struct):
    """First message to a worker."""

    name: str  # name of the mirror
    history: str  # the history's file
    positions: str  # the file of its positions
    settings: dict[str, Any]  # its section of the configuration


class MirrorStatus(msgspec.Struct):
    """The counters of a mirror."""

    sent: int = 0  # samples that the target has accepted
    lost: int = 0  # samples that the history has deleted before
    rejected: int = 0  # samples and media that the target will never accept, or not in this process's time
    failures: int = 0  # requests that failed, and are retried
    oldest: float | None = None  # Unix time of the oldest sample that waits; None for none
    success: float | None = None  # Unix time of the last request that was accepted; None for none
    error: str = ""  # error of the last request, in one line; empty if it was accepted
    left_out: str = ""  # what was rejected last, and why, in one line
