"""The contents of a run's file in any format: what `formats` reads and `importing` writes, and the fields of both."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from trackside_daemon.model.metric import json_number

# Names of step and time in other tools' files, in lower case; the first one that occurs counts.
STEP = ("step", "_step", "global_step", "iteration", "iter")
TIME = ("time", "_timestamp", "timestamp", "wall time", "wall_time")

EARLY = 3  # names without a leading underscore count in the first columns only; further right they are keys
FAR_SECONDS = 8_000_000_000  # the year 2223: a later time is not in seconds

INT64 = 2**63

LINE_BYTES = 16 * 1024 * 1024  # longest line, or value in a document: a longer one could fill the memory


class FormatError(Exception):
    """The file cannot be read; the message has the file, the line, and what is expected there."""


class Push(NamedTuple):
    """Values that were pushed together; the time in Unix microseconds."""

    attempt: int
    rank: int
    step: int
    time: int
    keys: Sequence[str]
    values: Sequence[float]


class MachineValues(NamedTuple):
    """Values of GPU and host series of the run's machine at one time, in Unix microseconds."""

    time: int
    values: Mapping[str, float]


EntryKind = Literal["run", "event", "alert", "capture", "layers", "media"]


class RunEntry(NamedTuple):
    """An entry of a run's file that is no samples, and its line.

    The fields of a ``run`` are those of `reader.run`, of an ``event`` those of `reader.events`, of an ``alert`` those of
    `alert_reader.alerts`, and of a ``capture`` those of `model.capture.as_json`. Distributions of the ``layers`` of a rank at a
    step have those of `layer_lines`, and an image, a text or a table those of `media_lines`.
    """

    kind: EntryKind
    fields: Mapping[str, Any]
    line: int = 0


Item = Push | MachineValues | RunEntry


class ItemClock:
    """Dates items; those without a time come a second after the one before.

    Attributes:
        guessed: Number of items without a time.
    """

    def __init__(self, begin: float) -> None:
        self.guessed = 0
        self._last = round(begin) * 1_000_000 - 1_000_000

    def at(self, seconds: float | None) -> int:
        """Return a time in Unix microseconds; None stands for an item without a time.

        Raises:
            ValueError: The number is no time in Unix seconds.
        """
        if seconds is None:
            self.guessed += 1
            self._last += 1_000_000
        else:
            self._last = microseconds(seconds)
        return self._last


def microseconds(seconds: float) -> int:
    """Return a time in whole microseconds, from which the same float results again.

    Raises:
        ValueError: The number is no time in Unix seconds.
    """
    if not abs(seconds) < FAR_SECONDS:
        raise ValueError(f"a time in Unix seconds is expected, not {seconds!r}")
    whole = int(seconds)
    return whole * 1_000_000 + round((seconds - whole) * 1e6)


def checked_position(attempt: int, rank: int, step: int) -> tuple[int, int, int]:
    """Return attempt, rank and step if the history can hold them.

    Raises:
        ValueError: A number is no integer, or is out of range.
    """
    if not (isinstance(attempt, int) and isinstance(rank, int) and isinstance(step, int)) or not (
        0 <= attempt < INT64 and 0 <= rank < INT64 and -INT64 <= step < INT64
    ):
        numbers = ", ".join(text[:60] for text in (f"attempt {attempt!r}", f"rank {rank!r}", f"step {step!r}"))
        raise ValueError(f"{numbers} are expected to be whole numbers of 64 bits")
    return attempt, rank, step


def check_keys(keys: Iterable[str]) -> None:
    """Check that the history can hold some keys.

    Raises:
        ValueError: A key has half a surrogate pair, which an escape in JSON can write.
    """
    for key in keys:
        try:
            key.encode()
        except UnicodeEncodeError:
            raise ValueError(f"a key that is text is expected, not {key[:60]!r}") from None


_Number = Annotated[int, msgspec.Meta(ge=0, le=INT64 - 1)]
_Step = Annotated[int, msgspec.Meta(ge=-INT64, le=INT64 - 1)]
_Seconds = Annotated[float, msgspec.Meta(gt=-1e11, lt=1e11)]
"""A range that the tables can hold and dates can show."""


class AttemptFields(msgspec.Struct):
    """An attempt of a run."""

    attempt: _Number
    state: Literal["starting", "running", "stalled", "finished", "stopped", "failed", "lost"]
    started: float
    cause: str = ""
    ended: _Seconds | None = None
    config: Any = None
    rank: _Number = 0


class RunFields(msgspec.Struct):
    """A run."""

    id: str
    name: str
    attempt_list: list[dict[str, Any]]
    tags: tuple[str, ...] = ()
    pinned: bool = False
    summary: dict[str, Any] = {}


NO_RUN = RunFields("", "", [])


class EventFields(msgspec.Struct):
    """An event."""

    attempt: _Number
    time: _Seconds
    kind: str
    rank: _Number | None = None
    step: _Step | None = None
    fields: dict[str, Any] = {}


class AlertFields(msgspec.Struct):
    """An alert."""

    alert: str
    severity: Literal["info", "warning", "critical"]
    started: _Seconds
    ended: _Seconds | None = None
    summary: str = ""
    description: str = ""
    labels: dict[str, str] = {}
    evidence: dict[str, Any] = {}


CHUNK_LINES = 1000

_encode = msgspec.json.Encoder().encode


def chunks(items: Iterable[Item]) -> Iterator[bytes]:
    """Yield the items as lines, several at a time."""
    lines: list[bytes] = []
    for item in items:
        lines.append(_push(item) if isinstance(item, Push) else _other(item))
        if len(lines) == CHUNK_LINES:
            yield b"\n".join([*lines, b""])
            lines = []
    if lines:
        yield b"\n".join([*lines, b""])


def _push(push: Push) -> bytes:
    values: dict[str, Any] = dict(zip(push.keys, push.values, strict=True))
    if not isfinite(sum(push.values)):
        values = {key: json_number(value) for key, value in values.items()}
    fields = {"attempt": push.attempt, "rank": push.rank, "step": push.step, "time": push.time / 1e6, "values": values}
    return _encode(fields)


def _other(item: MachineValues | RunEntry) -> bytes:
    if isinstance(item, MachineValues):
        values = {key: json_number(value) for key, value in item.values.items()}
        fields: dict[str, Any] = {"kind": "resources", "time": item.time / 1e6, "values": values}
    elif item.kind == "event":
        fields = {**item.fields, "kind": "event", "event": item.fields["kind"]}
    else:
        fields = {"kind": item.kind, **({"capture": item.fields} if item.kind == "capture" else item.fields)}
    return json.dumps(fields).encode()
