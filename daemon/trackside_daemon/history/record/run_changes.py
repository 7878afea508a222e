"""Changes to runs that a user asks for; run each with `Writer.call`."""

from collections.abc import Sequence

from trackside.redact import redact_text
from trackside_daemon.history.record.store import RecordStore
from trackside_daemon.history.sanitize import to_json
from trackside_daemon.model.records import ANNOTATION, Event


def pin(store: RecordStore, uid: str, *, pinned: bool = True) -> bool:
    """Pin a run, which keeps its samples whatever the bounds are, or unpin it; return False if there is no such run."""
    changed = store.connection.execute(
        "UPDATE run SET pinned = ? WHERE uid = ? AND NOT deleted", (int(pinned), uid)
    ).rowcount
    return changed > 0


def describe(
    store: RecordStore,
    uid: str,
    *,
    name: str | None,
    notes: str | None,
    tags: Sequence[str] | None,
    notes_before: str | None = None,
) -> bool:
    """Set name, notes or tags of a run, those that are not None; return False if there is no such run.

    A later session of the run sets its name and its tags again.

    Raises:
        ValueError: The run has not ended, and gets another name: its series on ``/metrics`` have the one that it has. Or it has
            other notes than *notes_before*, which somebody else has written meanwhile.
    """
    row = store.connection.execute(
        "SELECT name, ended, notes FROM run WHERE uid = ? AND NOT deleted", (uid,)
    ).fetchone()
    if row is None:
        return False
    if name is not None and name != row[0] and row[1] is None:
        raise ValueError(f"run {uid!r} has not ended; it can be renamed when it has")
    if notes is not None and notes_before not in (None, row[2]) and redact_text(notes) != row[2]:
        raise ValueError(f"others have changed the notes meanwhile; they are now: {row[2][:500]}")
    texts = None if tags is None else to_json([redact_text(tag) for tag in tags])
    changes = {
        "name": None if name is None else redact_text(name),
        "notes": None if notes is None else redact_text(notes),
        "tags": texts,
    }
    for column, value in changes.items():
        if value is not None:
            store.connection.execute(f"UPDATE run SET {column} = ? WHERE uid = ?", (value, uid))  # noqa: S608
    return True


def annotate(store: RecordStore, uid: str, text: str, step: int | None, time: float) -> bool:
    """Write a note at a moment of a run, in Unix seconds, in place of one at its step or time; return False if there is no such run.

    Without a text, what is there is removed.
    """
    query = (
        "SELECT run.id, coalesce(max(CASE WHEN attempt.started <= ? THEN number END), min(number)) FROM run "
        "JOIN attempt ON attempt.run = run.id WHERE uid = ? AND NOT deleted"
    )
    run, attempt = store.connection.execute(query, (time, uid)).fetchone()
    if run is None:
        return False
    # What the training itself records has a rank.
    store.connection.execute(
        "DELETE FROM event WHERE run = ? AND kind = ? AND rank IS NULL AND (time = ? OR step = ?)",
        (run, ANNOTATION, time, step),
    )
    if text:
        store.apply(Event(uid, attempt, time, ANNOTATION, None, step, {"text": redact_text(text)}))
    return True


def delete(store: RecordStore, uid: str, *, live: bool = True) -> bool:
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
