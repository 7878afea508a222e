"""The contract of a collector: one method, nothing to inherit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from trackside_daemon.model.metric import Metric, Sample


HIDDEN = (
    "the pids of the processes that train are hidden; start this daemon in the host's pid namespace (hostPID: true, "
    "docker run --pid=host), or in theirs"
)
"""Nothing is known of any rank's process."""


class NothingToCollect(Exception):  # noqa: N818 - not an error: the host does not have it
    """This host has nothing for the collector to read; the message says what would change that."""


class StillBusy(Exception):  # noqa: N818 - it may be well, and only slow
    """The source has not finished what it was asked last; nothing was collected this time."""


class Collector(Protocol):
    """Reads one subject of the host."""

    @property
    def name(self) -> str:
        """The file's name, the configuration's key and the value of the label ``collector``."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Every family that `collect` may return."""

    def collect(self) -> list[Sample]:
        """All that there is to say now; the caller adds the time.

        Raises:
            NothingToCollect: This host has nothing to read.
            StillBusy: The source is slower than the ticks.
            Exception: Anything else is a failure: the caller logs it and goes on.
        """
        ...


@runtime_checkable
class Closes(Protocol):
    """A collector that has what must be let go of at the end: a child process, descriptors, a thread."""

    def close(self) -> None:
        """Let go of it, within a moment."""
