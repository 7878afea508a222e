"""The interface of a collector: a protocol, without a base class."""

from typing import Protocol, runtime_checkable

from trackside_daemon.model.metric import Sample

# Message of `NothingToCollect` when the pid of no rank process is visible.
HIDDEN = (
    "the pids of the processes that train are hidden; start this daemon in the host's pid namespace (hostPID: true, "
    "docker run --pid=host), or in theirs"
)


class NothingToCollect(Exception):  # noqa: N818 - not an error: the host lacks the source
    """The host has nothing for the collector to read; the message names the remedy."""


class StillBusy(Exception):  # noqa: N818 - the source may be healthy, and only slow
    """The source has not finished the last request; this tick collected nothing."""


class Collector(Protocol):
    """A reader of one subject of the host."""

    @property
    def name(self) -> str:
        """The file's name, the configuration's key and the value of the label ``collector``."""

    def collect(self) -> list[Sample]:
        """Return all current samples; the caller adds the time.

        Raises:
            NothingToCollect: The host has nothing to read.
            StillBusy: The source is slower than the ticks.
            Exception: Any other failure; the caller logs it and continues with the next collector.
        """
        ...


@runtime_checkable
class Closes(Protocol):
    """A collector with resources to release at the end: a child process, descriptors, a thread."""

    def close(self) -> None:
        """Release the resources without waiting long."""


@runtime_checkable
class LeavesOut(Protocol):
    """A collector that may lack one of its sources while the others answer."""

    @property
    def left_out(self) -> str:
        """The source that is left out, the reason and the remedy; empty if all answer."""
