"""Which mount a path is on, found out without touching a file system that may hang."""

from __future__ import annotations

import errno
import os
import select
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.host.filesystem.mount_table import Mount, MountTable
from trackside_daemon.collectors.kernel_files import read, read_base

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOCAL = frozenset(
    {
        *("bcachefs", "btrfs", "devtmpfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hugetlbfs", "iso9660"),
        *("jfs", "ramfs", "rootfs", "squashfs", "tmpfs", "udf", "vfat", "xfs"),
    }
)
"""Kinds of file systems whose answer needs nobody else. What is not named here may hang for ever when its server does."""
OURS = frozenset({"overlay", "zfs"})
"""Kinds that ask what is below them, a server perhaps. The / that this process runs from is asked all the same: without
it nothing goes on here, no other process could be started, and every container has one."""
AUTOFS = "autofs"
"""Where nothing is mounted yet: asking would mount it."""

READ_AGAIN = 10.0
"""Seconds until mountinfo is read again though the kernel tells of no change: a disk that becomes read-only is none."""
READ_AT_MOST = 3.0
"""Seconds between two readings however often it changes: to write a table of thousands takes the kernel milliseconds."""
LINKS = 40
"""More symbolic links than that in a path are a circle, as for the kernel."""


class Mounts:
    """The mounts that this process sees below the host's root, with the host's own names.

    They come from its own mountinfo, since only what is there can be asked. Whether one is read-only is what the first
    process's mountinfo says, where it knows the mount: a service or a container may see it read-only when others do not.
    Where that may not be read and / itself is read-only for this process alone, as below systemd's ProtectSystem=strict,
    it is what the file system says of itself.

    Args:
        proc: Where procfs is mounted.
        root: Where the host's / is.
        clock: Seconds that `READ_AGAIN` is measured by.

    Attributes:
        prefix: What stands before a path of the host to find it here; empty when root is /.
        changed: Whether what was read last differs from what was read before, or the kernel told of a change.
    """

    def __init__(self, proc: Path, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.prefix = "" if str(root) == "/" else str(root)
        self.changed = False
        self._own, self._first = proc / "self" / "mountinfo", proc / "1" / "mountinfo"
        self._clock = clock
        self._read_at = float("-inf")
        self._watched: int | None = None
        self._poller = select.poll()
        self._told = False
        self._table, self._host = MountTable(), MountTable()
        self._known: dict[str, list[Mount]] = {}
        self._numbered: dict[int, Mount] = {}
        self._root: Mount | None = None
        self._same_root = self._sheltered = False

    def refresh(self) -> bool:
        """Reads them again when they have changed, or after `READ_AGAIN`; whether they were read.

        Raises:
            NothingToCollect: There is no mountinfo, or nothing is mounted at the root.
            OSError: It cannot be read.
        """
        now = self._clock()
        self._told = bool(self._poller.poll(0)) or self._told  # it tells of a change once
        if now - self._read_at < (READ_AT_MOST if self._told else READ_AGAIN):
            return False
        self._watch()
        text = read_base(self._own)
        self.changed, self._told = self._told or text != self._table.text, False
        first = _unlike(self._first, text)
        self._table, self._host = MountTable(text), MountTable(first or b"")
        self._known, self._numbered = {}, {}
        own = self._table.at(self.prefix or "/")
        self._sheltered = first is None and bool(own) and own[-1].readonly and not own[-1].frozen
        hosts = {one.device for one in self._host.at("/")}
        tops = self._at("/")
        if not tops:
            raise NothingToCollect(
                f"{self._own} has no mount at {self.prefix or '/'}; --path.rootfs is where the host's / is mounted, "
                "and in a chroot, bind-mount its directory first"
            )
        self._same_root = bool(self.prefix) and any(one.device in hosts for one in tops)
        self._root = self._top(tops[0], "/")
        self._read_at = now
        return True

    def of(self, path: str) -> Mount | None:
        """The mount that a path of the host leads to, through its links; None when the path is not there.

        A link is read only where that cannot hang. Where another begins, the rest of the path is taken as it stands.
        """
        at, mount, links = "", self._root, 0
        rest = _parts(path)
        while rest and mount is not None:
            if not self.answers(mount):
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

    def answers(self, mount: Mount) -> bool:
        """Whether it answers by itself, and so does all that the way to it leads over."""
        on: Mount | None = mount
        while on is not None:
            at_home = on is self._root and not self.prefix and on.fstype in OURS
            if on.fstype not in LOCAL and not at_home:
                return False
            on = None if on is self._root else self._numbered.get(on.parent)
        return True

    def hidden(self, path: str) -> str:
        """The mount point on the way to a path that is the host's alone: below the root it is not; empty for none."""
        if not self._same_root:  # the first process is in another container
            return ""
        names = _parts(path)[::-1]
        points = ["/" + "/".join(names[:count]) for count in range(len(names), 0, -1)]
        return next((point for point in points if self._host.at(point) and not self._at(point)), "")

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

    def _at(self, point: str) -> list[Mount]:
        """Ours at a point of the host, read-only as the host says."""
        if (known := self._known.get(point)) is not None:
            return known
        ours = self._table.at(self.prefix + point if point != "/" else self.prefix or "/")
        told = {one.device: one.readonly for one in self._host.at(point)} if ours else {}
        if self._sheltered:
            told = {one.device: one.frozen for one in ours}
        mounts = [one._replace(point=point, readonly=told.get(one.device, one.readonly)) for one in ours]
        self._known[point] = mounts
        self._numbered.update((one.number, one) for one in mounts)
        return mounts

    def _top(self, mount: Mount, point: str) -> Mount:
        """What is mounted over *mount* at *point*, and over that; *mount* itself when nothing is."""
        over = {one.parent: one for one in self._at(point)}
        while (next_one := over.pop(mount.number, None)) is not None:
            mount = next_one
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


def _unlike(path: Path, own: bytes) -> bytes | None:
    """A process's mountinfo, None when it may not be read; empty when it has our mounts, which their ids tell at once."""
    with suppress(OSError):  # another user's, or hidden by hidepid
        with path.open("rb", buffering=0) as file:
            first = file.read(4096) or b""
        if not own.startswith(first):
            return read(path)
        return b""
    return None
