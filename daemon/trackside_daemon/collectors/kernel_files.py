"""Small files of the kernel's, read whole and without what a text stream costs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trackside_daemon.model.metric import Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_BYTES = 65536
_DIGITS = 32  # of a number and the spaces before it
_CURE = "is a procfs mounted there, and does path.procfs name it?"


def read(path: str | os.PathLike[str]) -> bytes:
    """All of a file of /proc or /sys.

    Raises:
        OSError: It is not there, or cannot be read; the error has the path.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = [os.read(descriptor, _BYTES)]
        while parts[-1]:
            parts.append(os.read(descriptor, _BYTES))
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    finally:
        os.close(descriptor)
    return b"".join(parts)


def read_base(path: str | os.PathLike[str]) -> bytes:
    """All of a file of /proc whose absence has one likely reason.

    Raises:
        OSError: It is not there, or cannot be read; the error has the path and says what to look at.
    """
    try:
        return read(path)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; {_CURE}", os.fspath(path)) from error


def number(data: bytes, name: bytes, path: str | os.PathLike[str]) -> int | None:
    """The number that follows *name* at the beginning of a line of *data*; None when no line begins so.

    Args:
        data: What was read.
        name: With what stands between it and the number, as in ``pgfault `` and ``MemTotal:``.
        path: From where it was read.

    Raises:
        ValueError: What follows is no number; the error has the path and the word.
    """
    at = 0 if data.startswith(name) else data.find(b"\n" + name)
    if at < 0:
        return None
    begin = data.index(name, at) + len(name)
    word = data[begin : begin + _DIGITS].partition(b"\n")[0].strip().partition(b" ")[0]
    try:
        return int(word)
    except ValueError as error:
        raise no_number(path, name.decode().rstrip(" :") or "its first word", word) from error


def fields(
    data: bytes, wanted: Sequence[tuple[bytes, Metric]], path: str | os.PathLike[str], scale: int = 1
) -> list[Sample]:
    """A sample of each family whose field is there, in units of *scale*.

    Args:
        data: What was read.
        wanted: What stands before each number, as `number` takes it.
        path: From where it was read.
        scale: What the numbers are multiplied by.

    Raises:
        ValueError: None of the fields is there, or one is no number.
    """
    found = [(metric, count) for name, metric in wanted if (count := number(data, name, path)) is not None]
    if not found:
        raise no_field(path, (name.decode().rstrip(" :") for name, _ in wanted))
    return [Sample(metric, (), count * scale) for metric, count in found]


def no_field(path: str | os.PathLike[str], names: Iterable[str]) -> ValueError:
    """The error of a file that has none of the fields that are looked for."""
    return ValueError(f"{os.fspath(path)} has no {' nor '.join(names)}; {_CURE}")


def no_number(path: str | os.PathLike[str], what: str, word: bytes) -> ValueError:
    """The error of a *word* that stands where *what* is looked for, and is no number."""
    return ValueError(f"{os.fspath(path)}: {what} is {word.decode(errors='replace')!r}, not a number; {_CURE}")
