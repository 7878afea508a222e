"""The index of a run's media: a line of JSON for each file, the oldest first."""

import sqlite3
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec

DIRECTORY = "media"  # of all runs, in that of the history
INDEX = "index.jsonl"
SUFFIXES = {"image": "png", "text": "txt", "table": "json", "histogram": "json"}
TYPES = {
    "image": "image/png",
    "text": "text/plain; charset=utf-8",
    "table": "application/json",
    "histogram": "application/json",
}


class MediaFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """An image, a text or a table of a run."""

    file: str  # name of its file
    kind: str  # one of those of `trackside.limits.MEDIA_BYTES`
    key: str  # name that the training code gave it
    attempt: int
    rank: int
    time: float  # Unix seconds
    bytes: int
    step: int | None = None  # its step; None before the first
    width: int = 0  # pixels of an image; *height* likewise
    height: int = 0


_decode = msgspec.json.Decoder(MediaFile).decode


def directory_of(history: Path, run: str) -> Path:
    """Return the directory of a run, by its id; an id may have any characters, so it is hashed."""
    return history / DIRECTORY / sha256(run.encode("utf-8", "replace")).hexdigest()[:32]


def version(history: Path, run: str) -> tuple[int, int] | None:
    """Return what changes whenever a run gets or loses media; None without any."""
    with suppress(OSError):
        found = (directory_of(history, run) / INDEX).stat()
        return found.st_mtime_ns, found.st_size
    return None


def read(history: Path, run: str) -> list[MediaFile]:
    """Return the files of a run that exist, the oldest first; a damaged line, as after a power cut, is left out."""
    directory = directory_of(history, run)
    try:
        lines = (directory / INDEX).read_bytes().splitlines()
        present = {path.name for path in directory.iterdir()}
    except OSError:
        return []
    found: dict[str, MediaFile] = {}
    for line in lines:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            item = _decode(line)
            if item.file in present and item.kind in SUFFIXES:
                found[item.file] = item
    return list(found.values())


def history_of(connection: sqlite3.Connection) -> Path:
    """Return the directory of the history of a connection."""
    return Path(connection.execute("PRAGMA database_list").fetchone()[2]).parent


def content(history: Path, run: str, item: MediaFile) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: It was deleted meanwhile.
    """
    return (directory_of(history, run) / item.file).read_bytes()
