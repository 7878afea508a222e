"""What the repository around a script says of it, read from its files without running git."""

from __future__ import annotations

import os
import re
import stat
import struct
from pathlib import Path
from time import monotonic

import msgspec

ENTRIES = 20_000
"""So many tracked files are compared, at most; in a larger repository it is not known whether one has changed."""

SECONDS = 0.5
INDEX_BYTES = 16 * 1024 * 1024
HASHED_BYTES = 1024 * 1024
"""The largest file that is read, to see whether one with a new time has a new content too."""

_HEADER = struct.Struct(">4sII")
_FIXED = struct.Struct(">8x2I8xI8xI20sH")
"""An entry up to its path, without the times, numbers and owners that are not compared."""

_ASSUME_VALID, _EXTENDED, _STAGE = 0x8000, 0x4000, 0x3000
_SKIP_WORKTREE = 0x4000
_GITLINK = 0o160000
_CHECKSUM_BYTES = 20
_EMPTY_BLOB = bytes.fromhex("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391")
_SHA256 = r"(?im)^\s*objectformat\s*=\s*\"?sha256"


def commit(script: str) -> str:
    """The commit that is checked out around *script*, or around the working directory where that is no file.

    Empty when there is none, or when it cannot be read.
    """
    try:
        found = _find(script)
        if found is None:
            return ""
        head = (found[1] / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head[:64]
        return _reference(_common(found[1]), head.removeprefix("ref: "))
    except (OSError, ValueError):  # a folder that is gone, a file that is no text, a name with a NUL
        return ""


def dirty(script: str, seconds: float = SECONDS) -> bool | None:
    """Whether a tracked file of the repository around *script* is not as the index has it: ``git diff --quiet``.

    What is staged and not committed is not seen, for that takes reading objects; nor are untracked files, submodules
    and changed permissions. A file whose time is new is changed when its hash is: one that a filter rewrites, such as
    Git LFS, and that was copied since, counts as changed.

    Returns:
        None when there is no repository, or when it cannot be told: more than `ENTRIES` files, more than *seconds* of
        work, a larger file whose time alone is new, a sparse or a split index, SHA-256, a damaged index.
    """
    deadline = monotonic() + seconds
    try:
        found = _find(script)
        return None if found is None else _differs(*found, deadline)
    except (OSError, ValueError, IndexError, struct.error):  # as above, and an index that is cut short
        return None


def _find(script: str) -> tuple[Path, Path] | None:
    """The working tree around *script* and its git directory; a worktree's and a submodule's are somewhere else."""
    path = Path(script).absolute()
    folder = path.parent if path.is_file() else Path.cwd()
    tree = next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)
    if tree is None:
        return None
    git = tree / ".git"
    if git.is_file():  # "gitdir: PATH"
        git = (tree / git.read_text().partition(":")[2].strip()).resolve()
    return tree, git


def _common(git: Path) -> Path:
    """Where all worktrees of a repository have their references and their configuration."""
    common = git / "commondir"
    return (git / common.read_text().strip()).resolve() if common.exists() else git


def _reference(git: Path, name: str) -> str:
    if (git / name).exists():
        return (git / name).read_text().strip()[:64]
    packed = (line.split() for line in (git / "packed-refs").read_text().splitlines())
    return next((fields[0] for fields in packed if fields[1:] == [name]), "")


class _Entry(msgspec.Struct):
    """A tracked file as it was when it was last compared; the size and the time modulo 2**32."""

    path: str
    mode: int
    size: int
    modified: tuple[int, int]
    blob: bytes
    unmerged: bool


def _differs(tree: Path, git: Path, deadline: float) -> bool | None:
    config = _common(git) / "config"
    if config.exists() and re.search(_SHA256, config.read_text(errors="replace")):
        return None
    status = (git / "index").stat()
    if status.st_size > INDEX_BYTES:
        return None
    written = divmod(status.st_mtime_ns, 10**9)
    known = True
    for entry in _entries((git / "index").read_bytes()):
        if monotonic() > deadline:
            return None
        changed = entry.unmerged or _has_changed(f"{tree}/{entry.path}", entry, written)
        if changed:
            return True
        known = known and changed is not None
    return False if known else None


