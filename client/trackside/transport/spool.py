"""What a session could not deliver yet, on disk, where it outlives its process.

A session's spool is some segment files ``SESSION.NUMBER.spool`` and a ``SESSION.lock`` beside them, which the session's
process holds under flock while it lives; whoever gets the lock may take the segments. A segment is `MAGIC` and records,
of which the first is the session's hello behind the machine's id, and each of the others a numbered message::

    u32 length of the payload | u32 CRC-32 of it | u64 first | u64 number | u32 pushed values | msgpack [frame, …]
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections import deque
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import msgspec

from trackside.transport.paths import machine_id, open_regular, spool_directory
from trackside.wire import MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SEGMENT_BYTES = 4 * 1024 * 1024
SPOOL_BYTES = 256 * 1024 * 1024
"""What all spools in one directory may take; then the oldest segments go."""

MAGIC = b"trackside spool 1\n"
FRAMES = 3
"""Of a message."""

_HEADER = Struct("<IIQQI")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode


class Record(NamedTuple):
    """A message as a segment has it.

    Attributes:
        first: The lowest number that it speaks for, and *number* the highest; both 0 for the hello.
        values: How many pushed values it holds.
    """

    first: int
    number: int
    values: int
    frames: list[bytes]


class Segment:
    """A file of a spool: the numbers that it holds, and its bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.first = self.last = self.size = 0


class Spool:
    """The spool of one session, written and read by its process alone.

    Args:
        session: Its id.
        directory: Where; None for `trackside.transport.paths.spool_directory`.

    Attributes:
        failure: Why nothing could be written last; empty when it could.
        torn: Segments of it, taken over, whose end could not be read.
        discarded: Segments of others, whose processes are gone, that had to make room for it.
    """

    def __init__(self, session: bytes, directory: Path | None = None) -> None:
        self.failure = ""
        self.torn = self.discarded = 0
        self._name = session.hex()
        self._directory = directory
        self._segments: deque[Segment] = deque()
        self._lock = self._file = -1
        self._begun = False
        self._reader: Reader | None = None

    @property
    def last(self) -> int:
        """The highest number that it holds; 0 when it is empty."""
        return self._segments[-1].last if self._segments else 0

    def adopt(self, lock: int) -> None:
        """Take over the segments that lie there, with the lock that was got for them."""
        self._lock = lock
        for path in sorted(self._files()):
            segment = Segment(path)
            segment.last = self.last
            with suppress(OSError, ValueError):
                reader = Reader(path)
                for record in reader:
                    segment.first = segment.first or record.first
                    segment.last = max(segment.last, record.number)
                self.torn += reader.torn
            self._segments.append(segment)

    def put(self, record: Record, hello: Callable[[], list[bytes]]) -> bool:
        """Append a message whose number is higher than all before; whether it could be, else `failure` says why.

        Args:
            record: The message.
            hello: Gives the session's hello, for the head of a new segment.
        """
        try:
            if self._file < 0 or self._segments[-1].size >= SEGMENT_BYTES:
                self._begin(record.number, hello)
            self._append(record)
        except (OSError, LookupError) as error:
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            self.failure = f"{self._directory}: {reason}" if self._directory else reason
            return False
        segment = self._segments[-1]
        segment.first = segment.first or record.first
        segment.last = record.number
        self.failure = ""
        return True

    def after(self, number: int) -> Record | None:
        """The message that follows *number*; None when there is none. It is cheap while *number* grows from call to call."""
        while True:
            segment = next((one for one in self._segments if one.last > number), None)
            if segment is None:
                return None
            if self._reader is None or self._reader.path != segment.path or self._reader.number > number:
                self._open(segment)
            record = None if self._reader is None else self._reader.next()
            if record is None:  # somebody has deleted or cut it
                segment.last = min(segment.last, number)
            elif record.number > number:
                return record

    def acknowledged(self, number: int) -> None:
        """Everything up to *number* is committed: the segments that hold nothing else go."""
        while self._segments and self._segments[0].last <= number:
            self._remove(self._segments.popleft())

    def drop_excess(self, read: int) -> int:
        """Delete the oldest segment that can go, when another has begun and the directory holds too much.

        Args:
            read: Up to this number messages are in memory; the segments that hold them stay.

        Returns:
            How many values are lost with it; what then is missing is bridged when it is come to.
        """
        begun, self._begun = self._begun, False
        if not begun or self._directory is None:
            return 0
        spare = next((one for one in list(self._segments)[:-1] if one.first > read), None)
        if not self._make_room(spare) or spare is None:
            return 0
        lost = 0
        with suppress(OSError, ValueError):
            lost = sum(record.values for record in Reader(spare.path))
        self._segments.remove(spare)
        self._remove(spare)
        return lost

    def close(self, *, forked: bool = False) -> None:
        """Let go of the files: what is left is for others. An empty spool is taken away.

        In a *forked* child only its copies of the descriptors are closed: the lock must not outlive the parent.
        """
        file, lock = self._file, self._lock
        self._file = self._lock = -1
        self._reader = None
        with suppress(OSError):
            if lock >= 0 and not forked and not self._segments:
                self._path("lock").unlink()
        for descriptor in (file, lock):
            if descriptor >= 0:
                with suppress(OSError):  # of a child that was forked in the midst
                    os.close(descriptor)

    def _begin(self, number: int, hello: Callable[[], list[bytes]]) -> None:
        """Open the next segment, and write its head."""
        self._directory = self._directory or spool_directory(os.environ, os.getuid())
        if self._lock < 0:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = hold(self._path("lock"))
        path = self._path(f"{number:016d}.spool")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(path, flags, 0o600)
        try:
            _share(file, self._directory)
            head = MAGIC + _record(Record(0, 0, 0, [machine_id().encode(), *hello()]))
            _write(file, head)
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        before, self._file = self._file, file
        if before >= 0:
            os.close(before)
        segment = Segment(path)
        segment.last, segment.size = self.last, len(head)
        self._segments.append(segment)
        self._begun = True

    def _append(self, record: Record) -> None:
        data, segment = _record(record), self._segments[-1]
        try:
            _write(self._file, data)
        except OSError:
            os.ftruncate(self._file, segment.size)  # a half record would end the segment for whoever reads it
            raise
        segment.size += len(data)

    def _open(self, segment: Segment) -> None:
        self._reader = None
        with suppress(OSError, ValueError):
            self._reader = Reader(segment.path)

    def _remove(self, segment: Segment) -> None:
        if self._reader is not None and self._reader.path == segment.path:
            self._reader = None
        if not self._segments and self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)
        with suppress(OSError):
            segment.path.unlink()

    def _make_room(self, spare: Segment | None) -> bool:
        """Whether the segment that can be spared has to go: what processes that are gone have left goes if it is older."""
        assert self._directory is not None  # noqa: S101  there are segments
        files = []
        for path in self._directory.glob("*.spool"):
            with suppress(OSError):
                status = path.stat()
                files.append((status.st_mtime_ns, path, status.st_size))
        excess = sum(size for _, _, size in files) - SPOOL_BYTES
        for _, path, size in sorted(files):
            if excess <= 0:
                return False
            if spare is not None and path == spare.path:
                return True
            if not path.name.startswith(self._name) and _discard(path):
                self.discarded += 1
                excess -= size
        return excess > 0

    def _files(self) -> Iterator[Path]:
        assert self._directory is not None  # noqa: S101  chosen before
        return self._directory.glob(f"{self._name}.*.spool")

    def _path(self, end: str) -> Path:
        assert self._directory is not None  # noqa: S101  chosen before any path is made
        return self._directory / f"{self._name}.{end}"


