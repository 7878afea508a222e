"""Room of the file systems of some paths; one that does not answer does not affect the others."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from trackside.log_once import LogOnce
from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.host.filesystem.mounts import Mount, Mounts
from trackside_daemon.collectors.host.filesystem.remote import Answer, RemoteFilesystems, Room
from trackside_daemon.model.families import host
from trackside_daemon.model.metric import Sample

_log = logging.getLogger("trackside")


class FilesystemCollector:
    """The file systems of the configured paths, each once.

    The tick itself reads local ones. Another process reads the others, because statvfs(3) hangs for ever on a file
    system whose server is down.

    Args:
        paths: Absolute paths of the host. A path that does not exist is checked again later.
        proc: Path of procfs.
        root: Path of the host's /.
        remote: Reads those that may hang; None for one of its own.
        clock: Seconds that measure deadlines.

    Attributes:
        remote: What reads those that may hang.
    """

    name = "filesystem"

    def __init__(
        self,
        paths: Sequence[str],
        proc: Path,
        root: Path,
        *,
        remote: RemoteFilesystems | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = tuple(dict.fromkeys(paths))
        self._mounts = Mounts(proc, root, clock)
        self.remote = RemoteFilesystems() if remote is None else remote
        self._local_mounts: list[Mount] = []
        self._remote_mounts: list[Mount] = []
        self._missing: set[str] = set()
        self._logged = LogOnce()

    def collect(self) -> list[Sample]:
        """Return up to seven samples per file system, one for a file system that fails.

        Raises:
            NothingToCollect: There is no mountinfo, or no path is configured.
            OSError: The mountinfo cannot be read.
        """
        if not self._paths:
            raise NothingToCollect(
                "collector.filesystem.paths is empty; list / and the paths of your data and checkpoints"
            )
        if self._mounts.refresh():
            self._find_mounts()
        samples: list[Sample] = []
        for mount in self._local_mounts:
            samples += self._samples(mount, self._read(mount))
        answers = self.remote.read(self._remote_mounts, self._mounts.prefix)
        for mount in self._remote_mounts:
            samples += self._samples(mount, answers.get(mount.key))
        return samples

    def close(self) -> None:
        """End the worker processes within half a second; leave to the kernel those that hang in it."""
        self.remote.close()
        self._mounts.close()

    def _find_mounts(self) -> None:
        """Find the file systems of the paths, and which of them may hang."""
        hidden = {path: point for path in self._paths if (point := self._mounts.hidden(path))}
        by_path = {path: self._mounts.of(path) for path in self._paths if path not in hidden}
        self._log_missing(hidden, {path for path, mount in by_path.items() if mount is None})
        mounts = {mount.point: mount for mount in by_path.values() if mount is not None}
        self._local_mounts = [mount for mount in mounts.values() if self._mounts.is_local(mount)]
        self._remote_mounts = [mount for mount in mounts.values() if mount not in self._local_mounts]
        if self._mounts.changed:
            self.remote.hasten()
        for gone in self._logged.keys() - mounts.keys():
            del self._logged[gone]

    def _log_missing(self, hidden: dict[str, str], absent: set[str]) -> None:
        """Log each path without a file system here, once."""
        for path in sorted(absent - self._missing):
            _log.info("collector.filesystem.paths: %s does not exist; it is shown as soon as it does", path)
        for path in sorted(hidden.keys() - self._missing):
            _log.warning(
                "collector.filesystem.paths: %s is on %s of the host, which is not visible below %s; mount the host's / "
                "there with propagation: rslave, or HostToContainer in Kubernetes",
                path,
                hidden[path],
                self._mounts.prefix,
            )
        self._missing = absent | hidden.keys()

    def _read(self, mount: Mount) -> Answer:
        try:
            stat = os.statvfs(self._mounts.prefix + mount.point)
        except OSError as error:
            return error
        # statvfs(3) counts blocks in units of f_frsize, not of f_bsize.
        return Room(stat.f_frsize, stat.f_blocks, stat.f_bfree, stat.f_bavail, stat.f_files, stat.f_ffree)

    def _samples(self, mount: Mount, answer: Answer | None) -> Iterable[Sample]:
        if answer is None:
            return
        labels = (_label(mount.point), mount.fstype)
        self._log_change(mount, answer)
        if isinstance(answer, PermissionError):  # the state of the file system is unknown
            return
        if isinstance(answer, OSError):
            yield Sample(host.FILESYSTEM_DEVICE_ERROR, labels, 1.0)
            return
        yield Sample(host.FILESYSTEM_DEVICE_ERROR, labels, 0.0)
        yield Sample(host.FILESYSTEM_READONLY, labels, float(mount.readonly))
        if answer.blocks:
            yield Sample(host.FILESYSTEM_SIZE, labels, answer.unit * answer.blocks)
            yield Sample(host.FILESYSTEM_FREE, labels, answer.unit * answer.free)
            yield Sample(host.FILESYSTEM_AVAIL, labels, answer.unit * answer.avail)
        if answer.files:  # btrfs, for example, counts no inodes
            yield Sample(host.FILESYSTEM_FILES, labels, answer.files)
            yield Sample(host.FILESYSTEM_FILES_FREE, labels, answer.files_free)

    def _log_change(self, mount: Mount, answer: Answer) -> None:
        """Log once when a file system begins to fail, and once when it answers again."""
        if isinstance(answer, TimeoutError):
            text = (
                "does not answer: its server is down or unreachable, and every process that uses it hangs; restart the "
                f"server, or unmount it with umount -f -l {mount.point}"
            )
        elif isinstance(answer, PermissionError):
            text = (
                f"cannot be read: {answer.strerror}; allow the daemon's user to enter the directories above it, or remove "
                "it from collector.filesystem.paths"
            )
        elif isinstance(answer, OSError):
            text = f"cannot be read: {answer.strerror}"
        else:
            if self._logged.pop(mount.point, None) is not None:
                _log.info("the file system at %s answers again", mount.point)
            return
        if self._logged.first(mount.point, text):
            _log.warning("the file system at %s (%s) %s", mount.point, mount.fstype, text)


def _label(point: str) -> str:
    """Return a mount point as a label's value, with invalid UTF-8 replaced."""
    return os.fsencode(point).decode(errors="replace")