def _entries(index: bytes) -> list[_Entry]:
    """The entries that are to be compared.

    See gitformat-index(5).

    Raises:
        IndexError, ValueError, struct.error: An index of another kind, or none.
    """
    signature, version, count = _HEADER.unpack_from(index)
    if signature != b"DIRC" or version not in {2, 3, 4} or count > ENTRIES:
        raise ValueError(f"an index of version {version} with {count} entries")
    entries = []
    path, start = b"", _HEADER.size
    for _ in range(count):
        seconds, nanoseconds, mode, size, blob, flags = _FIXED.unpack_from(index, start)
        at = start + _FIXED.size
        more = 0
        if flags & _EXTENDED:
            more = int.from_bytes(index[at : at + 2], "big")
            at += 2
        kept = 0
        if version == 4:  # a path is told by what it shares with the one before
            cut, at = _offset(index, at)
            kept = len(path) - cut
        end = index.index(b"\0", at)
        path = path[:kept] + index[at:end]
        start = end + 1 if version == 4 else end + 8 - (end - start) % 8
        if not (flags & _ASSUME_VALID or more & _SKIP_WORKTREE or mode == _GITLINK):
            unmerged = bool(flags & _STAGE)
            entries.append(_Entry(os.fsdecode(path), mode, size, (seconds, nanoseconds), blob, unmerged))
    _refuse_extensions(index, start)
    return entries


def _offset(index: bytes, at: int) -> tuple[int, int]:
    """A number of variable width, and where it ends: 7 bits a byte, the highest first, without redundancy."""
    value = index[at] & 0x7F
    while index[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) + (index[at] & 0x7F)
    return value, at + 1


def _refuse_extensions(index: bytes, at: int) -> None:
    """Raise ValueError for what changes the meaning of the entries: a split or a sparse index, or what is yet to come."""
    while at < len(index) - _CHECKSUM_BYTES:
        name, size = struct.unpack_from(">4sI", index, at)
        if not name[:1].isupper():
            raise ValueError(f"the extension {name!r}")
        at += 8 + size


def _has_changed(place: str, entry: _Entry, written: tuple[int, int]) -> bool | None:
    """Compare one file; *written* is when the index was, in seconds and nanoseconds. None: it cannot be told."""
    try:
        status = os.lstat(place)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return None
    if stat.S_IFMT(status.st_mode) != stat.S_IFMT(entry.mode):
        return True
    if status.st_size & 0xFFFFFFFF != entry.size and (entry.size or entry.blob == _EMPTY_BLOB):
        return True  # git writes the size 0 of a file that it could not tell by its time from a changed one
    if status.st_size & 0xFFFFFFFF == entry.size and _is_as_old(status, entry, written):
        return False
    return _has_other_content(place, status, entry.blob)


def _is_as_old(status: os.stat_result, entry: _Entry, written: tuple[int, int]) -> bool:
    """The file's time is the entry's, and before the index was written: else the file can have changed just after it."""
    seconds, nanoseconds = divmod(status.st_mtime_ns, 10**9)
    same = (seconds & 0xFFFFFFFF, nanoseconds if entry.modified[1] else 0) == entry.modified
    return same and (entry.modified[0], entry.modified[1] or 10**9) < written


def _has_other_content(place: str, status: os.stat_result, blob: bytes) -> bool | None:
    from hashlib import sha1  # which loads OpenSSL, and is seldom asked for

    if status.st_size > HASHED_BYTES:
        return None
    try:
        if stat.S_ISLNK(status.st_mode):
            content = os.fsencode(Path(place).readlink())
        else:
            with Path(place).open("rb") as file:
                content = file.read(HASHED_BYTES + 1)
        return sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).digest() != blob
    except (OSError, ValueError):
        return None
