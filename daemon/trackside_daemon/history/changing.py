"""What people change of runs in the history: each is work for `Writer.call`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trackside_daemon.history.store import Store


def pin(store: Store, uid: str, *, pinned: bool = True) -> bool:
    """Keep a run's samples whatever the bounds are, or no longer; whether there is such a run."""
    changed = store.connection.execute(
        "UPDATE run SET pinned = ? WHERE uid = ? AND NOT deleted", (int(pinned), uid)
    ).rowcount
    return changed > 0


def delete(store: Store, uid: str) -> bool:
    """Take a run away: for everybody who reads at once, from the file bit by bit; whether there was one."""
    changed = store.connection.execute("UPDATE run SET deleted = 1 WHERE uid = ? AND NOT deleted", (uid,)).rowcount
    return changed > 0
