"""Records of client sessions, as ingest makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.model.columns import Columns, decode
from trackside_daemon.model.records import BatchIngested, SessionOpened
from trackside_daemon.model.session import SessionRef, process_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackside.wire import Block, Hello


_opened: dict[bytes, SessionRef] = {}
"""The last reference of each session that a test has opened."""


def reference(session: bytes, hello: Hello, name: str, attempt: int) -> SessionRef:
    """Return the reference of a session that has sent this hello."""
    identity = hello.identity
    return SessionRef(session, identity.run, name, attempt, identity.rank, process_of(identity), hello.late)


def session_opened(
    session: bytes,
    hello: Hello,
    name: str,
    attempt: int,
    time: float,
    *,
    offset: float = 0.0,
    about: Mapping[str, Any] | None = None,
) -> SessionOpened:
    """Return the record of a hello that arrived at *time*."""
    _opened[session] = reference(session, hello, name, attempt)
    return SessionOpened(_opened[session], hello, time, offset, about)


def batch_ingested(
    session: bytes | SessionRef,
    number: int,
    blocks: Sequence[Block | Columns] = (),
    shift: int = 0,
    *more: Any,
    **named: Any,
) -> BatchIngested:
    """Return the record of a batch with these blocks, of a session by its id; *more* are further fields."""
    ref = _opened.get(session, SessionRef(session)) if isinstance(session, bytes) else session
    columns = [column for block in blocks for column in ([block] if isinstance(block, Columns) else decode([block]))]
    return BatchIngested(ref, number, columns, shift, *more, **named)
