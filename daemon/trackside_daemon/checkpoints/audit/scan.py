"""List directories of checkpoints, without reading a file."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from trackside_daemon.checkpoints.audit import files
from trackside_daemon.checkpoints.audit.reading import RefusedError
from trackside_daemon.checkpoints.audit.request import REFUSED, Entry, Listing, Scanned, ScanRequest
from trackside_daemon.linux.quota import quota_left

ENTRIES = 10_000  # most entries of all directories, so that the answer stays below `worker_process.ANSWER_BYTES`


def scan(request: ScanRequest) -> Scanned:
    """Return what is in the directories."""
    answer = Scanned()
    most = max(1, ENTRIES // max(1, len(request.places)))
    for place in request.places:
        with suppress(OSError, ValueError):
            answer.places[place] = _entries(Path(place), most, request.uid)
            answer.free[place] = free_bytes(place, os.getuid() if request.uid is None else request.uid)
    for path in request.paths:
        with suppress(OSError, ValueError):
            answer.paths[path] = _listing(Path(path), request.uid)
    return answer


def free_bytes(place: str, uid: int) -> int:
    """Return the bytes that a user can still write to a file system.

    Raises:
        OSError: It cannot be read.
    """
    disk = os.statvfs(place)
    free = disk.f_bavail * disk.f_frsize
    left = quota_left(place, uid)
    return free if left is None else min(free, left)


def _entries(place: Path, most: int, uid: int | None) -> list[Entry]:
    """Return the folders of a user in a directory, and the files that may be checkpoints."""
    found: list[Entry] = []
    with suppress(FileNotFoundError), os.scandir(place) as entries:
        for entry in entries:
            if (
                entry.name.startswith(".")
                or entry.is_symlink()
                or not files.is_usable(entry.name)
                or len(found) >= most
            ):
                continue
            is_folder = entry.is_dir()
            if is_folder or Path(entry.name).suffix in files.SUFFIXES:
                with suppress(FileNotFoundError):
                    about = entry.stat(follow_symlinks=False)
                    if uid in {None, about.st_uid}:
                        found.append(Entry(entry.name, is_folder, about.st_size, about.st_mtime_ns, about.st_ino))
    return found


def _listing(path: Path, uid: int | None) -> Listing | None:
    try:
        found = files.listing(path, uid)
    except FileNotFoundError:
        return None
    except RefusedError:
        return REFUSED
    newest = max((file.modified for file in found), default=0)
    size = sum(file.bytes for file in found)
    return Listing(files.fingerprint(found), size, newest, files.format_of(found), files.is_declared(found))
