"""Keep undelivered messages on disk, where they outlive the process.

A session's spool is some segment files ``SESSION.NUMBER.spool`` and a file ``SESSION.lock`` next to them. The session's
process has the lock (flock) while it lives; any process that acquires it may read and delete the segments. A segment is
`MAGIC` and records: first the machine's id and the session's hello, then the numbered messages::

    u32 length of the payload | u32 CRC-32 of it | u64 first | u64 number | u32 pushed values | msgpack [frame, …]

A record that is damaged costs only itself: the next one is found by the beginning of its first frame. A segment that had to go
is replaced by one with nothing but the skip of its messages.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import msgspec

from trackside.environment.paths import machine_id, open_regular, spool_directory
from trackside.limits import IN_FLIGHT
from trackside.os_errors import os_error_text
from trackside.transport.kept_rows import with_kept_rows
from trackside.transport.spool_access import acquire_lock, share
from trackside.wire import MESSAGE_BYTES, WireError, decode_body, open_envelope

Steps = tuple[int, int] | None


PENDING_BYTES = 16 * 1024 * 1024  # limit of messages in memory
SEGMENT_BYTES = 4 * 1024 * 1024
# Limit of all spools in one directory; above it the oldest segments go, except for messages that were sent.
SPOOL_BYTES = 256 * 1024 * 1024
SEARCH_BYTES = SEGMENT_BYTES + 2 * MESSAGE_BYTES  # how far the next record is searched behind a damaged one


class SpoolLimits(NamedTuple):
    """Limits of the messages that a session keeps.

    Attributes:
        pending_bytes: See `PENDING_BYTES`, and so on.
        stuck_seconds: Wait for an acknowledgement after which messages are also written to the spool.
        offline_seconds: The same while no daemon has answered the hello. A message that is made with the first hello waits.
    """

    pending_bytes: int = PENDING_BYTES
    window: int = IN_FLIGHT
    segment_bytes: int = SEGMENT_BYTES
    spool_bytes: int = SPOOL_BYTES
    stuck_seconds: float = 1.0
    offline_seconds: float = 0.1


LIMITS = SpoolLimits()

MAGIC = b"trackside spool 1\n"
ONLY = "0.spool"  # end of the name of the file of a `KeptSpool`
FRAMES = 3  # frames of a message

_HEADER = Struct("<IIQQI")
_PAYLOAD = 3  # bytes of a payload before its first frame: an array of three, and that frame's length
_FRAME = b"trackside/"  # begin of the first frame of each message
_BUSY = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))  # failures to open a file that soon may pass
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode


class SpooledMessage(NamedTuple):
    """A message in a segment.

    Attributes:
        first: Lowest sequence number that it covers; 0 for the hello.
        number: Highest sequence number that it covers; 0 for the hello.
        values: Number of pushed values in it.
        frames: Its frames.
    """

    first: int
    number: int
    values: int
    frames: list[bytes]


class Segment:
    """A file of a spool, with its first and last sequence number, and its size in bytes.

    Attributes:
        values: Number of pushed values in it, or of those that were in it.
        steps: Their lowest and highest step; None if that is unknown.
        is_hole: The messages had to go: it only has a skip.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.first = self.last = self.size = self.values = 0
        self.steps: Steps = None
        self.is_hole = False


