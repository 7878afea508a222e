"""What a file of a run is made of, whatever its form: the words between the `forms` and `importing`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

STEP = ("step", "_step", "global_step", "iteration", "iter")
TIME = ("time", "_timestamp", "timestamp", "wall time", "wall_time")
"""What other tools call them, in lower case, the first that is there before the others."""

EARLY = 3
"""Those that do not begin with an underscore count in the first columns only: behind them they are keys."""

FAR_SECONDS = 8_000_000_000
"""The year 2223: a time beyond it is none in seconds."""

INT64 = 2**63

LINE_BYTES = 16 * 1024 * 1024
"""A longer line, or value in a document, is none: it would fill the memory."""


class FormatError(Exception):
    """A file cannot be read; the message has the file, the line, and what is expected there."""


class RunHeader(NamedTuple):
    """What a file tells of its run, as `reader.run` does; *line* is where."""

    run: Mapping[str, Any]
    line: int = 0


class Push(NamedTuple):
    """Values that were pushed together; *time* in Unix microseconds."""

    attempt: int
    rank: int
    step: int
    time: int
    keys: Sequence[str]
    values: Sequence[float]


class EventItem(NamedTuple):
    """An event, as `reader.events` has it; *line* is where."""

    fields: Mapping[str, Any]
    line: int = 0


class AlertItem(NamedTuple):
    """An alert, as `reader.alerts` has it; *line* is where."""

    fields: Mapping[str, Any]
    line: int = 0


Item: TypeAlias = "RunHeader | Push | EventItem | AlertItem"


class Clock:
    """Gives a time to those that have none: a second after the one before.

    Attributes:
        guessed: How often it did.
    """

    def __init__(self, begin: float) -> None:
        self.guessed = 0
        self._last = round(begin) * 1_000_000 - 1_000_000

    def at(self, seconds: float | None) -> int:
        """Unix microseconds.

        Raises:
            ValueError: They are no Unix seconds.
        """
        if seconds is None:
            self.guessed += 1
            self._last += 1_000_000
        else:
            self._last = microseconds(seconds)
        return self._last


def microseconds(seconds: float) -> int:
    """Whole microseconds, the same that a float was made of.

    Raises:
        ValueError: They are no Unix seconds.
    """
    if not abs(seconds) < FAR_SECONDS:
        raise ValueError(f"a time in Unix seconds, not {seconds!r}")
    whole = int(seconds)
    return whole * 1_000_000 + round((seconds - whole) * 1e6)


def checked_position(attempt: int, rank: int, step: int) -> tuple[int, int, int]:
    """The same, when the history can hold them.

    Raises:
        ValueError: It cannot.
    """
    if not (isinstance(attempt, int) and isinstance(rank, int) and isinstance(step, int)) or not (
        0 <= attempt < INT64 and 0 <= rank < INT64 and -INT64 <= step < INT64
    ):
        place = ", ".join(str(one)[:60] for one in (f"attempt {attempt!r}", f"rank {rank!r}", f"step {step!r}"))
        raise ValueError(f"{place} are expected to be whole numbers of 64 bits")
    return attempt, rank, step


def check_keys(keys: Iterable[str]) -> None:
    """Nothing, when the history can hold these keys.

    Raises:
        ValueError: One has half a surrogate pair, which an escape in JSON can write.
    """
    for key in keys:
        try:
            key.encode()
        except UnicodeEncodeError:
            raise ValueError(f"a key that is text is expected, not {key[:60]!r}") from None


def line_too_long(file: str, line: int) -> FormatError:
    """What is said of a line of more than `LINE_BYTES`."""
    return FormatError(f"{file}: line {line}: longer than {LINE_BYTES >> 20} MiB, which no line of a run is")
