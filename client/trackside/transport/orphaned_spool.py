"""Find spools whose processes have ended, so that the daemon, a later client or a command can send them."""

import errno
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from trackside.environment.paths import spool_directories
from trackside.transport.outbox import Outbox
from trackside.transport.spool import SegmentReader, Spool, SpooledMessage
from trackside.transport.spool_access import acquire_lock
from trackside.wire import Bye, Clock, Envelope, Hello, Pushes, Skip, WireError, decode_body, encode, open_envelope


class OrphanedSession(Outbox):
    """The session of an ended process, with its unacknowledged messages.

    Args:
        spool: The spool, whose lock this process has.
        hello: The session's hello, as frames.

    Attributes:
        name: Name of its run.

    Raises:
        WireError: The hello cannot be read.
    """

    def __init__(self, spool: Spool, hello: list[bytes]) -> None:
        envelope = open_envelope(hello)
        body: Hello = decode_body("hello", hello[2])
        super().__init__(envelope.session, spool)
        self.ended = True
        self.name = body.identity.name
        self.totals = body.totals
        self._acked = body.acked
        self._hello = encode(envelope, replace(body, late=True))

    def restore(self, lock: int) -> None:
        """Read its files, without the messages whose acknowledgement its process had received."""
        self.spool.restore(lock)
        self.spool.acknowledged(self._acked)

    def conclude(self, clock: Clock, end: Callable[[Bye | None], tuple[str, str]]) -> None:
        """Write how its process ended, for a daemon that did not see it.

        Args:
            clock: The present moment.
            end: Returns state and cause of the end by the session's own bye, if it has written one.

        Raises:
            OSError: It cannot be written.
            WireError: Its last message cannot be read.
        """
        number = self.spool.last
        last = self.spool.next_after(number - 1) if number > self._acked else None
        if last is None:
            return
        envelope = open_envelope(last.frames)
        body: Pushes | Skip | Bye = decode_body(envelope.kind, last.frames[2])
        bye = body if isinstance(body, Bye) else None
        state, cause = end(bye)
        if bye is None or (state, cause) != (bye.status, bye.cause):
            number += bye is None
            message = Bye(clock if bye is None else bye.clock, body.totals, state, cause)
            self.spool.replace_last(
                SpooledMessage(number, number, 0, encode(Envelope("bye", self.id, number), message))
            )

    def hello(self, clock: Clock) -> list[bytes]:  # noqa: ARG002  it has the clock of the process
        """Return the hello of its process, marked as late."""
        return self._hello


def orphaned_sessions(
    directories: Iterable[Path], machine: str | None, exclude: Container[Path] = frozenset()
) -> Iterator[OrphanedSession]:
    """Yield the sessions of ended processes in some directories, oldest first, each with its lock acquired.

    Args:
        directories: Directories to search; one that does not exist is skipped.
        machine: Id of the machine that wrote the spools; None for all.
        exclude: Locks whose sessions are skipped.
    """
    for lock, files in _spools(directories):
        if lock not in exclude:
            with suppress(OSError, ValueError):
                if (orphan := _open(lock, files, machine)) is not None:
                    yield orphan


def orphaned_hellos(
    directories: Iterable[Path], machine: str | None, *, locked: bool = False
) -> Iterator[tuple[bytes, Hello, int]]:
    """Yield the sessions of ended processes in some directories with their hellos and users, oldest first.

    With *locked* also those that are being read, or whose processes live.
    """
    for lock, files in _spools(directories):
        with suppress(OSError, ValueError):
            reader = _first(lock, files)
            if machine in {None, reader.machine}:
                if not locked:
                    os.close(_acquire(lock, reader))  # fails, and so skips the spool, while its process lives
                yield bytes.fromhex(lock.stem), decode_body("hello", reader.hello[2]), reader.user


def _spools(directories: Iterable[Path]) -> Iterator[tuple[Path, list[Path]]]:
    """Yield the lock and the segments of each spool; a directory that cannot be read has none."""
    for directory in directories:
        files = []
        with suppress(OSError):
            for path in directory.glob("*.spool"):
                with suppress(OSError):
                    files.append((path.stat().st_mtime_ns, path))
        spools: dict[str, list[Path]] = {}
        for _, path in sorted(files):
            spools.setdefault(path.name.partition(".")[0], []).append(path)
        for name, segments in spools.items():
            if re.fullmatch("[0-9a-f]{32}", name):
                yield directory / f"{name}.lock", segments


def unreadable_spools(endpoint: str) -> tuple[Path, ...]:
    """Return this user's spools if the daemon at *endpoint* belongs to another user or machine and cannot read them."""
    try:
        if endpoint.startswith("ipc://") and Path(endpoint.removeprefix("ipc://")).stat().st_uid == os.getuid():
            return ()
        return tuple(spool_directories(os.environ, os.getuid()))
    except (OSError, LookupError):
        return ()


def _open(lock: Path, files: Iterable[Path], machine: str | None) -> OrphanedSession | None:
    """Return the session of a lock and its segments; None if another machine wrote it.

    Raises:
        OSError: Its process has the lock, or it cannot be read.
        ValueError: It is not a spool.
    """
    # The machine comes first: on a shared home the locks of another machine's spools are left alone.
    reader = _first(lock, files)
    if machine is not None and reader.machine != machine:
        return None
    descriptor = _acquire(lock, reader)
    spool = Spool(bytes.fromhex(lock.stem), lock.parent)
    try:
        orphan = OrphanedSession(spool, reader.hello)
        if orphan.id.hex() != lock.stem:
            raise WireError("envelope", f"{reader.path} is of another session")  # noqa: TRY301  the lock is closed below
        orphan.restore(descriptor)
        return orphan
    except (OSError, WireError):
        os.close(descriptor)
        raise


def _first(lock: Path, files: Iterable[Path]) -> SegmentReader:
    """Return a reader of a session's first segment whose head is intact, of the user who made its lock.

    In a shared directory others can add files of that name. They cannot replace the lock, which the process makes first.
    """
    user = lock.lstat().st_uid if lock.exists() else os.geteuid()  # that makes it now
    for path in sorted(path for path in files if path.lstat().st_uid == user):
        with suppress(ValueError):  # the next one may be a segment
            if (reader := SegmentReader(path)).hello:
                return reader
    raise ValueError(f"{lock} has no segment with a hello")


def _acquire(lock: Path, first: SegmentReader) -> int:
    """Acquire the lock of a session, and return its descriptor.

    Raises:
        OSError: Its process has the lock, or the files have been replaced by another user's.
    """
    descriptor = acquire_lock(lock)
    if os.fstat(descriptor).st_uid != first.user:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "the lock is another user's", str(first.path))
    return descriptor
