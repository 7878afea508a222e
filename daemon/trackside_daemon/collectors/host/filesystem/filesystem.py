"""Room on the file systems of some paths; one that is dead costs only itself."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.host.filesystem.mounts import Mounts
from trackside_daemon.collectors.host.filesystem.remote import Answer, Remote, Room
from trackside_daemon.model.metric import Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from trackside_daemon.collectors.host.filesystem.mount_table import Mount

LABELS = ("mountpoint", "fstype")


def _family(name: str, says: str, unit: str = "") -> Metric:
    return Metric(f"trackside_host_filesystem_{name}", "gauge", says, LABELS, unit)


SIZE = _family("size_bytes", "Size of the file system, from statvfs(3) f_blocks; absent when it has no bound.", "bytes")
FREE = _family("free_bytes", "Room that nothing uses, from statvfs(3) f_bfree; some may be kept for root.", "bytes")
AVAIL = _family("avail_bytes", "Room for those who are not root, from statvfs(3) f_bavail.", "bytes")
FILES = _family("files", "Inodes, from statvfs(3) f_files; absent where the file system does not count them.")
FILES_FREE = _family("files_free", "Inodes that nothing uses, from statvfs(3) f_ffree.")
READONLY = _family("readonly", "1 when the file system is mounted read-only, from /proc/PID/mountinfo, else 0.")
DEVICE_ERROR = _family(
    "device_error",
    "1 when statvfs(3) fails or has not returned for 5 s, else 0; absent where the daemon's user may not look.",
)

_log = logging.getLogger("trackside")


class FilesystemCollector:
    """The file systems that the paths are on, each once.

    Local ones are asked in the tick, all others in another process: a dead server makes statvfs(3) hang for ever.

    Args:
        paths: Absolute paths of the host. One that is not there is looked for again.
        proc: Where procfs is mounted.
        root: Where the host's / is.
        command: Started instead of our worker, by tests.
        clock: Seconds that deadlines are measured by.
    """

    name = "filesystem"
    metrics = (SIZE, FREE, AVAIL, FILES, FILES_FREE, READONLY, DEVICE_ERROR)

    def __init__(
        self,
        paths: Sequence[str],
        proc: Path,
        root: Path,
        *,
        command: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = tuple(dict.fromkeys(paths))
        self._mounts = Mounts(proc, root, clock)
        self._remote = Remote(command, clock)
        self._local: list[Mount] = []
        self._elsewhere: list[Mount] = []
        self._missing: set[str] = set()
        self._ailing: dict[str, str] = {}

    def collect(self) -> list[Sample]:
        """Seven samples for each file system that tells all, one for each that does not answer.

        Raises:
            NothingToCollect: There is no mountinfo, or no path.
            OSError: It cannot be read.
        """
        if not self._paths:
            raise NothingToCollect(
                "collector.filesystem.paths names no path; / and those of data and checkpoints are some"
            )
        if self._mounts.refresh():
            self._look()
        samples: list[Sample] = []
        for mount in self._local:
            samples += self._samples(mount, self._ask(mount))
        rooms = self._remote.rooms(self._elsewhere, self._mounts.prefix)
        for mount in self._elsewhere:
            samples += self._samples(mount, rooms.get(mount.key))
        return samples

    def close(self) -> None:
        """Ends the other processes, within half a second; what hangs in the kernel is left to it."""
        self._remote.close()
        self._mounts.close()

    def _look(self) -> None:
        """Finds out which file systems the paths are on, and which may hang."""
        hidden = {path: point for path in self._paths if (point := self._mounts.hidden(path))}
        found = {path: self._mounts.of(path) for path in self._paths if path not in hidden}
        self._tell_missing(hidden, {path for path, mount in found.items() if mount is None})
        mounts = {mount.point: mount for mount in found.values() if mount is not None}
        self._local = [mount for mount in mounts.values() if self._mounts.answers(mount)]
        self._elsewhere = [mount for mount in mounts.values() if mount not in self._local]
        if self._mounts.changed:
            self._remote.hasten()
        self._ailing = {point: text for point, text in self._ailing.items() if point in mounts}

    def _tell_missing(self, hidden: dict[str, str], absent: set[str]) -> None:
        """Once of each path that has no file system here."""
        for path in sorted(absent - self._missing):
            _log.info("collector.filesystem.paths: %s is not there; it is shown as soon as it is", path)
        for path in sorted(hidden.keys() - self._missing):
            _log.warning(
                "collector.filesystem.paths: %s is on %s of the host, which cannot be seen below %s; mount the host's / "
                "there with propagation: rslave, or HostToContainer in Kubernetes",
                *(path, hidden[path], self._mounts.prefix),
            )
        self._missing = absent | hidden.keys()

    def _ask(self, mount: Mount) -> Answer:
        try:
            found = os.statvfs(self._mounts.prefix + mount.point)
        except OSError as error:
            return error
        return Room(found.f_frsize, found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree)

    def _samples(self, mount: Mount, answer: Answer | None) -> Iterable[Sample]:
        if answer is None:
            return
        labels = (_shown(mount.point), mount.fstype)
        self._tell(mount, answer)
        if isinstance(answer, PermissionError):  # nothing is known of it
            return
        if isinstance(answer, OSError):
            yield Sample(DEVICE_ERROR, labels, 1.0)
            return
        yield Sample(DEVICE_ERROR, labels, 0.0)
        yield Sample(READONLY, labels, float(mount.readonly))
        if answer.blocks:
            yield Sample(SIZE, labels, answer.unit * answer.blocks)
            yield Sample(FREE, labels, answer.unit * answer.free)
            yield Sample(AVAIL, labels, answer.unit * answer.avail)
        if answer.files:
            yield Sample(FILES, labels, answer.files)
            yield Sample(FILES_FREE, labels, answer.files_free)

    def _tell(self, mount: Mount, answer: Answer) -> None:
        """Once when it begins to ail, and once when it is well again."""
        if isinstance(answer, TimeoutError):
            text = (
                "does not answer: its server is down or out of reach, and whatever uses it hangs; bring the server "
                f"back, or give it up with umount -f -l {mount.point}"
            )
        elif isinstance(answer, PermissionError):
            text = (
                f"cannot be asked for its room: {answer.strerror}; let the daemon's user enter the directories above it, "
                "or leave it out of collector.filesystem.paths"
            )
        elif isinstance(answer, OSError):
            text = f"cannot be asked for its room: {answer.strerror}"
        else:
            if self._ailing.pop(mount.point, None) is not None:
                _log.info("the file system at %s answers again", mount.point)
            return
        if self._ailing.get(mount.point) != text:
            self._ailing[mount.point] = text
            _log.warning("the file system at %s (%s) %s", mount.point, mount.fstype, text)


def _shown(point: str) -> str:
    """A mount point as a label's value: what is no UTF-8 is replaced."""
    return os.fsencode(point).decode(errors="replace")
