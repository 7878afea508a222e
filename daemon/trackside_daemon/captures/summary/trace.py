"""Read traces of PyTorch's profiler in Chrome's format, with only the fields that a summary needs."""

import gzip
import zlib
from pathlib import Path

import msgspec

TEXT_BYTES = 256 << 20  # the longest text that is read, about a million events
EVENT_BYTES = 1024  # memory that is needed for an event with its text and what the summary makes of it, at most
LAST_MICROSECOND = 2.0**63  # of the times that are read, far behind any that a profiler writes


class TraceError(Exception):
    """A trace cannot be summarised; the message gives the reason in one line."""


class Arguments(msgspec.Struct, frozen=True, gc=False):
    """Arguments of an event."""

    # The same number for an operator and the GPU work that it started.
    id: int | None = msgspec.field(name="External id", default=None)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))  # shapes of the inputs, as JSON


_NO_ARGUMENTS = Arguments()


class TraceEvent(msgspec.Struct, gc=False):
    """An event of a trace; times are in microseconds since the base of its trace."""

    ph: str
    name: str = ""
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: Arguments = _NO_ARGUMENTS

    @property
    def end(self) -> float:
        """End in microseconds."""
        return self.ts + self.dur


class Trace(msgspec.Struct):
    """A trace; *base* is the Unix time of its time 0, in nanoseconds."""

    events: list[TraceEvent] = msgspec.field(name="traceEvents")
    base: int = msgspec.field(name="baseTimeNanoseconds", default=0)


def read_text(path: Path, most: int = TEXT_BYTES) -> bytes:
    """Return the text of a trace, from a plain file or one that gzip compressed.

    Raises:
        OSError: The file cannot be read.
        TraceError: It is no gzip, or longer than *most* bytes.
    """
    with path.open("rb") as plain:
        compressed = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        try:
            text = (gzip.GzipFile(fileobj=plain) if compressed else plain).read(most + 1)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise TraceError(f"the trace is not complete: {error}") from None
    if len(text) > most:
        raise TraceError(f"the trace is longer than {most >> 20} MiB; record fewer steps, or no stacks")
    return text


def count_events(text: bytes) -> int:
    """Return the number of events of a trace, or more if its texts look like such."""
    return text.count(b'"ph"')


def _is_time(event: TraceEvent) -> bool:
    """Return whether an event lies in times that can be added up."""
    return abs(event.ts) + event.dur < LAST_MICROSECOND


def decode(text: bytes) -> Trace:
    """Return the events that have a duration.

    Raises:
        TraceError: It is not a trace.
    """
    try:
        trace = msgspec.json.decode(text, type=Trace)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"this is not a trace: {error}"[:200]) from None
    trace.events = [event for event in trace.events if event.ph == "X" and event.dur >= 0 and _is_time(event)]
    if not trace.events:
        raise TraceError("the trace is empty: nothing ran in PyTorch while it was recorded")
    return trace
