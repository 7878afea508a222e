"""Read the texts that a training chose, which stand within sentences of ours: names, keys, settings, causes of death."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from trackside_daemon.history.checkpoint_rows import checkpoints
from trackside_daemon.model.configuration import flat
from trackside_daemon.model.troubles import TROUBLES

_OF_ATTEMPT = ("cause", "host", "config", "command", "directory")
_MOST_KEYS = 100_000
_MOST = 10_000  # events and alerts, the newest


def texts(connection: sqlite3.Connection, head: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a run that its training chose.

    Args:
        connection: In a transaction.
        head: The run, as of `reader.head`.
    """
    yield from (
        head["id"],
        head["name"],
        head["cause"],
        head["user"] or "",
        head["notes"] or "",
        *map(str, head["tags"]),
    )
    for attempt in head["attempt_list"]:
        yield from _leaves({name: attempt.get(name) for name in _OF_ATTEMPT})
        yield from (phase for seconds in attempt.get("phases", {}).values() for phase in seconds)
    uid = (head["id"], _MOST)
    keys = (
        "SELECT DISTINCT key FROM series JOIN stream ON stream.id = series.stream JOIN run ON run.id = stream.run "
        "WHERE run.uid = ? LIMIT ?"
    )
    yield from (key for (key,) in connection.execute(keys, (head["id"], _MOST_KEYS)))
    events = (
        "SELECT event.fields FROM event JOIN run ON run.id = event.run WHERE run.uid = ? ORDER BY event.id DESC LIMIT ?"
    )
    for (fields,) in connection.execute(events, uid):
        yield from _leaves(json.loads(fields))
    for checkpoint in checkpoints(connection, head["id"]):
        yield from (checkpoint.path, checkpoint.path.rpartition("/")[2], checkpoint.reason)
    alerts = (
        "SELECT alert, alert.summary, description, labels, json_extract(evidence, '$.cause') FROM alert "
        "JOIN run ON run.id = alert.run WHERE run.uid = ? ORDER BY alert.id DESC LIMIT ?"
    )
    for name, summary, description, labels, cause in connection.execute(alerts, uid):
        yield from (str(cause or ""), *map(str, json.loads(labels).values()))
        if name == "UserAlert" or name not in TROUBLES:
            yield from (name, summary, description)


def is_imported(connection: sqlite3.Connection, uid: str) -> bool:
    """Return whether a run came from a file: then the sentences about it may be of anybody."""
    row = connection.execute("SELECT imported FROM run WHERE uid = ?", (uid,)).fetchone()
    return bool(row and row[0])


def _leaves(value: Any) -> Iterator[str]:
    """Yield the texts in a value, and the names of its entries, but no single words: they are as ours, and say nothing."""
    if isinstance(value, dict):
        for name, leaf in flat(value).items():
            yield from _leaves(name)
            yield from _leaves(leaf)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _leaves(one)
    elif isinstance(value, str) and not value.isidentifier():
        yield value
