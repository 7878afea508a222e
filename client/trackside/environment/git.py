"""Read the commit and the state of the repository around a script from its files, without running git.

Another user may plant a repository, to publish the content of this user's files or to stop the training. So a repository counts
only if it belongs to this user or root, as with git's safe.directory. No link is followed, and no read blocks or has no limit.
"""

import os
import re
import stat
import struct
from pathlib import Path
from time import monotonic

import msgspec

from trackside.environment.paths import open_regular
from trackside.patterns import pattern
from trackside.wire import is_commit

MAX_FILES = 20_000  # limit of tracked files; the state of a larger repository is unknown
COMPARE_SECONDS = 0.5  # limit of the time for the comparison
INDEX_BYTES = 16 * 1024 * 1024  # limit of the index's size
HASHED_BYTES = 1024 * 1024  # limit of a file that is read to compare its content, if its time is new

# Limits of what `commit` reads, in the training's own thread: a few ms at most.
LINE_BYTES = 4096  # of HEAD, a reference, and a file that names a directory
PACKED_BYTES = 1024 * 1024  # of packed-refs, sorted by name: the branches come first
GIT_CONFIG_BYTES = 1024 * 1024

# Entry up to its path; the times, numbers and owners that are not compared are skipped.
_HEADER = struct.Struct(">4sII")
_FIXED = struct.Struct(">8x2I8xI8xI20sH")

_ASSUME_VALID, _EXTENDED, _STAGE = 0x8000, 0x4000, 0x3000
_SKIP_WORKTREE = 0x4000
_GITLINK = 0o160000
_CHECKSUM_BYTES = 20
_EMPTY_BLOB = bytes.fromhex("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391")
_SHA256 = rb"(?im)^\s*objectformat\s*=\s*\"?sha256"
_REFERENCE = pattern(r"refs(/(?!\.)[^\x00-\x20\x7f~^:?*\[\\/]+)+")  # git-check-ref-format(1); no part may be ".."


def commit(script: str) -> str:
    """Return the commit that is checked out around *script*, or around the working directory if that is not a file.

    Empty if there is none, or if it cannot be read.
    """
    try:
        repository = find_repository(script)
        if repository is None:
            return ""
        git = repository[1]
        head = _line(git / "HEAD")
        return _reference(_common(git), head.removeprefix("ref: ")) if head.startswith("ref: ") else _hash(head)
    except (OSError, ValueError):  # a folder that is gone, a file that is no text, a name with a NUL
        return ""


def dirty(script: str, seconds: float = COMPARE_SECONDS) -> bool | None:
    """Return whether a tracked file of the repository around *script* differs from the index: ``git diff --quiet``.

    Staged changes are not detected, since that requires reading objects, nor are untracked files, submodules and changed
    permissions. A file with a new time has changed if its hash has. So a copied file that a filter rewrites, such as
    Git LFS, counts as changed.

    Returns:
        None if there is no repository, or if the answer is unknown: more than `MAX_FILES` files, more than *seconds* of
        work, a large file with a new time, a sparse or split index, SHA-256, a damaged index.
    """
    deadline = monotonic() + seconds
    try:
        repository = find_repository(script)
        return None if repository is None else _differs(*repository, deadline)
    except (OSError, ValueError, IndexError, struct.error):  # as above, and an index that is cut short
        return None


def find_repository(script: str) -> tuple[Path, Path] | None:
    """Return the working tree around *script* and its git directory, which worktrees and submodules have elsewhere.

    None if there is none, or if another user owns a part of it.
    """
    path = Path(script).absolute()
    folder = path.parent if path.is_file() else Path.cwd()
    tree = next((place for place in (folder, *folder.parents) if os.path.lexists(place / ".git")), None)
    if tree is None or not (_is_own(tree) and _is_own(tree / ".git")):
        return None
    git = tree / ".git"
    if git.is_file():  # "gitdir: PATH"
        git = tree / _line(git).partition(":")[2].strip()
    return (tree, git) if _is_own(git) else None


def _is_own(path: Path) -> bool:
    """Return whether a path, and what it links to, belongs to this user or root, or to the user of sudo."""
    own = {0, os.geteuid()}
    sudo = os.environ.get("SUDO_UID", "")
    if os.geteuid() == 0 and sudo.isdecimal():  # as git does
        own.add(int(sudo))
    return path.lstat().st_uid in own and path.stat().st_uid in own


def _common(git: Path) -> Path:
    """Return the directory with the references and the configuration of all worktrees of a repository.

    Raises:
        PermissionError: It belongs to another user.
    """
    if not os.path.lexists(git / "commondir"):
        return git
    common = git / _line(git / "commondir")
    if not _is_own(common):
        raise PermissionError(common)
    return common


def _reference(git: Path, name: str) -> str:
    """Return the commit of a reference; empty if there is none, or the name is not valid."""
    if _REFERENCE.fullmatch(name) is None:
        return ""
    if os.path.lexists(git / name):
        return _hash(_line(git / name))
    packed = _read(git / "packed-refs", PACKED_BYTES)  # lines HASH NAME
    end = packed.find(b" " + name.encode() + b"\n")  # without a pattern, which takes 20 ms for 1 MiB
    return _hash(packed[packed.rfind(b"\n", 0, end) + 1 : end].decode()) if end >= 0 else ""