class Reader:
    """Reads a segment from its beginning to its end, or to the first record that is torn.

    Args:
        path: The file.

    Attributes:
        machine: The id of the machine that wrote it.
        hello: The session's hello, as frames.
        number: Of the last record that `next` gave.
        torn: A record could not be read; what is behind it is lost.

    Raises:
        OSError: It cannot be opened.
        ValueError: It is no segment.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0
        self.torn = False
        self._file = open_regular(path)
        head = self._record() if self._file.read(len(MAGIC)) == MAGIC else None
        if head is None or len(head.frames) != FRAMES + 1:
            self._file.close()
            raise ValueError(f"{path} is no segment of a spool")
        self.machine = head.frames[0].decode(errors="replace")
        self.hello = head.frames[1:]

    def next(self) -> Record | None:
        """The next record; None at the end."""
        start = self._file.tell()
        record = self._record()
        if record is not None and len(record.frames) == FRAMES and record.first <= record.number:
            self.number = record.number
            return record
        self.torn = self.torn or self._file.tell() > start
        self._file.seek(start)
        return None

    def _record(self) -> Record | None:
        header = self._file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return None
        length, checksum, first, number, values = _HEADER.unpack(header)
        payload = self._file.read(length) if length <= 2 * MESSAGE_BYTES else b""
        if len(payload) == length and crc32(payload) == checksum:
            with suppress(msgspec.MsgspecError):
                return Record(first, number, values, _decode(payload))
        return None

    def __iter__(self) -> Iterator[Record]:
        while (record := self.next()) is not None:
            yield record

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()


def where() -> str:
    """Where this process spools, in words."""
    try:
        return f" in {spool_directory(os.environ, os.getuid())}, {SPOOL_BYTES // 2**20} MiB at most"
    except LookupError as error:
        return f" in memory, the newest 16 MiB of it, since {error}"


def hold(path: Path) -> int:
    """Take a session's lock: the descriptor that holds it.

    Raises:
        BlockingIOError: Another process has it.
        OSError: It cannot be opened.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        file = os.open(
            path, flags
        )  # with O_CREAT another user's is refused in a sticky directory (fs.protected_regular)
    except FileNotFoundError:
        file = os.open(path, flags | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _share(file, path.parent)
    except OSError:
        os.close(file)
        raise
    return file


def _share(file: int, directory: Path) -> None:
    """In a directory that is made to be shared (setgid and sticky), whoever is in its group may take the file."""
    shared = stat.S_ISGID | stat.S_ISVTX
    if directory.stat().st_mode & shared == shared and os.fstat(file).st_uid == os.geteuid():
        os.fchmod(file, 0o660)


def _discard(path: Path) -> bool:
    """Delete a segment of another session whose process is gone; whether it was."""
    lock = path.with_name(path.name.partition(".")[0] + ".lock")
    try:
        held = hold(lock)
    except OSError:
        return False
    try:
        path.unlink()
    except OSError:
        return False
    finally:
        if next(lock.parent.glob(f"{lock.stem}.*.spool"), None) is None:
            with suppress(OSError):
                lock.unlink()
        os.close(held)
    return True


def _record(record: Record) -> bytes:
    payload = _encode(record.frames)
    return _HEADER.pack(len(payload), crc32(payload), record.first, record.number, record.values) + payload


def _write(file: int, data: bytes) -> None:
    """Write all of it, which a disk that is nearly full may not take.

    Raises:
        OSError: It does not.
    """
    if os.write(file, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
