"""The folders of a directory of checkpoints: each appears complete, by one rename, and disappears by another."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

MANIFEST = "checkpoint.json"  # written last: a folder without it is no checkpoint
LATEST = "latest"
VERSION = 1
STALE_SECONDS = 86400.0  # age from which another machine's unfinished folder is deleted

_NAME = re.compile(r"step-(\d+)(?:\.(\d+))?", re.ASCII)
_UNFINISHED = re.compile(r"\.(?:writing|deleting)-(.*)-(\d+)-step-[\d.]+", re.ASCII)


class Saved(NamedTuple):
    """A complete checkpoint.

    Attributes:
        path: Its folder, whose name has the step.
        step: Its step.
        time: When it was saved, in Unix seconds.
        metrics: The numbers that were given for it.
        bytes: Its size.
    """

    path: Path
    step: int
    time: float
    metrics: Mapping[str, float]
    bytes: int


def saved(directory: Path) -> list[Saved]:
    """Return the complete checkpoints of a directory in the order of their steps; their content is not checked."""
    found = []
    for path in reversed(named(directory)):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # not complete
            about = _manifest(path)
            size = sum(about["files"].values()) + (path / MANIFEST).stat().st_size
            found.append(Saved(path, int(about["step"]), float(about["time"]), dict(about["metrics"]), size))
    return found


def named(directory: Path) -> list[Path]:
    """Return all folders that have the name of a checkpoint, the newest first."""
    found = [(name, path) for path in directory.glob("step-*") if (name := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, key=lambda item: (int(item[0][1]), int(item[0][2] or 1)), reverse=True)]


def reason(error: OSError) -> str:
    """Return why the system refused something, in a few words."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


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
        return f"{Path(error.filename or path).name}: {reason(error)}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
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


class Writer:
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
        self.path = directory / f".writing-{_owner()}-{_name(step)}"
        directory.mkdir(parents=True, exist_ok=True)
        _remove(self.path)
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

    def publish(self, metrics: Mapping[str, float]) -> Saved:
        """Complete the checkpoint, give it its name, and let the link point to it.

        Raises:
            OSError: It cannot be written; the other checkpoints are as before.
        """
        files = {
            str(path.relative_to(self.path)): path.stat().st_size for path in self.path.rglob("*") if path.is_file()
        }
        now = time.time()
        about = {"version": VERSION, "step": self._step, "time": now, "metrics": dict(metrics), "files": files}
        with self.file(MANIFEST) as manifest:
            size = sum(files.values()) + manifest.write(json.dumps(about).encode())
        _sync(self.path)
        path = _free_place(self._directory, self._step)
        self.path.rename(path)
        _sync(self._directory)
        self._link(path.name)
        return Saved(path, self._step, now, dict(metrics), size)

    def discard(self) -> None:
        """Delete what was written."""
        _remove(self.path)

    def _link(self, name: str) -> None:
        with suppress(OSError):  # a file system without links
            self.path.symlink_to(name)  # the folder has another name now, so this one is free
            self.path.replace(self._directory / LATEST)
            _sync(self._directory)


def delete(path: Path) -> None:
    """Delete a checkpoint; killed meanwhile, it leaves no folder that looks like one."""
    hidden = path.with_name(f".deleting-{_owner()}-{path.name}")
    with suppress(OSError):
        path.rename(hidden)
        _remove(hidden)


def prune(directory: Path, keep: int, also: Collection[Path] = ()) -> None:
    """Delete all but the newest *keep* complete checkpoints and *also*, and what a killed process left."""
    complete = saved(directory)
    for one in complete[: max(0, len(complete) - keep)]:
        if one.path not in also:
            delete(one.path)
    for path in directory.glob(".*-step-*"):
        if (name := _UNFINISHED.fullmatch(path.name)) and _is_abandoned(path, name[1], int(name[2])):
            _remove(path)


def _is_abandoned(path: Path, host: str, pid: int) -> bool:
    """Return whether the process that made a hidden folder is gone."""
    if host != _host():
        with suppress(OSError):
            return time.time() - path.stat().st_mtime > STALE_SECONDS
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # no process has such a number
        return True
    except PermissionError:
        return False
    return False


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        from shutil import rmtree  # it loads compressors, which `import trackside` need not wait for

        rmtree(path, ignore_errors=True)


def _free_place(directory: Path, step: int) -> Path:
    """Return the path of a step's checkpoint: ``step-00000400``, or the next ``step-00000400.2`` if that exists."""
    place, number = directory / _name(step), 1
    while os.path.lexists(place):
        number += 1
        place = directory / f"{_name(step)}.{number}"
    return place


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _host() -> str:
    return socket.gethostname().replace("/", "_")


def _owner() -> str:
    return f"{_host()}-{os.getpid()}"


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
