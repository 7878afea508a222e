"""Spools whose processes are gone, sent by whoever finds them and may: the daemon, a later client, a command."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from trackside.transport.outbox import Outbox
from trackside.transport.paths import spool_directories
from trackside.transport.spool import Reader, Spool, hold
from trackside.wire import Hello, WireError, decode_body, encode, open_envelope

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from trackside.wire import Clock


class OrphanedSession(Outbox):
    """A session of a process that is gone, with all that it had to say.

    Args:
        spool: Held by this process now.
        hello: The session's, as frames.

    Attributes:
        name: Of its run.

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

    def adopt(self, lock: int) -> None:
        """Take over its files, but for what its process had heard acknowledged."""
        self.spool.adopt(lock)
        self.spool.acknowledged(self._acked)

    def hello(self, clock: Clock) -> list[bytes]:  # noqa: ARG002  it was said long ago
        """What its process would say, but that it is late."""
        return self._hello


def leftovers(
    directories: Iterable[Path], machine: str | None, but: Container[bytes] = frozenset()
) -> Iterator[OrphanedSession]:
    """The sessions in some directories whose processes are gone, each held until it is sent; the oldest first.

    Args:
        directories: Where to look; one that is not there is none.
        machine: Only what this machine has written; None for all.
        but: Sessions that are left alone.
    """
    for directory, name, session in _named(directories):
        if session not in but:
            with suppress(OSError, ValueError):
                if (found := _take(directory, name, machine)) is not None:
                    yield found


def heads(directories: Iterable[Path], machine: str | None) -> Iterator[tuple[bytes, Hello]]:
    """The sessions of which some directories have spools, their processes being gone, and their hellos; oldest first."""
    for directory, name, session in _named(directories):
        with suppress(OSError, ValueError):
            os.close(hold(directory / f"{name}.lock"))
            reader = Reader(min(directory.glob(f"{name}.*.spool")))
            if machine in {None, reader.machine}:
                yield session, decode_body("hello", reader.hello[2])


def _named(directories: Iterable[Path]) -> Iterator[tuple[Path, str, bytes]]:
    """The directory, name and session of each spool; a place that cannot be looked into has none."""
    for directory in directories:
        files = []
        with suppress(OSError):
            for path in directory.glob("*.spool"):
                with suppress(OSError):
                    files.append((path.stat().st_mtime_ns, path))
        for name in dict.fromkeys(path.name.partition(".")[0] for _, path in sorted(files)):
            if re.fullmatch("[0-9a-f]{32}", name):
                yield directory, name, bytes.fromhex(name)


def unread(endpoint: str) -> tuple[Path, ...]:
    """This user's own spool, when the daemon at an *endpoint* cannot read it, being another user's or machine's."""
    try:
        if endpoint.startswith("ipc://") and Path(endpoint.removeprefix("ipc://")).stat().st_uid == os.getuid():
            return ()
        return tuple(spool_directories(os.environ, os.getuid()))
    except (OSError, LookupError):
        return ()


def _take(directory: Path, name: str, machine: str | None) -> OrphanedSession | None:
    """The leftover of this name, when it is of that machine and its process is gone.

    Raises:
        OSError: It is held by its process, or cannot be read.
        ValueError: It is no spool.
    """
    first = min(directory.glob(f"{name}.*.spool"))
    reader = Reader(first)
    if machine is not None and reader.machine != machine:
        return None
    lock = hold(directory / f"{name}.lock")
    spool = Spool(bytes.fromhex(name), directory)
    try:
        found = OrphanedSession(spool, reader.hello)
        if found.id.hex() != name:
            raise WireError("envelope", f"{first} is of another session")  # noqa: TRY301  let go of below
        found.adopt(lock)
        return found
    except (OSError, WireError):
        os.close(lock)
        raise
