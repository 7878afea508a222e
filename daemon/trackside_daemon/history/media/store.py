"""Write the media of runs: each item is checked, and becomes a file of a fixed kind for this user alone."""

import json
import logging
import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from errno import ENOSPC
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec

from trackside.limits import BATCH_ROWS, MEDIA_BYTES, MEDIA_KEY_LENGTH
from trackside.media.pixels import PngError, check
from trackside.os_errors import os_error_text
from trackside.wire import MediaItem
from trackside_daemon.history.directory import lacks_room
from trackside_daemon.history.media.index import DIRECTORY, INDEX, SUFFIXES, MediaFile, directory_of, read
from trackside_daemon.model.session import SessionRef

BINS = 1024  # most bins of a histogram
ITEMS = 20_000  # most files of a run
BATCH_ITEMS = 4 * BATCH_ROWS  # most items of a batch
KEPT = 0.9  # part of a quota that is kept when it is exceeded, so that not each file deletes another

log = logging.getLogger("trackside")


class Quotas(NamedTuple):
    """Most bytes of the media of one *run*, and of *all* runs; free bytes of the disk below which none are kept."""

    run: int = 256 * 1024 * 1024
    all: int = 4 * 1024 * 1024 * 1024
    min_free: int = 0


class MediaStore:
    """Writes the media of runs, in the thread of the history's writer.

    Args:
        history: The directory of the history.
        quotas: Limits, beyond which the oldest files are deleted.

    Attributes:
        refused: Number of items that were not written.
    """

    def __init__(self, history: Path, quotas: Quotas = Quotas()) -> None:  # noqa: B008  it is frozen
        self.refused = 0
        self._history = history
        self._root = history / DIRECTORY
        self._quotas = quotas
        self._sizes: dict[Path, tuple[int, int]] = {}  # files and bytes by directory
        self._total: int | None = None

    def write(self, session: SessionRef, number: int, items: Collection[MediaItem], shift: int) -> None:
        """Write the items of a batch; one that is refused, or finds no room on the disk, costs only itself.

        Args:
            session: The session of the batch.
            number: The number of the batch, by which a file has the same name when the batch comes again.
            items: Its media.
            shift: Nanoseconds from the client's monotonic clock to Unix time.
        """
        for place, item in enumerate(items):
            try:
                if place >= BATCH_ITEMS:
                    raise ValueError(f"more than {BATCH_ITEMS} items of a batch are too many")  # noqa: TRY301
                if lacks_room(self._history, self._quotas.min_free):
                    raise OSError(ENOSPC, "the disk has less free than storage.min-free")  # noqa: TRY301
                # The name is the same when the batch comes again; those of a file that is imported have no number.
                name = session.id + f"{number}.{place}.{item.time}.{item.key}".encode("utf-8", "replace")
                self._write(session, sha256(name).hexdigest()[:24], item, shift)
            except (ValueError, OSError) as error:
                if not self.refused:
                    text = "run %s rank %d: %s %s is not kept: %s; further ones are only counted"
                    log.warning(text, session.name, session.rank, item.kind[:16], item.key[:40], os_error_text(error))
                self.refused += 1

    def sweep(self, runs: Collection[str]) -> None:
        """Delete the media of all other runs, by their ids, which were read after those of this moment were listed."""
        kept = {directory_of(self._history, run).name for run in runs}
        with suppress(OSError):
            for path in list(self._root.iterdir()):
                if path.name not in kept:
                    shutil.rmtree(path, ignore_errors=True)
                    self._total = None
                    self._sizes.pop(path, None)

    def _write(self, session: SessionRef, name: str, item: MediaItem, shift: int) -> None:
        data, width, height = _checked(item)
        directory = directory_of(self._history, session.run)
        self._root.mkdir(mode=0o700, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        file = f"{name}.{SUFFIXES[item.kind]}"
        entry = MediaFile(
            file,
            item.kind,
            item.key[:MEDIA_KEY_LENGTH],
            session.attempt,
            session.rank,
            (item.time + shift) / 1e9,
            len(data),
            item.step,
            width,
            height,
        )
        files, size = self._size(directory)
        # Written before the index names it; a leftover of an interrupted batch is replaced.
        _write_private(directory / file, data, os.O_TRUNC)
        _write_private(directory / INDEX, msgspec.json.encode(entry) + b"\n", os.O_APPEND)
        self._sizes[directory] = files + 1, size + len(data)
        self._total = self._sum() if self._total is None else self._total + len(data)
        self._limit(directory, session.run)

    def _limit(self, directory: Path, run: str) -> None:
        """Delete the oldest files of a run beyond its quota, and the oldest runs beyond that of all."""
        files, size = self._sizes[directory]
        if size > self._quotas.run or files > ITEMS:
            self._trim(directory, run)
        if self._total is not None and self._total > self._quotas.all:
            others = (path for path in self._root.iterdir() if path != directory)
            for path in sorted(others, key=lambda path: path.stat().st_mtime):
                shutil.rmtree(path, ignore_errors=True)
                self._sizes.pop(path, None)
                self._total = self._sum()
                if self._total <= self._quotas.all * KEPT:
                    break

    def _trim(self, directory: Path, run: str) -> None:
        items = read(self._history, run)
        size, count = sum(item.bytes for item in items), len(items)
        kept = []
        for item in items:
            if size > self._quotas.run * KEPT or count > ITEMS * KEPT:
                (directory / item.file).unlink(missing_ok=True)
                size -= item.bytes
                count -= 1
            else:
                kept.append(item)
        fresh = directory / f"{INDEX}.new"
        _write_private(fresh, b"".join(msgspec.json.encode(item) + b"\n" for item in kept), os.O_TRUNC)
        fresh.replace(directory / INDEX)
        self._sizes[directory] = count, size
        self._total = None

    def _size(self, directory: Path) -> tuple[int, int]:
        if directory not in self._sizes:
            sizes = [path.stat().st_size for path in directory.iterdir() if path.name != INDEX]
            self._sizes[directory] = len(sizes), sum(sizes)
        return self._sizes[directory]

    def _sum(self) -> int:
        return sum(path.stat().st_size for path in self._root.glob("*/*") if path.is_file())


def _checked(item: MediaItem) -> tuple[bytes, int, int]:
    """Return the content of an item as it is kept, and width and height of an image.

    Raises:
        ValueError: It is too large, of an unknown kind, or not what its kind states.
    """
    if len(item.data) > MEDIA_BYTES.get(item.kind, 0):
        raise ValueError(f"{len(item.data)} bytes of this kind are too many")
    if item.kind == "image":
        try:
            # Not unpacked: the writer serves all, and whoever looks at an image unpacks no more than its header allows.
            image = check(item.data, unpack=False)
        except PngError as error:
            raise ValueError(f"this image cannot be used: {error}") from None
        return image.data, image.width, image.height
    text = item.data.decode()  # raises a ValueError
    check_text = {"table": _table, "histogram": _histogram}.get(item.kind, str.encode)
    return check_text(text), 0, 0


def _table(text: str) -> bytes:
    try:
        table = json.loads(text)
        rows = [
            [cell if isinstance(cell, int | float | str | None) else str(cell) for cell in row] for row in table["rows"]
        ]
        clean = {"columns": [str(name) for name in table["columns"]], "rows": rows, "omitted": int(table["omitted"])}
        return json.dumps(clean, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"this is no table: {type(error).__name__}") from None


def _histogram(text: str) -> bytes:
    try:
        found = json.loads(text)
        edges, counts = [float(edge) for edge in found["edges"]], [int(count) for count in found["counts"]]
        if len(edges) != len(counts) + 1 or len(counts) > BINS or min(counts) < 0 or edges != sorted(edges):
            raise ValueError("edges")  # noqa: TRY301  one error for all that it can be
        clean = {"edges": edges, "counts": counts, "nonfinite": int(found["nonfinite"])}
        return json.dumps(clean, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"this is no histogram: {type(error).__name__}") from None


def _write_private(path: Path, data: bytes, how: int) -> None:
    # Not through a link that somebody put there.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | how, 0o600), "wb") as file:
        file.write(data)
