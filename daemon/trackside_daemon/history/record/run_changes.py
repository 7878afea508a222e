"""Changes to runs that a user asks for; run each with `Writer.call`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trackside_daemon.history.record.store import Store


def pin(store: Store, uid: str, *, pinned: bool = True) -> bool:
    """Pin a run, which keeps its samples whatever the bounds are, or unpin it; return False if there is no such run."""
    changed = store.connection.execute(
        "UPDATE run SET pinned = ? WHERE uid = ? AND NOT deleted", (int(pinned), uid)
    ).rowcount
    return changed > 0


def delete(store: Store, uid: str, *, live: bool = True) -> bool:
    """Mark a run as deleted; return False if there is no such run.

    Readers no longer see it at once. `Trimming` removes its rows from the file step by step.

    Args:
        store: The store, in a transaction.
        uid: The run's id.
        live: Delete also a run that has not ended: a daemon that was killed leaves such runs.

    Raises:
        ValueError: The run has not ended, and *live* is false.
    """
    unended = "SELECT 1 FROM run WHERE uid = ? AND NOT deleted AND ended IS NULL"
    if not live and store.connection.execute(unended, (uid,)).fetchone():
        raise ValueError(f"run {uid!r} has not ended; it can be deleted when it has")
    changed = store.connection.execute("UPDATE run SET deleted = 1 WHERE uid = ? AND NOT deleted", (uid,)).rowcount
    return changed > 0
