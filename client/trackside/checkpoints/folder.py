"""The folders of a directory of checkpoints: each appears complete, by one rename, and disappears by another."""

import errno
import json
import os
import re
import socket
import time
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, NamedTuple

from trackside.os_errors import os_error_text
from trackside.patterns import pattern
from trackside.training_log import warn

MANIFEST = "checkpoint.json"  # written last: a folder without it is no checkpoint
LATEST = "latest"
VERSION = 1
STALE_SECONDS = 86400.0  # age from which another machine's unfinished folder is deleted
RETURN_SECONDS = 60.0  # age until which another machine's process may not have returned from its save

_NAME = pattern(r"step--?\d+(?:\.\d+)?", re.ASCII)
_UNFINISHED = pattern(r"\.(?:writing|deleting)-(.*)-step-[-\d.]+", re.ASCII)
_OWNER = pattern(r"(.*)-(\d+)", re.ASCII)
_numbers = count(1)  # of the hidden folders of this process
_in_use: set[str] = set()  # the names of those that it writes now
_unlinked: set[Path] = set()  # the directories whose link cannot be moved


class Saved(NamedTuple):
    """A complete checkpoint."""

    path: Path  # its folder, whose name has the step
    step: int
    time: float  # when it was saved, in Unix seconds
    metrics: Mapping[str, float]  # the numbers that were given for it
    bytes: int  # its size


class CheckpointFolder(NamedTuple):
    """A folder that has the name of a checkpoint."""

    # Its place in the order of saving, in Unix microseconds: the time at which it was saved, but always later than all
    # that were there, whatever the clock does.
    sequence: int
    path: Path  # the folder
    # What its manifest says; None if it has none that can be read, so that it is not complete.
    saved: Saved | None = None
    files: Mapping[str, int] = {}  # the sizes of its files by name
    writer: str = ""  # the process that saved it: a checksum of its machine's name, and its number; empty if unknown

    @property
    def is_whole(self) -> bool:
        """True if it is complete, and its files are there with their sizes. Their content is not read."""
        try:
            return self.saved is not None and all(
                (self.path / name).stat().st_size == size for name, size in self.files.items()
            )
        except OSError:
            return False


def folders(directory: Path) -> list[CheckpointFolder]:
    """Return the folders that have the name of a checkpoint, in the order in which they were saved.

    Raises:
        OSError: The directory cannot be read.
    """
    try:
        named = [path for path in directory.iterdir() if _NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    return sorted(map(_folder, named), key=itemgetter(0, 1))


def _folder(path: Path) -> CheckpointFolder:
    try:
        about = _manifest(path)
        files = dict(about["files"])
        size = sum(files.values()) + (path / MANIFEST).stat().st_size
        saved = Saved(path, int(about["step"]), float(about["time"]), dict(about["metrics"]), size)
        # Versions without a sequence wrote the time alone.
        return CheckpointFolder(
            int(about.get("sequence", saved.time * 1e6)), path, saved, files, str(about.get("writer", ""))
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):  # not complete
        try:
            return CheckpointFolder(path.lstat().st_mtime_ns // 1000, path)
        except OSError:  # another process has just deleted it
            return CheckpointFolder(0, path)


def defect(path: Path) -> str:
    """Return why a checkpoint is not intact, in one line; empty if it is. The archives in it are read whole."""
    try:
        files = _manifest(path)["files"]
        for name, size in files.items():
            there = (path / name).stat().st_size
            if there != size:
                return f"{name} has {there:,} bytes instead of {size:,}"
            if name.endswith((".pt", ".zip")) and (member := _bad_member(path / name)):
                return f"{name}: {member} is damaged"
    except OSError as error:
        return f"{Path(error.filename or path).name}: {os_error_text(error)}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"it cannot be read: {error}"
    return ""


def _bad_member(path: Path) -> str | None:
    from zipfile import BadZipFile, ZipFile  # as `shutil`

    try:
        with ZipFile(path) as archive:
            # torch.serialization.set_crc32_options(False) leaves the checksums out.
            return archive.testzip() if any(member.CRC for member in archive.infolist()) else None
    except BadZipFile as error:
        raise ValueError(str(error)) from None


def _manifest(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / MANIFEST).read_bytes()))


