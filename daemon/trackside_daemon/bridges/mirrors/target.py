"""The protocol of a target, one place that samples are mirrored to; and the list of them.

Add a line to the list and one in `settings` for a new one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast, runtime_checkable

from trackside_daemon.http_client.errors import SettingError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from trackside.buckets import Buckets
    from trackside_daemon.history.media.index import MediaFile

State = dict[str, Any]
"""Facts of a target about a run, as JSON, which are stored with the positions."""


class MirroredRun(NamedTuple):
    """A run, as it is now."""

    id: str  # its id; empty for the machine
    name: str
    state: str
    tags: tuple[str, ...]
    started: float  # Unix time of its start
    ended: float | None  # Unix time of its end; None while it lives
    end: str  # its end and its number of pushes, as text; empty while it lives. It changes if pushes arrive late
    config: dict[str, Any]  # configuration of its last attempt
    about: dict[str, Any]  # further facts about the last attempt


class Medium(NamedTuple):
    """An image, a text, a table or a histogram: what the index of the run's media has, its content, and its file."""

    item: MediaFile
    data: bytes
    path: Path


class Row(NamedTuple):
    """Values of one rank, step and time."""

    attempt: int
    rank: int
    lowest: bool  # whether it is the lowest rank of the attempt
    step: int
    time: int  # Unix microseconds
    values: dict[str, float]  # the values by key
    histograms: Mapping[str, Buckets] = {}  # distributions by name, for a target with ``histograms``
    media: Sequence[Medium] = ()  # images, texts, tables and histograms, for a target without ``machine``

    def name(self, key: str) -> str:
        """Return a key that also names the rank, if it is not the lowest."""
        return key if self.lowest else f"{key}/rank_{self.rank}"

    def named(self) -> dict[str, float]:
        """Return the values by `name`."""
        return self.values if self.lowest else {self.name(key): value for key, value in self.values.items()}


class Target(Protocol):
    """One place that samples are mirrored to. Its methods block, and are called by one thread."""

    # Whether it accepts the series of GPUs and host, too, as rows of a run without id. If not, rows of runs have curves
    # of the run's machine, and media.
    machine: bool
    histograms: bool  # whether it accepts rows with distributions
    refused: Sequence[str] = ()  # the media of the last rows that it did not accept, of each its key and why

    def begin(self, run: MirroredRun, state: State) -> State:
        """Make the target ready for a run; called before the first rows since the start, also for a run that it has.

        Raises:
            SendError: The target did not accept it.
        """
        ...

    def send(self, run: MirroredRun, rows: Sequence[Row], state: State) -> State:
        """Send rows, in their order; once it returns, they are stored there.

        Raises:
            SendError: The target did not accept them; it may have some of them all the same.
        """
        ...

    def end(self, run: MirroredRun, state: State) -> State:  # noqa: ARG002  most targets do without
        """Record the end of a run, after its last rows; by default nothing has to be done.

        Raises:
            SendError: The target did not accept it.
        """
        return state

    def close(self) -> None:
        """Release everything; by default there is nothing."""
        return


@runtime_checkable
class RunTarget(Protocol):
    """One place that whole runs are written to, once they have ended."""

    machine: bool  # False
    lost: int  # the samples of these runs that the history has deleted before, so far

    def write(self, connection: sqlite3.Connection, run: MirroredRun) -> int | None:
        """Write a run, and return its number of samples; None if the target had it as it is.

        Args:
            connection: In a transaction.
            run: The run.

        Raises:
            SendError: The target did not accept it.
        """
        ...

    def close(self) -> None:
        """Release everything."""
        ...


TARGETS = ("tensorboard", "mlflow", "wandb", "otlp", "parquet")


def make_target(name: str, settings: dict[str, Any]) -> Target | RunTarget:
    """Return a target.

    Args:
        name: One of `TARGETS`; its module ``mirror`` has a function ``make_target``.
        settings: Its section of the configuration.

    Raises:
        SettingError: A setting cannot be used, or a library is not installed.
    """
    # Only the module of the target is imported, since some need large libraries.
    try:
        module = import_module(f"trackside_daemon.bridges.{name}.mirror")
    except ModuleNotFoundError as error:  # of the files of Parquet; the others import their libraries later
        way = "pip install 'trackside[arrow]'"
        raise SettingError(f"bridges.{name}: {error.name} is not installed; {way}") from None
    return cast("Callable[[dict[str, Any]], Target | RunTarget]", module.make_target)(settings)