class Spool:
    """The spool of one session, written and read by one process alone.

    Args:
        session: Id of the session.
        directory: Directory of the files; None for `trackside.environment.paths.spool_directory`.
        limits: See `SpoolLimits`.

    Attributes:
        failure: Why the last write failed; empty if it succeeded.
        damage: What could not be read, by file and place, each as a part of a log line.
        lost: Number of values, as far as it is known, in the damaged records before the one that was read last.
        discarded: Number of segments of ended processes that were deleted to make room.
        user: The user of the lock of an ended process; segments of other users are not read. None if the process lives.
    """

    def __init__(self, session: bytes, directory: Path | None = None, limits: SpoolLimits = LIMITS) -> None:
        self.limits = limits
        self.failure = ""
        self.damage: dict[tuple[Path, int], str] = {}
        self.lost = self.discarded = 0
        self.user: int | None = None
        self._session, self._name = session, session.hex()
        self._directory = directory
        self._segments: deque[Segment] = deque()
        self._lock = self._file = -1
        self._begun = False
        self._reader: SegmentReader | None = None
        self._kept: KeptSpool | None = None
        self._kept_in: Path | None = None

    @property
    def lock_path(self) -> Path:
        """Path of its lock, once its directory is known. A session that was killed may have a second spool (`keep`)."""
        return self._path("lock")

    @property
    def last(self) -> int:
        """Highest sequence number in it; 0 if it is empty."""
        return self._segments[-1].last if self._segments else 0

    def restore(self, lock: int) -> None:
        """Read the segments of an ended process; *lock* is the descriptor of their lock.

        Raises:
            OSError: Too few file descriptors are free.
        """
        self._lock = lock
        self.user = os.fstat(lock).st_uid
        for path in sorted(self._files()):
            segment = Segment(path)
            segment.last = self.last
            reader = self._read(path)
            for record in reader or ():
                segment.first = segment.first or record.first
                segment.last = max(segment.last, record.number)
                segment.values += record.values
            self._segments.append(segment)

    def append(self, record: SpooledMessage, hello: Callable[[], list[bytes]], steps: Steps = None) -> bool:
        """Append a message with a higher number than all before; return False and set `failure` if that fails.

        Args:
            record: The message.
            hello: Returns the session's hello, for the head of a new segment.
            steps: Lowest and highest step in it.
        """
        try:
            if self._file < 0 or self._segments[-1].size >= self.limits.segment_bytes:
                self._begin(record.number, hello)
            self._write_record(record)
        except (OSError, LookupError) as error:  # LookupError: the user has no home
            reason = os_error_text(error)
            self.failure = f"{self._directory}: {reason}" if self._directory else reason
            return False
        segment = self._segments[-1]
        segment.first = segment.first or record.first
        segment.last = record.number
        segment.values += record.values
        segment.steps = spanned(segment.steps, steps)
        self.failure = ""
        return True

    def keep(self, records: Iterable[SpooledMessage], hello: list[bytes], directory: Path) -> None:
        """Write what may not arrive if the process is killed now, in place of what the last call wrote.

        Args:
            records: Messages in order. The last one may be the first part of a message that is sent later under its number,
                and may have a frame more, with rows that follow (`kept_rows`).
            hello: The session's hello; the file begins anew with another one.
            directory: Directory of its file, which is a spool of its own and goes with `close`.

        Raises:
            OSError: It cannot be written.
        """
        if self._kept is None or self._kept_in != directory:
            self.end_keep()
            self._kept, self._kept_in = KeptSpool(self._session, directory), directory
        self._kept.overwrite(records, hello)

    def end_keep(self, *, forked: bool = False) -> None:
        """Delete what `keep` wrote: the spool has more now. In a *forked* child, close the copies of its descriptors."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close(forked=forked)

    def replace_last(self, record: SpooledMessage) -> None:
        """Write the last message of an ended process, in place of one of its number.

        Raises:
            OSError: It cannot be written.
        """
        path = self._segments[-1].path
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            reader = SegmentReader(path)
            next((each for each in reader if each.number == record.number), None)
            os.ftruncate(file, reader.place)  # without the zeros at the end of a kept one, behind which nothing is read
            _write(file, _record(record))
        finally:
            os.close(file)

    def next_after(self, number: int) -> SpooledMessage | None:
        """Return the message that follows *number*, or None. Calls with growing numbers read each segment once."""
        while True:
            segment = next((each for each in self._segments if each.last > number), None)
            if segment is None:
                return None
            try:
                if self._reader is None or self._reader.path != segment.path or self._reader.number > number:
                    self._reader = self._read(segment.path)
                record = None if self._reader is None else self._reader.next()
            except OSError:  # the next turn may have a file descriptor for it, or an answer of the disk
                self._reader = None
                return None
            self.lost = 0 if self._reader is None else self._reader.lost
            if record is None:  # it was deleted or cut: what follows goes to another one
                segment.last, segment.size = min(segment.last, number), self.limits.segment_bytes
            elif record.number > number:
                return record

    def acknowledged(self, number: int) -> None:
        """Delete the segments whose messages are all committed, up to *number*."""
        while self._segments and self._segments[0].last <= number:
            self._remove(self._segments.popleft())

    def drop_excess(self, sent: int) -> tuple[Segment, int] | None:
        """Delete the oldest segment that may go, if a new one has begun and the directory is above its limit.

        Args:
            sent: Messages up to this number were sent, and may have arrived; their segments stay.

        Returns:
            The hole, with those next to it, for `write_hole`; and the number of values that are lost now. None if none goes.
        """
        # Once for each segment, since `_make_room` lists the directory.
        if not self._begun or self._directory is None:
            return None
        # The last one is open for writing.
        spare = next((each for each in list(self._segments)[:-1] if each.first > sent and not each.is_hole), None)
        try:
            must_go = self._make_room(spare)
        except OSError:  # the directory cannot be listed now; the next message tries again
            return None
        self._begun = False
        if not must_go or spare is None:
            return None
        lost = spare.values
        before = next((each for each in self._segments if each.is_hole and each.last + 1 == spare.first), None)
        self._segments.remove(spare)
        self._remove(spare)
        if before is None:
            before = Segment(spare.path)
            before.first, before.is_hole = spare.first, True
        else:
            self._segments.remove(before)
        before.last, before.steps = spare.last, spanned(before.steps, spare.steps)
        before.values += lost
        return before, lost

    def write_hole(self, hole: Segment, skip: list[bytes], hello: Callable[[], list[bytes]]) -> None:
        """Write what is known of a hole, for the process that reads the spool; without room the hole remains unexplained."""
        with suppress(OSError):
            hole.path.unlink(missing_ok=True)
            file, _ = self._create(hole.path, hello)
            try:
                _write(file, _record(SpooledMessage(hole.first, hole.last, 0, skip)))
            finally:
                _close(file)
            self._segments.insert(sum(each.last < hole.first for each in self._segments), hole)

    def close(self, *, forked: bool = False) -> None:
        """Close the files and release the lock; another process may send what is left. Delete an empty spool.

        In a *forked* child only its copies of the descriptors are closed: the lock must not outlive the parent.
        """
        self.end_keep(forked=forked)
        file, lock = self._file, self._lock
        self._file = self._lock = -1  # first, so that no descriptor is closed twice: its number may be reused
        self._reader = None
        with suppress(OSError):
            if lock >= 0 and not forked and not self._segments:
                self.lock_path.unlink()  # before it is released, or another process could have locked it by then
        for descriptor in (file, lock):
            if descriptor >= 0:
                _close(descriptor)  # closed already, if the fork happened within this method

    def _begin(self, number: int, hello: Callable[[], list[bytes]]) -> None:
        """Open the next segment, and write its head."""
        self._prepare()
        path = self._path(f"{number:016d}.spool")  # padded, so that the names sort by number
        file, size = self._create(path, hello)
        segment = Segment(path)
        segment.last, segment.size = self.last, size  # so that `last` does not fall while it is empty
        self._segments.append(segment)
        self._begun = True
        # Closed only now: if the new segment cannot begin, the old one is still open.
        before, self._file = self._file, file
        if before >= 0:
            _close(before)

    def _prepare(self) -> None:
        """Choose the directory, and acquire the lock."""
        self._directory = self._directory or spool_directory(os.environ, os.getuid())
        if self._lock < 0:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = acquire_lock(self.lock_path)

    def _create(self, path: Path, hello: Callable[[], list[bytes]], *, append: bool = True) -> tuple[int, int]:
        """Create a segment with its head; return its descriptor and size."""
        assert self._directory is not None  # noqa: S101  chosen before
        # O_APPEND: after a half record was truncated, the next one must begin at the new end.
        # O_NOFOLLOW: in a shared directory another user could have put a link there.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_APPEND if append else 0)
        file = os.open(path, flags, 0o600)
        try:
            share(file, self._directory)
            head = MAGIC + _record(SpooledMessage(0, 0, 0, [machine_id().encode(), *hello()]))
            _write(file, head)
        except OSError:
            _close(file)
            path.unlink(missing_ok=True)
            raise
        return file, len(head)

    def _write_record(self, record: SpooledMessage) -> None:
        data, segment = _record(record), self._segments[-1]
        try:
            _write(self._file, data)
        except OSError:
            os.ftruncate(self._file, segment.size)  # a half record would end the segment for its readers
            raise
        segment.size += len(data)

    def _remove(self, segment: Segment) -> None:
        if self._reader is not None and self._reader.path == segment.path:
            self._reader = None
        if not self._segments and self._file >= 0:  # it was the segment that is written
            file, self._file = self._file, -1
            _close(file)
        with suppress(OSError):
            segment.path.unlink()

    def _make_room(self, spare: Segment | None) -> bool:
        """Delete older segments of ended processes, and return whether the spare segment must go too."""
        assert self._directory is not None  # noqa: S101  there are segments
        files = []
        with os.scandir(self._directory) as entries:  # several times faster than `Path.glob`: there may be thousands
            for entry in entries:
                if entry.name.endswith(".spool"):
                    with suppress(OSError):
                        status = entry.stat()
                        files.append((status.st_mtime_ns, entry.path, status.st_size))
        # The new segment is still to be filled.
        excess = sum(size for _, _, size in files) + self.limits.segment_bytes - self.limits.spool_bytes
        if excess <= 0:
            return False
        for _, name, size in sorted(files):
            path = Path(name)
            if excess <= 0:
                return False
            if spare is not None and path == spare.path:
                return True
            if not path.name.startswith(self._name) and _discard(path):
                self.discarded += 1
                excess -= size
        return excess > 0

    def _read(self, path: Path) -> SegmentReader | None:
        """Return a reader of a segment; None if there is nothing to read any more, or if it is another user's.

        Raises:
            OSError: Too few file descriptors are free.
        """
        try:
            reader = SegmentReader(path, self.damage)
        except ValueError:
            return None
        except OSError as error:
            if error.errno in _BUSY:
                raise
            return None
        return reader if self.user in {None, reader.user} else None

    def _files(self) -> Iterator[Path]:
        assert self._directory is not None  # noqa: S101  chosen before
        return self._directory.glob(f"{self._name}.*.spool")

    def _path(self, end: str) -> Path:
        assert self._directory is not None  # noqa: S101  chosen before any path is made
        return self._directory / f"{self._name}.{end}"


class KeptSpool(Spool):
    """A spool of one file, which its process writes again and again, and which is there only if the process is killed."""

    _head: list[bytes] | None = None
    _head_size = _size = 0

    def overwrite(self, records: Iterable[SpooledMessage], hello: list[bytes]) -> None:
        """Write messages in place of those of the last call: see `Spool.keep`."""
        if self._head is not hello:
            self._delete()
            self._prepare()
            self._file, self._head_size = self._create(self._path(ONLY), lambda: hello, append=False)
            self._head, self._size = hello, 0
        # Zeros over the rest of what was longer, since to cut it takes longer than all else here.
        data = b"".join(map(_record, records)).ljust(self._size, b"\0")
        self._size = os.pwrite(self._file, data, self._head_size)

    def close(self, *, forked: bool = False) -> None:
        """Delete the file and release the lock; in a *forked* child close the copies of the descriptors."""
        if not forked:
            self._delete()
        super().close(forked=forked)

    def _delete(self) -> None:
        file, self._file, self._head = self._file, -1, None
        if file >= 0:
            _close(file)
            with suppress(OSError):
                self._path(ONLY).unlink()


class SegmentReader:
    """Reads the records of a segment that are intact.

    Args:
        path: The file.
        damage: Gets what cannot be read, as `Spool.damage` has it.

    Attributes:
        machine: Id of the machine that wrote it; empty if its head is damaged.
        user: The owner of the file.
        hello: The session's hello, as frames; empty if its head is damaged.
        number: Sequence number of the last record that `next` returned; *place* is where it begins, or the end after that.
        lost: Number of values, as far as it is known, in the damaged records before that one.

    Raises:
        OSError: It cannot be opened.
        ValueError: It is not a segment.
    """

    def __init__(self, path: Path, damage: dict[tuple[Path, int], str] | None = None) -> None:
        self.path = path
        self.number = self.lost = self.place = 0
        self._damage = {} if damage is None else damage
        self._file = open_regular(path)
        self.user = os.fstat(self._file.fileno()).st_uid
        head = self._record() if self._file.read(len(MAGIC)) == MAGIC else None
        self.machine, self.hello = "", list[bytes]()
        if head is not None and len(head.frames) == FRAMES + 1:
            self.machine, self.hello = head.frames[0].decode(errors="replace"), head.frames[1:]
        elif (found := self._search(len(MAGIC))) is not None:
            self._file.seek(found)
            self._damage.setdefault((path, 0), f"the head of {path} is damaged; the messages behind it are read")
        else:
            self._file.close()
            raise ValueError(f"{path} is not a segment of a spool")

    def next(self) -> SpooledMessage | None:
        """Return the next record; None at the end.

        Raises:
            OSError: The disk does not answer; it may do so later.
        """
        self.lost = 0
        while True:
            self.place = start = self._file.tell()
            header = self._file.read(_HEADER.size)
            if not header.strip(b"\0"):
                return None
            self._file.seek(start)
            if (record := self._message()) is not None:
                self.number = record.number
                return record
            found = self._search(start)
            if found is None:
                place = f"the end of {self.path} is torn from byte {start} on, and is left out"
                self._damage.setdefault((self.path, start), place)
                self.place = self._file.seek(0, os.SEEK_END)
                return None
            # The length of the record was right if the next one follows it.
            length, _, _, _, values = _HEADER.unpack(header)
            values = values if start + _HEADER.size + length == found else 0
            self.lost += values
            place = f"{self.path} is damaged at byte {start}: {values or 'some'} values are left out, and what follows is read"
            self._damage.setdefault((self.path, start), place)
            self._file.seek(found)

    def _search(self, start: int) -> int | None:
        """Return where the next intact message begins behind a damaged record at *start*; None if there is none."""
        self._file.seek(start)
        data = self._file.read(SEARCH_BYTES)
        left = 4 * SEARCH_BYTES  # a forged file must not keep this busy
        at = _HEADER.size + _PAYLOAD
        while left > 0 and (at := data.find(_FRAME, at + 1)) >= 0:
            place = start + at - _HEADER.size - _PAYLOAD
            self._file.seek(place)
            if self._message() is not None:
                return place
            left -= self._file.tell() - place
        return None

    def _message(self) -> SpooledMessage | None:
        """Return the message here, with its numbers as its own envelope has them, which the checksum covers; None if it is damaged."""
        record = self._record()
        with suppress(WireError):
            if record is not None and len(record.frames) in {FRAMES, FRAMES + 1}:
                envelope = open_envelope(record.frames[:FRAMES])
                first = decode_body("skip", record.frames[2]).first if envelope.kind == "skip" else envelope.number
                if self.number < envelope.number >= first:
                    frames = record.frames if len(record.frames) == FRAMES else with_kept_rows(record.frames)
                    return record._replace(first=first, number=envelope.number, frames=frames)
        return None

    def _record(self) -> SpooledMessage | None:
        header = self._file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return None
        length, checksum, first, number, values = _HEADER.unpack(header)
        # A damaged length must not make this read gigabytes.
        payload = self._file.read(length) if length <= 2 * MESSAGE_BYTES else b""
        if len(payload) == length and crc32(payload) == checksum:
            with suppress(msgspec.MsgspecError):
                return SpooledMessage(first, number, values, _decode(payload))
        return None

    def __iter__(self) -> Iterator[SpooledMessage]:
        while (record := self.next()) is not None:
            yield record

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()


def spool_location() -> str:
    """Return where this process spools, as a part of a log line."""
    try:
        return f" in {spool_directory(os.environ, os.getuid())}, {SPOOL_BYTES // 2**20} MiB at most"
    except LookupError as error:
        return f" in memory, the newest 16 MiB of it, since {error}"


def _discard(path: Path) -> bool:
    """Delete a segment of another session, if its process has ended; return whether it was deleted."""
    lock = path.with_name(path.name.partition(".")[0] + ".lock")
    try:
        descriptor = acquire_lock(lock)
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
        os.close(descriptor)
    return True


def _record(record: SpooledMessage) -> bytes:
    payload = _encode(record.frames)
    return _HEADER.pack(len(payload), crc32(payload), record.first, record.number, record.values) + payload


def spanned(one: Steps, other: Steps) -> Steps:
    """Return the lowest and the highest step of two spans."""
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


def _write(file: int, data: bytes) -> None:
    """Write all of *data*.

    Raises:
        OSError: The disk is full, also after a part of it.
    """
    # Without fsync: the page cache outlives the process, and that is what a spool is for.
    if os.write(file, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _close(file: int) -> None:
    with suppress(OSError):  # a network file system reports here what it could not write
        os.close(file)