class CheckpointWriter:
    """A new checkpoint in the making: a hidden folder among the others.

    Args:
        directory: The directory of the checkpoints.
        step: The step.

    Attributes:
        path: The hidden folder.

    Raises:
        OSError: The folder cannot be made.
    """

    def __init__(self, directory: Path, step: int) -> None:
        self._directory, self._step = directory, step
        directory.mkdir(parents=True, exist_ok=True)
        _sweep(directory)  # before, since what a killed process left may take the room
        self.path = _hidden(directory, "writing", _name(step))
        self.path.mkdir()

    @contextmanager
    def file(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file of the checkpoint, which is on the disk when the block ends.

        Raises:
            OSError: It cannot be written, also if the block hides that behind another exception, as `torch.save` does.
        """
        try:
            with (self.path / name).open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__context__
            if cause is None:
                raise
            raise cause from None

    def publish(self, metrics: Mapping[str, float]) -> tuple[Saved, int]:
        """Complete the checkpoint, give it its name, and let the link point to it; return it with its sequence.

        Raises:
            OSError: It cannot be written; the other checkpoints are as before.
        """
        files = {
            str(path.relative_to(self.path)): path.stat().st_size for path in self.path.rglob("*") if path.is_file()
        }
        now = time.time()
        sequence = max([int(now * 1e6), *(one.sequence + 1 for one in folders(self._directory))])
        about = {"version": VERSION, "step": self._step, "time": now, "metrics": dict(metrics), "files": files}
        about |= {"sequence": sequence, "writer": _writer()}
        with self.file(MANIFEST) as manifest:
            size = sum(files.values()) + manifest.write(json.dumps(about).encode())
        _sync(self.path)
        path = self._move()
        _sync(self._directory)
        self._link(path.name)
        _in_use.discard(self.path.name)
        return Saved(path, self._step, now, dict(metrics), size), sequence

    def discard(self) -> None:
        """Delete what was written."""
        _remove(self.path)
        _in_use.discard(self.path.name)

    def _move(self) -> Path:
        """Give the folder its name: ``step-00000400``, or the next ``step-00000400.2`` if that exists; return its path."""
        own, place, number = self.path.stat(), self._directory / _name(self._step), 1
        while True:
            try:
                if not os.path.lexists(place):
                    self.path.rename(place)
                    return place
            except OSError as error:
                # The server of a network file system may have renamed it, and its answer was lost.
                if place.exists() and os.path.samestat(own, place.stat()):
                    return place
                if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:  # else another process was faster
                    raise
            number += 1
            place = self._directory / f"{_name(self._step)}.{number}"

    def _link(self, name: str) -> None:
        latest = self._directory / LATEST
        try:
            self.path.symlink_to(name)  # the folder has another name now, so this one is free
            try:
                self.path.replace(latest)
            except FileExistsError:  # a file system where nothing can be replaced
                latest.unlink()
                self.path.replace(latest)
            _sync(self._directory)
        except OSError as error:  # such as that of a file system without links
            _remove(self.path)
            moved = self._directory / name in _named_by_link(self._directory)
            if not moved and os.path.lexists(latest) and self._directory not in _unlinked:
                _unlinked.add(self._directory)
                warn(
                    f"{latest} names an earlier checkpoint than {name}, and cannot be replaced: {os_error_text(error)}"
                )


def delete(path: Path) -> None:
    """Delete a checkpoint, or what is left of one; killed meanwhile, it leaves no folder that looks like one."""
    hidden = _hidden(path.parent, "deleting", path.name)
    with suppress(OSError):
        path.rename(hidden)  # at once, so that nobody completes it meanwhile
        _remove(hidden)
    _in_use.discard(hidden.name)


def prune(directory: Path, keep: int, also: Collection[Path], damaged: Collection[Path]) -> None:
    """Delete what was saved before the newest *keep* intact checkpoints.

    What `latest` names stays, and the newest of each process that saves here too.

    Args:
        directory: The directory.
        keep: How many stay.
        also: Others that stay.
        damaged: Checkpoints that count as damaged; so does one whose files have other sizes.

    Raises:
        OSError: The directory cannot be read.
    """
    complete = [one for one in folders(directory) if one.saved is not None]
    stay = {*also, *_named_by_link(directory)}
    stay.update(path for writer, path in {one.writer: one.path for one in complete}.items() if _may_save(writer, path))
    intact = 0
    while complete and intact < keep:
        newest = complete.pop()
        intact += newest.path not in damaged and newest.is_whole
    for one in complete:
        if one.path not in stay:
            delete(one.path)


def _named_by_link(directory: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield directory / (directory / LATEST).readlink().name


def _may_save(writer: str, path: Path) -> bool:
    """Return whether another process may not have returned yet from the save of this checkpoint."""
    return writer not in {"", _writer()} and not _is_abandoned(path, writer, RETURN_SECONDS)


def _sweep(directory: Path) -> None:
    """Delete the hidden folders that killed processes left.

    One of this process' number that it does not use is of an earlier process, as in a container.
    """
    for path in list(directory.iterdir()):
        owner = match[1] if (match := _UNFINISHED.fullmatch(path.name)) and path.name not in _in_use else ""
        if owner and (owner == _owner() or _is_abandoned(path, owner, STALE_SECONDS)):
            delete(path)


def _is_abandoned(path: Path, owner: str, seconds: float) -> bool:
    """Return whether the process that wrote a path is gone: of another machine, if the path is older than some seconds."""
    named = _OWNER.fullmatch(owner)
    if named is None or named[1] not in {_host(), _machine()}:
        with suppress(OSError):
            return time.time() - path.lstat().st_mtime > seconds
        return False
    try:
        os.kill(int(named[2]), 0)
    except (ProcessLookupError, OverflowError):  # no process has such a number
        return True
    except PermissionError:
        return False
    return False


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_symlink():
            path.unlink()
        else:
            from shutil import rmtree  # it loads compressors, which `import trackside` need not wait for

            rmtree(path, ignore_errors=True)


def _hidden(directory: Path, what: str, name: str) -> Path:
    """Return the path of a hidden folder for a checkpoint, which no other folder of this process has."""
    step = name.rpartition("step-")[2].partition(".")[0]
    path = directory / f".{what}-{_owner()}-step-{step}.{next(_numbers)}"
    _in_use.add(path.name)
    return path


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _host() -> str:
    return socket.gethostname().replace("/", "_")


def _owner() -> str:
    return f"{_host()}-{os.getpid()}"


def _machine() -> str:
    return f"{zlib.crc32(_host().encode()):08x}"  # people publish checkpoints, and so no name


def _writer() -> str:
    return f"{_machine()}-{os.getpid()}"


def _sync(directory: Path) -> None:
    """Write a directory's entries to the disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:  # a file system without this
            raise
    finally:
        os.close(handle)