def _hash(text: str) -> str:
    """Return a text that is a commit; empty for any other text, which may be a secret."""
    return text if is_commit(text) else ""


def _line(path: Path) -> str:
    return _read(path, LINE_BYTES).decode().strip()


def _read(path: Path, size: int) -> bytes:
    """Return the first *size* bytes of a regular file.

    Raises:
        OSError: It is none, or cannot be read.
    """
    with open_regular(path) as file:
        return file.read(size)


class _Entry(msgspec.Struct):
    """A tracked file as the index has it; size and time are modulo 2**32."""

    path: str
    mode: int
    size: int
    modified: tuple[int, int]
    blob: bytes
    unmerged: bool


def _differs(tree: Path, git: Path, deadline: float) -> bool | None:
    config = _common(git) / "config"
    if os.path.lexists(config) and re.search(_SHA256, _read(config, GIT_CONFIG_BYTES)):
        return None
    with open_regular(git / "index") as file:
        status = os.fstat(file.fileno())
        if status.st_size > INDEX_BYTES:
            return None
        index = file.read(INDEX_BYTES)
    written = divmod(status.st_mtime_ns, 10**9)
    is_known = True
    for entry in _entries(index):
        if monotonic() > deadline:
            return None
        changed = entry.unmerged or _has_changed(f"{tree}/{entry.path}", entry, written)
        if changed:
            return True
        is_known = is_known and changed is not None
    return False if is_known else None


def _entries(index: bytes) -> list[_Entry]:
    """Return the entries of an index that are compared (gitformat-index(5)).

    Raises:
        IndexError, ValueError, struct.error: It is not an index, or one of another kind.
    """
    signature, version, count = _HEADER.unpack_from(index)
    if signature != b"DIRC" or version not in {2, 3, 4} or count > MAX_FILES:
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
        if version == 4:  # a path is stored without the prefix that it shares with the one before
            cut, at = _offset(index, at)
            kept = len(path) - cut
        end = index.index(b"\0", at)
        path = path[:kept] + index[at:end]
        # Before version 4, 1 to 8 NUL bytes pad an entry to a multiple of 8.
        start = end + 1 if version == 4 else end + 8 - (end - start) % 8
        if not (flags & _ASSUME_VALID or more & _SKIP_WORKTREE or mode == _GITLINK):
            unmerged = bool(flags & _STAGE)
            entries.append(_Entry(os.fsdecode(path), mode, size, (seconds, nanoseconds), blob, unmerged))
    _refuse_extensions(index, start)
    return entries


def _offset(index: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable width and its end: 7 bits a byte, the highest first, without redundancy."""
    value = index[at] & 0x7F
    while index[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) + (index[at] & 0x7F)
    return value, at + 1


def _refuse_extensions(index: bytes, at: int) -> None:
    """Raise ValueError for an extension that changes the meaning of the entries: a split or sparse index, or a new one."""
    while at < len(index) - _CHECKSUM_BYTES:
        name, size = struct.unpack_from(">4sI", index, at)
        if not name[:1].isupper():  # a capital marks an optional extension
            raise ValueError(f"the extension {name!r}")
        at += 8 + size


def _has_changed(place: str, entry: _Entry, written: tuple[int, int]) -> bool | None:
    """Return whether one file has changed, None if unknown; *written* is the index's time in seconds and nanoseconds."""
    try:
        status = os.lstat(place)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return None
    if stat.S_IFMT(status.st_mode) != stat.S_IFMT(entry.mode):
        return True
    if status.st_size & 0xFFFFFFFF != entry.size and (entry.size or entry.blob == _EMPTY_BLOB):
        return True  # git writes size 0 for a file whose time does not distinguish it from a changed one
    if status.st_size & 0xFFFFFFFF == entry.size and _is_as_old(status, entry, written):
        return False
    return _has_other_content(place, status, entry.blob)


def _is_as_old(status: os.stat_result, entry: _Entry, written: tuple[int, int]) -> bool:
    """Return whether the file has the entry's time, and that is before the index was written.

    A file with the index's own time can have changed just after the index was written.
    """
    seconds, nanoseconds = divmod(status.st_mtime_ns, 10**9)
    # A git that was built without nanoseconds writes 0.
    same = (seconds & 0xFFFFFFFF, nanoseconds if entry.modified[1] else 0) == entry.modified
    return same and (entry.modified[0], entry.modified[1] or 10**9) < written


def _has_other_content(place: str, status: os.stat_result, blob: bytes) -> bool | None:
    from hashlib import sha1  # it loads OpenSSL, and is rarely needed

    if status.st_size > HASHED_BYTES:
        return None
    try:
        if stat.S_ISLNK(status.st_mode):
            content = os.fsencode(Path(place).readlink())
        else:
            content = _read(Path(place), HASHED_BYTES + 1)
        # Without the flag, OpenSSL refuses SHA-1 in FIPS mode.
        return sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).digest() != blob
    except (OSError, ValueError):
        return None
