"""Which mount a path is on, found out without touching a file system that may hang."""

from __future__ import annotations

import errno
import os
import select
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon import mountinfo
from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.files import read, read_base

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

LOCAL = frozenset(
    {
        *("bcachefs", "btrfs", "devtmpfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hugetlbfs", "iso9660"),
        *("jfs", "overlay", "ramfs", "rootfs", "squashfs", "tmpfs", "udf", "vfat", "xfs", "zfs"),
    }
)
"""Kinds of file systems whose answer needs nobody else. What is not named here may hang for ever when its server does."""
AUTOFS = "autofs"
"""Where nothing is mounted yet: asking would mount it."""

READ_AGAIN = 10.0
"""Seconds until mountinfo is read again though the kernel tells of no change: a disk that becomes read-only is none."""
LINKS = 40
"""More symbolic links than that in a path are a circle, as for the kernel."""


class Mount(NamedTuple):
    """A line of mountinfo.

    Attributes:
        number: Its id, and *parent* that of the mount that it is on.
        device: Major and minor number, such as ``254:0``.
        point: Where it is mounted.
        fstype: As the kernel names it, such as ``ext4``, ``nfs4`` or ``fuse.sshfs``.
        readonly: Whether this mount, or the whole file system, is.
    """

    number: int
    parent: int
    device: str
    point: str
    fstype: str
    readonly: bool

    @property
    def local(self) -> bool:
        """Whether it answers by itself."""
        return self.fstype in LOCAL


def parse(text: bytes) -> list[Mount]:
    """The mounts of a mountinfo file, in its order; a line that is none is left out."""
    return [
        Mount(one.number, one.parent, one.device, one.point, one.fstype, "ro" in one.options or "ro" in one.more)
        for one in mountinfo.parse(text)
    ]


class Mounts:
    """The mounts that this process sees below the host's root, with the host's own names.

    They come from its own mountinfo, since only what is there can be asked. Whether one is read-only is what the first
    process's mountinfo says, where it knows the mount: a service or a container may see it read-only when others do not.

    Args:
        proc: Where procfs is mounted.
        root: Where the host's / is.
        clock: Seconds that `READ_AGAIN` is measured by.

    Attributes:
        prefix: What stands before a path of the host to find it here; empty when root is /.
    """

    def __init__(self, proc: Path, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.prefix = "" if str(root) == "/" else str(root)
        self._own, self._first = proc / "self" / "mountinfo", proc / "1" / "mountinfo"
        self._clock = clock
        self._read_at = float("-inf")
        self._watched: int | None = None
        self._poller = select.poll()
        self._root: Mount | None = None
        self._on: dict[tuple[int, str], Mount] = {}
        self._unseen: list[str] = []

    def refresh(self) -> bool:
        """Reads them again when they have changed, or after `READ_AGAIN`; whether they were read.

        Raises:
            NothingToCollect: There is no mountinfo, or nothing is mounted at the root.
            OSError: It cannot be read.
        """
        now = self._clock()
        if now - self._read_at < READ_AGAIN and not self._poller.poll(0):
            return False
        self._watch()
        own, first = read_base(self._own), b""
        with suppress(OSError):  # hidden by hidepid, or by a container
            first = read(self._first)
        mounts = list(self._below(parse(own)))
        self._unseen = []
        if first != own:
            mounts = self._compare(mounts, parse(first))
        self._on = {(one.parent, one.point): one for one in mounts}
        top = [one for one in mounts if one.point == "/"]
        if not top:
            where = self.prefix or "/"
            raise NothingToCollect(f"{self._own} has no mount at {where}; in a chroot, bind-mount its directory first")
        self._root = self._top(top[0], "/")
        self._read_at = now
        return True

    def of(self, path: str) -> Mount | None:
        """The mount that a path of the host leads to, through its links; None when the path is not there.

        A link is read only on a local file system. Where another begins, the rest of the path is taken as it stands.
        """
        at, mount, links = "", self._root, 0
        rest = _parts(path)
        while rest and mount is not None:
            if not mount.local:
                return self._deepest(mount, at, rest)
            name = rest.pop()
            if name == "..":
                at = at.rpartition("/")[0]
                mount = self._covering(at)
                continue
            at = f"{at}/{name}"
            if (on := self._top(mount, at)) is not mount:
                mount = on
                continue
            target = self._link(at)
            if target is None or (links := links + bool(target)) > LINKS:
                return None
            if target:
                at = "" if target.startswith("/") else at.rpartition("/")[0]
                mount = self._covering(at)
                rest += _parts(target)
        return None if mount is None or mount.fstype == AUTOFS else mount

    def hidden(self, path: str) -> str:
        """The mount point on the way to a path that is the host's alone: below the root it is not; empty for none."""
        return next((point for point in self._unseen if f"{path}/".startswith(f"{point}/")), "")

    def close(self) -> None:
        """Lets go of the file that is watched."""
        if self._watched is not None:
            self._poller.unregister(self._watched)
            os.close(self._watched)
            self._watched = None

    def _watch(self) -> None:
        """From here on, poll(2) tells of changes to what this process sees; of a fixture it never does."""
        self.close()
        try:
            self._watched = os.open(self._own, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NothingToCollect(f"{self._own} is not there; is --path.procfs where procfs is mounted?") from error
        self._poller.register(self._watched, select.POLLPRI)

    def _compare(self, mounts: list[Mount], host: list[Mount]) -> list[Mount]:
        """Ours, read-only as the host says; what it has beyond is noted, when it is the one whose / is at our root."""
        told = {(one.point, one.device): one.readonly for one in host}
        if self.prefix and any(one.point == "/" and ("/", one.device) in told for one in mounts):
            self._unseen = sorted({one.point for one in host} - {one.point for one in mounts}, key=len, reverse=True)
        return [one._replace(readonly=told.get((one.point, one.device), one.readonly)) for one in mounts]

    def _below(self, mounts: Iterable[Mount]) -> Iterable[Mount]:
        for one in mounts:
            if one.point == self.prefix:
                yield one._replace(point="/")
            elif one.point.startswith(f"{self.prefix}/"):
                yield one._replace(point=one.point.removeprefix(self.prefix))

    def _top(self, mount: Mount, point: str) -> Mount:
        """What is mounted over *mount* at *point*, and over that; *mount* itself when nothing is."""
        while (over := self._on.get((mount.number, point))) is not None and over is not mount:
            mount = over
        return mount

    def _covering(self, at: str) -> Mount | None:
        """The mount of a path without links, from the root on."""
        return self._deepest(self._root, "", _parts(at)) if self._root is not None else None

    def _deepest(self, mount: Mount, at: str, rest: list[str]) -> Mount | None:
        """The last mount on the way from *mount* at *at*: mountinfo has true paths, so one that is met is met rightly."""
        for name in reversed(rest):
            if name == "..":
                break
            at = f"{at}/{name}"
            mount = self._top(mount, at)
        return None if mount.fstype == AUTOFS else mount

    def _link(self, at: str) -> str | None:
        """Where it leads when it is a link, empty when it is none or cannot be seen, None when it is not there."""
        try:
            return os.readlink(self.prefix + at)  # noqa: PTH115  a string, many times
        except OSError as error:
            return None if error.errno in (errno.ENOENT, errno.ENOTDIR) else ""


def _parts(path: str) -> list[str]:
    """Its components, the first one last."""
    return [one for one in reversed(path.split("/")) if one not in ("", ".")]
