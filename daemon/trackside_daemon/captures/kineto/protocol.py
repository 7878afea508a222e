"""Datagrams between PyTorch and this daemon (libkineto's ``IpcFabricConfigClient.cpp``), and the text of a configuration."""

import struct
from collections.abc import Mapping
from typing import NamedTuple

from trackside_daemon.model.capture import ProfileOptions

DATAGRAM_BYTES = 4096  # maximum size; a request with 1,000 ancestors has this size

_HEADER = struct.Struct("<Q32s")  # size of the payload, and its type
_REQUEST = struct.Struct("<iiq")  # accepted configurations, number of process ids, job id; then the ids
_REGISTRATION_BYTES = 16  # GPU, process id and job id

_ACTIVITIES = 2  # bit of a request: a configuration of the activity profiler is accepted now


class DatagramError(ValueError):
    """A datagram that is not one of the protocol."""


class ConfigurationRequest(NamedTuple):
    """A process that asks for a configuration."""

    pid: int  # its process id, as it sees it
    accepts: bool  # it accepts one now; False while a profiler is active in it


class RecordingWindow(NamedTuple):
    """Times of a recording."""

    steps: int | None = None  # number of optimizer steps; None to record for *seconds*
    seconds: float = 0.0  # duration
    start: float = 0.0  # Unix seconds; 0 for at once
    # Number of the optimizer step, of all in the process, after which *steps* are recorded; 0 for at once.
    after: int = 0
    skipped: Mapping[int, int] = {}  # by rank, the optimizer steps that PyTorch has not counted


def decode(datagram: bytes) -> ConfigurationRequest | None:
    """Return the request in a datagram; None for a registration, which needs no answer.

    Raises:
        DatagramError: It is neither.
    """
    if len(datagram) < _HEADER.size:
        raise DatagramError("no header")
    size, kind = _HEADER.unpack_from(datagram)
    payload = datagram[_HEADER.size :]
    if size != len(payload):
        raise DatagramError("the size of the payload is wrong")
    kind = kind.partition(b"\0")[0]
    if kind == b"ctxt" and size == _REGISTRATION_BYTES:
        return None
    if kind != b"req" or size < _REQUEST.size:
        raise DatagramError("an unknown message")
    accepted, count, _ = _REQUEST.unpack_from(payload)
    if count < 1 or size != _REQUEST.size + 4 * count:
        raise DatagramError("the number of process ids is wrong")
    (pid,) = struct.unpack_from("<i", payload, _REQUEST.size)  # its own; those of its ancestors follow
    return ConfigurationRequest(pid, bool(accepted & _ACTIVITIES))


def encode(configuration: str) -> bytes:
    """Return the answer to a request."""
    text = configuration.encode()
    return _HEADER.pack(len(text), b"req") + text


def configuration(file: str, window: RecordingWindow, options: ProfileOptions, skipped: int = 0) -> str:
    """Return a configuration of the activity profiler.

    Args:
        file: Path of the trace, ending in ``.json``; PyTorch inserts an underscore and its process id before the suffix.
        window: When to record.
        options: What to record.
        skipped: Optimizer steps that PyTorch has not counted.
    """
    lines = {"ACTIVITIES_LOG_FILE": file, "ACTIVITIES_WARMUP_PERIOD_SECS": 0}  # the default warm-up takes 5 s
    if window.steps is not None:
        start = max(0, window.after - skipped - 1)
        lines |= {"PROFILE_START_ITERATION": start, "ACTIVITIES_ITERATIONS": window.steps}
    else:
        lines |= {
            "PROFILE_START_TIME": round(window.start * 1000),
            "ACTIVITIES_DURATION_MSECS": max(1, round(window.seconds * 1000)),
        }
    wanted = {
        "PROFILE_REPORT_INPUT_SHAPES": options.shapes,
        "PROFILE_WITH_STACK": options.stacks,
        "PROFILE_PROFILE_MEMORY": options.memory,
    }
    lines |= dict.fromkeys((name for name, on in wanted.items() if on), "true")
    return "".join(f"{name}={value}\n" for name, value in lines.items())
