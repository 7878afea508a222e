"""Read small kernel files whole, without the cost of a text stream, and parse their numbers."""

import os
from collections.abc import Iterable, Sequence

from trackside_daemon.model.metric import Metric, Sample

_BYTES = 65536
_DIGITS = 32  # room for a number and the spaces before it
_REMEDY = "is a procfs mounted there, and does path.procfs name it?"


def read(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file of /proc or /sys.

    Raises:
        OSError: The file is missing or cannot be read; the error has the path.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = [os.read(descriptor, _BYTES)]
        # The kernel reports a size of 0 for such files and may return a part of one: only an empty read is the end.
        while parts[-1]:
            parts.append(os.read(descriptor, _BYTES))
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    finally:
        os.close(descriptor)
    return b"".join(parts)


def read_base(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file of /proc that every kernel has: without procfs, or a wrong path.procfs, it is missing.

    Raises:
        OSError: The file is missing or cannot be read; the error has the path and what to check.
    """
    try:
        return read(path)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; {_REMEDY}", os.fspath(path)) from error


def number(data: bytes, name: bytes, path: str | os.PathLike[str]) -> int | None:
    """Return the number that follows *name* at the beginning of a line of *data*; None without such a line.

    Args:
        data: The file's content.
        name: The field's name with its separator, such as ``pgfault `` or ``MemTotal:``.
        path: The file's path, for the error.

    Raises:
        ValueError: The word after the name is not a number; the error has the path and the word.
    """
    at = 0 if data.startswith(name) else data.find(b"\n" + name)
    if at < 0:
        return None
    begin = data.index(name, at) + len(name)
    word = data[begin : begin + _DIGITS].partition(b"\n")[0].strip().partition(b" ")[0]
    try:
        return int(word)
    except ValueError as error:
        raise not_a_number(path, name.decode().rstrip(" :") or "its first word", word) from error


def fields(
    data: bytes, wanted: Sequence[tuple[bytes, Metric]], path: str | os.PathLike[str], scale: int = 1
) -> list[Sample]:
    """Return one sample per field that the file has.

    Args:
        data: The file's content.
        wanted: The name of each field, as `number` accepts it, with its family.
        path: The file's path, for the error.
        scale: Factor from the file's unit to the family's.

    Raises:
        ValueError: The file has none of the fields, or one is not a number.
    """
    values = [(metric, value) for name, metric in wanted if (value := number(data, name, path)) is not None]
    if not values:
        raise no_field(path, (name.decode().rstrip(" :") for name, _ in wanted))
    return [Sample(metric, (), value * scale) for metric, value in values]


def no_field(path: str | os.PathLike[str], names: Iterable[str]) -> ValueError:
    """Return the error for a file that has none of the fields *names*."""
    return ValueError(f"{os.fspath(path)} has no {' nor '.join(names)}; {_REMEDY}")


def not_a_number(path: str | os.PathLike[str], subject: str, word: bytes) -> ValueError:
    """Return the error for a *word* in place of the number that *subject* names."""
    return ValueError(f"{os.fspath(path)}: {subject} is {word.decode(errors='replace')!r}, not a number; {_REMEDY}")
