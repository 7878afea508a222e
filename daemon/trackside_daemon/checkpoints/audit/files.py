"""List directories of checkpoints and the files of one, and check that all of them are there."""

import io
import json
import mmap
import os
import re
import stat
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from trackside.checkpoints.folder import MANIFEST
from trackside_daemon.checkpoints.audit.request import REFUSED, Entry, Listing, Scanned, ScanRequest
from trackside_daemon.linux.foreign_file import open_checked
from trackside_daemon.linux.quota import quota_left
from trackside_daemon.model.checkpoint import CheckedFile, shape_of

PIECE = 1 << 20  # bytes of a read
SMALL = 1 << 16  # shorter reads are those of headers and directories
BLOCK = 4096  # reads past the page cache begin and end at a multiple of it
UNPACKED = 32  # most bytes to read for one on the disk: weights are hardly ever compressible
PARTS = 16  # checksums of a file: they show whether a part of it or all of it has changed


class DamageError(Exception):
    """A file is damaged; the message has the reason, in one line."""


class RefusedError(OSError):
    """A file is not read: it consists of holes, or belongs to another user."""


class _File(io.FileIO):
    """A file whose pieces are read past the page cache (O_DIRECT of open(2)) if its file system can do so.

    That displaces nothing from the cache, and reads what the disk has.
    """

    def __init__(self, handle: int) -> None:
        super().__init__(handle, "rb", closefd=False)
        self._buffer = mmap.mmap(-1, PIECE + 2 * BLOCK)  # its begin is aligned
        try:
            self._direct = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except (OSError, AttributeError):  # AttributeError: not Linux
            self._direct = -1

    def read(self, size: int | None = -1) -> bytes:
        """Read up to *size* bytes, less at the end of the file; all that is left if it is negative."""
        if self._direct < 0 or size is None or not SMALL <= size <= PIECE:
            return super().read(size)
        position = self.tell()
        skipped = position % BLOCK
        try:
            count = os.preadv(
                self._direct, [memoryview(self._buffer)[: -(-(skipped + size) // BLOCK) * BLOCK]], position - skipped
            )
        except OSError:
            self._close_direct()
            return super().read(size)
        data = self._buffer[skipped : min(count, skipped + size)]
        self.seek(position + len(data))
        return data

    def close(self) -> None:
        """Close the file."""
        self._close_direct()
        super().close()

    def _close_direct(self) -> None:
        if self._direct >= 0:
            os.close(self._direct)
            self._direct = -1


class FileReader:
    """Reads files.

    Args:
        rate: Bytes per second; 0 for no limit.
        uid: The user whose files are read; None for all.
    """

    def __init__(self, rate: float = 0.0, uid: int | None = None) -> None:
        self._rate = rate
        self._uid = uid
        self._due = 0.0

    @contextmanager
    def open(self, path: Path) -> Iterator[IO[bytes]]:
        """Open a regular file of the user.

        Raises:
            RefusedError: It is another user's, or consists of holes.
            OSError: It cannot be opened, or is another kind of file.
        """
        handle = open_checked(path, partial(self._refuse, path.name))
        try:
            with _File(handle) as file:
                yield file
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)

    def _refuse(self, name: str, about: os.stat_result) -> None:
        if self._uid not in {None, about.st_uid}:
            raise RefusedError(f"{name} belongs to another user")
        if about.st_size > SMALL and about.st_blocks * 512 * UNPACKED < about.st_size:
            raise RefusedError(f"{name} consists of holes")

    def pieces(self, file: IO[bytes], begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from *begin* to *end*, less if the file is shorter."""
        file.seek(begin)
        while begin < end and (piece := file.read(min(PIECE, end - begin))):
            begin += len(piece)
            yield piece
            self.pace(file, begin, len(piece))

    def pace(self, file: IO[bytes], position: int, size: int) -> None:
        """Wait as long as the rate requires for *size* bytes that end at a position of the file."""
        if not self._rate:
            return
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), max(0, position - size), size, os.POSIX_FADV_DONTNEED)
        now = time.monotonic()
        # What was missed for more than a second is not made up.
        self._due = max(self._due, now - 1.0) + size / self._rate
        if self._due > now:
            time.sleep(self._due - now)

    def sums(self, file: IO[bytes], size: int) -> tuple[int, ...]:
        """Return the CRC-32 of each part of a file."""
        length = max(512, -(-size // PARTS))
        return tuple(self._sum(file, begin, min(size, begin + length)) for begin in range(0, size, length))

    def _sum(self, file: IO[bytes], begin: int, end: int) -> int:
        total = 0
        for piece in self.pieces(file, begin, end):
            total = zlib.crc32(piece, total)
        return total


MAX_FILES = 10_000
PATH_BYTES = 4096  # PATH_MAX of limits.h
INDEX_BYTES = 64 << 20  # largest index or metadata file that is read

SUFFIXES = frozenset((".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".distcp", ".pkl"))  # of the files of checkpoints
_VITAL = SUFFIXES | {".json"}
METADATA = ".metadata"  # of torch.distributed.checkpoint, written last
TRAINER_STATE = "trainer_state.json"  # of Transformers' Trainer, written last
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)", re.ASCII)
_DCP_NAME = re.compile(rb"__\d+_\d+\.distcp")


class CheckpointFile(NamedTuple):
    """A file of a checkpoint."""

    name: str  # its path below the checkpoint's; of a single file, its name
    bytes: int  # its size
    modified: int  # its modification time, in Unix nanoseconds
    inode: int  # its inode number


def base_of(path: Path) -> Path:
    """Return the directory that the names of a checkpoint's files are relative to."""
    return path if path.is_dir() else path.parent


def is_usable(name: str) -> bool:
    """Return whether a name or path can be that of a file, and be sent as JSON: UTF-8, without NUL, not too long."""
    try:
        return "\0" not in name and len(name.encode()) < PATH_BYTES
    except UnicodeEncodeError:  # bytes of another encoding, or half a surrogate pair
        return False


def listing(path: Path, uid: int | None = None) -> list[CheckpointFile]:
    """Return the files of a checkpoint, by name.

    Args:
        path: The checkpoint.
        uid: The user to whom it and all of its files have to belong; None for any.

    Raises:
        RefusedError: It belongs to another user.
        OSError: It is not there, or cannot be read.
        ValueError: It has more than `MAX_FILES` files, or one whose name is not UTF-8.
    """
    about = path.stat()
    _require_owner(path, about, uid)
    if stat.S_ISREG(about.st_mode):
        return [_found(path.name, about)]
    found = []
    for folder, _, names in os.walk(path, onerror=_raise):
        for name in names:
            file = Path(folder) / name
            relative = str(file.relative_to(path))
            if not is_usable(relative):
                raise ValueError("the name of one of its files is not UTF-8")
            try:
                if stat.S_ISREG((about := file.stat()).st_mode):
                    _require_owner(file, about, uid)
                    found.append(_found(relative, about))
            except FileNotFoundError:  # a link that leads nowhere
                found.append(CheckpointFile(relative, 0, 0, 0))
            if len(found) > MAX_FILES:
                raise ValueError(f"it has more than {MAX_FILES:,} files")
    return sorted(found)


def _require_owner(path: Path, about: os.stat_result, uid: int | None) -> None:
    if uid not in {None, about.st_uid}:
        raise RefusedError(f"{path.name} belongs to another user")


def _raise(error: OSError) -> None:
    raise error


def _found(name: str, about: os.stat_result) -> CheckpointFile:
    return CheckpointFile(name, about.st_size, about.st_mtime_ns, about.st_ino)


def fingerprint(files: Iterable[CheckpointFile | CheckedFile]) -> int:
    """Return a number that changes with names, sizes, times and inodes."""
    return zlib.crc32(repr([tuple(file[:4]) for file in files]).encode())


def format_of(files: Iterable[CheckpointFile]) -> str:
    """Return the format of a checkpoint by the names of its files; empty if it is none."""
    names = {Path(file.name).name for file in files}
    suffixes = {Path(name).suffix for name in names}
    known = (
        ("trackside", MANIFEST in names),
        ("lightning", ".ckpt" in suffixes or "meta.pt" in names),
        ("transformers", bool({TRAINER_STATE, "training_args.bin"} & names)),
        ("dcp", METADATA in names or ".distcp" in suffixes),
        ("accelerate", any(name.startswith("random_states_") for name in names)),
        ("safetensors", ".safetensors" in suffixes),
        ("torch", bool({".pt", ".pth", ".bin"} & suffixes)),
    )
    return next((name for name, matches in known if matches), "")


def is_declared(files: Iterable[CheckpointFile]) -> bool:
    """Return whether a checkpoint has the file that its writer writes last."""
    return any(Path(file.name).name in {MANIFEST, METADATA, TRAINER_STATE} for file in files)


class Missing(NamedTuple):
    """A file that is absent or too short, and why that is known."""

    name: str
    why: str
    absent: bool = True

    @property
    def text(self) -> str:
        """The reason in one line."""
        return f"{self.name} is missing: {self.why}" if self.absent else f"{self.name}: {self.why}"


def missing(
    path: Path, files: Iterable[CheckpointFile], previous: Mapping[str, int], reader: FileReader
) -> Iterator[Missing]:
    """Yield the files that are absent or too short, each with the reason.

    Args:
        path: The checkpoint.
        files: Its files.
        previous: Sizes of the files of the checkpoint before it by name; empty without one.
        reader: Reads its indexes.
    """
    sizes = {file.name: file.bytes for file in files}
    for name, size in sizes.items():
        if not size and Path(name).suffix in _VITAL:
            yield Missing(name, "it is empty", absent=False)
    if not path.is_dir():
        return
    for folder in sorted({str(Path(name).parent) for name in sizes}):
        here = {Path(name).name for name in sizes if str(Path(name).parent) == folder}
        for one in _missing_here(path / folder, here, lambda file: _start(reader, file)):
            yield one._replace(name=str(Path(folder) / one.name))
    if MANIFEST in sizes:
        yield from _unlike_manifest(_json(_start(reader, path / MANIFEST)), sizes)
    yield from _unlike_previous(sizes, previous)


def _missing_here(folder: Path, names: set[str], read: Callable[[Path], bytes]) -> Iterator[Missing]:
    for shard in filter(None, map(_SHARD.fullmatch, sorted(names))):
        stem, _, count, suffix = shard.groups()
        wanted = (f"{stem}-{number:05}-of-{count}{suffix}" for number in range(1, min(int(count), MAX_FILES) + 1))
        yield from (Missing(name, f"{shard[0]} is there") for name in wanted if name not in names)
    for index in sorted(name for name in names if name.endswith(".index.json")):
        weights = _json(read(folder / index))
        shards = weights.get("weight_map") if isinstance(weights, dict) else None
        if isinstance(shards, dict):
            yield from (Missing(name, f"{index} names it") for name in sorted({*map(str, shards.values())} - names))
    if any(name.endswith(".distcp") for name in names) and METADATA not in names:
        yield Missing(METADATA, "the checkpoint was never completed")
    if METADATA in names:
        named = {name.decode() for name in _DCP_NAME.findall(read(folder / METADATA))}
        yield from (Missing(name, f"{METADATA} names it") for name in sorted(named - names))
    if {"training_args.bin", "optimizer.pt"} <= names and TRAINER_STATE not in names:
        yield Missing(TRAINER_STATE, "the checkpoint was never completed")


def _unlike_manifest(about: Any, sizes: Mapping[str, int]) -> Iterator[Missing]:
    """Yield the files that are not as the manifest of `trackside.Checkpoints` has them."""
    wanted = about.get("files") if isinstance(about, dict) else None
    for name, size in wanted.items() if isinstance(wanted, dict) else ():
        if name not in sizes:
            yield Missing(name, f"{MANIFEST} names it")
        elif sizes[name] != size:
            yield Missing(name, f"it has {sizes[name]:,} bytes instead of {size:,}", absent=False)


def _unlike_previous(sizes: Mapping[str, int], previous: Mapping[str, int]) -> Iterator[Missing]:
    """Yield the files that the checkpoint before has, other steps in their names aside."""
    there = Counter(map(shape_of, sizes))
    before = Counter(map(shape_of, previous))
    for name in sorted(previous.keys() - sizes.keys()):
        if Path(name).suffix in _VITAL and there[shape_of(name)] < before[shape_of(name)]:
            yield Missing(name, "the checkpoint before has it")


def is_json(text: bytes) -> bool:
    """Return whether a text is JSON; one that is too long to be parsed counts as that."""
    try:
        return len(text) >= INDEX_BYTES or json.loads(text) is not Ellipsis
    except (ValueError, RecursionError):
        return False


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _start(reader: FileReader, path: Path) -> bytes:
    with suppress(OSError), reader.open(path) as file:
        return b"".join(reader.pieces(file, 0, INDEX_BYTES))
    return b""


ENTRIES = 10_000  # most entries of all directories, so that the answer stays below `worker_process.ANSWER_BYTES`


def scan(request: ScanRequest, entries: int = ENTRIES) -> Scanned:
    """Return what is in the directories, at most so many entries of all."""
    answer = Scanned()
    most = max(1, entries // max(1, len(request.places)))
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
            if entry.name.startswith(".") or entry.is_symlink() or not is_usable(entry.name) or len(found) >= most:
                continue
            is_folder = entry.is_dir()
            if is_folder or Path(entry.name).suffix in SUFFIXES:
                with suppress(FileNotFoundError):
                    about = entry.stat(follow_symlinks=False)
                    if uid in {None, about.st_uid}:
                        found.append(Entry(entry.name, is_folder, about.st_size, about.st_mtime_ns, about.st_ino))
    return found


def _listing(path: Path, uid: int | None) -> Listing | None:
    try:
        found = listing(path, uid)
    except FileNotFoundError:
        return None
    except RefusedError:
        return REFUSED
    newest = max((file.modified for file in found), default=0)
    size = sum(file.bytes for file in found)
    return Listing(fingerprint(found), size, newest, format_of(found), is_declared(found))
