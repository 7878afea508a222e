"""What people change of runs in the history: each is work for `Writer.call`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trackside_daemon.history.record.store import Store


def pin(store: Store, uid: str, *, pinned: bool = True) -> bool:
    """Keep a run's samples whatever the bounds are, or no longer; whether there is such a run."""
    changed = store.connection.execute(
        "UPDATE run SET pinned = ? WHERE uid = ? AND NOT deleted", (int(pinned), uid)
    ).rowcount
    return changed > 0


def delete(store: Store, uid: str, *, live: bool = True) -> bool:
    """Take a run away: for everybody who reads at once, from the file bit by bit; whether there was one.

    Args:
        store: In a transaction.
        uid: The run's id.
        live: Also one that has not ended: a daemon that was killed leaves such runs.

    Raises:
        ValueError: It has not ended, and is not to be deleted then.
    """
    unended = "SELECT 1 FROM run WHERE uid = ? AND NOT deleted AND ended IS NULL"
    if not live and store.connection.execute(unended, (uid,)).fetchone():
        raise ValueError(f"run {uid!r} has not ended; it can be deleted when it has")
    changed = store.connection.execute("UPDATE run SET deleted = 1 WHERE uid = ? AND NOT deleted", (uid,)).rowcount
    return changed > 0
