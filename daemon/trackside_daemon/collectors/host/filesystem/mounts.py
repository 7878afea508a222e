"""Find the mount of a path in mountinfo files, without touching a file system that may hang."""

import errno
import os
import re
import select
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.kernel_files import read, read_base
from trackside_daemon.linux import mountinfo


class Mount(NamedTuple):
    """A mount."""

    number: int  # id of the mount; the kernel reuses ids
    parent: int  # id of the mount that it is mounted on
    device: str  # major and minor number, such as ``254:0``
    point: str  # the mount point
    fstype: str  # the kernel's name of the file system, such as ``ext4``, ``nfs4`` or ``fuse.sshfs``
    readonly: bool  # this mount or the whole file system is read-only
    frozen: bool = False  # the whole file system is read-only

    @property
    def key(self) -> tuple[int, str, str]:
        """Id, device and mount point, which distinguish it from a later mount with the same id."""
        return self.number, self.device, self.point


class MountTable:
    """A mountinfo file.

    Args:
        text: Its content.
    """

    def __init__(self, text: bytes = b"") -> None:
        self.text = text

    def at(self, point: str) -> list[Mount]:
        """Return the mounts at a mount point, in the order of the file; malformed lines are left out."""
        mounts = []
        needle = b" " + _escape(point) + b" r"  # the options follow, "rw" or "ro" first
        position = self.text.find(needle)
        while position >= 0:
            begin = self.text.rfind(b"\n", 0, position) + 1
            end = self.text.find(b"\n", position)
            end = end if end >= 0 else len(self.text)
            mount = parse(self.text[begin:end])
            if mount is not None and mount.point == point:  # the source matches too, as options follow it as well
                mounts.append(mount)
            position = self.text.find(needle, end)
        return mounts


def parse(line: bytes) -> Mount | None:
    """Return the mount of a line; None when it is malformed."""
    for entry in mountinfo.parse(line):
        frozen = "ro" in entry.super_options
        readonly = "ro" in entry.options or frozen
        return Mount(entry.number, entry.parent, entry.device, entry.point, entry.fstype, readonly, frozen)
    return None


def _escape(point: str) -> bytes:
    """Encode a mount point as the kernel writes it."""
    return re.sub(rb"[ \t\n\\]", lambda match: b"\\%03o" % match[0][0], os.fsencode(point))


# File systems that need no server to answer. Any other may hang for ever when its server is down.
LOCAL = frozenset(
    [
        "bcachefs",
        "btrfs",
        "devtmpfs",
        "erofs",
        "exfat",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "hugetlbfs",
        "iso9660",
        "jfs",
        "ramfs",
        "rootfs",
        "squashfs",
        "tmpfs",
        "udf",
        "vfat",
        "xfs",
    ]
)
# These forward requests to what is below them, perhaps to a server. The / of this process is read all the same: while it
# hangs, nothing works here, no other process could start, and every container has such a /.
STACKED = frozenset({"overlay", "zfs"})  # file systems that count as local only where they are the / of this process
AUTOFS = "autofs"  # the file system of a mount point without a mount: reading it would mount something

# The kernel reports no change when a disk becomes read-only.
READ_AGAIN = 10.0  # seconds until mountinfo is read again without a reported change
# Writing a table of thousands of lines takes the kernel milliseconds.
READ_AT_MOST = 3.0  # minimal seconds between two readings
LINKS = 40  # most symbolic links in a path, as in the kernel; more are a loop


class Mounts:
    """The mounts that this process sees below the host's root, with the host's mount points.

    They come from this process's own mountinfo, because only those can be read. Whether one is read-only comes from the
    mountinfo of process 1 where it has the mount, since a service or a container may see a mount read-only that others
    can write.

    Args:
        proc: Path of procfs.
        root: Path of the host's /.
        clock: Seconds that measure `READ_AGAIN`.

    Attributes:
        prefix: Path prefix that maps a path of the host to this process; empty when root is /.
        changed: The last reading differs from the one before, or the kernel reported a change.
    """

    def __init__(self, proc: Path, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.prefix = "" if str(root) == "/" else str(root)
        self.changed = False
        self._own_file = proc / "self" / "mountinfo"
        self._init_file = proc / "1" / "mountinfo"
        self._clock = clock
        self._read_at = float("-inf")
        self._descriptor: int | None = None
        self._poller = select.poll()
        self._change_reported = False
        self._table = MountTable()
        self._host = MountTable()
        self._by_point: dict[str, list[Mount]] = {}
        self._by_number: dict[int, Mount] = {}
        self._root: Mount | None = None
        self._same_root = False
        self._sheltered = False

    def refresh(self) -> bool:
        """Read the mounts again after a change, or after `READ_AGAIN`; return whether they were read.

        Raises:
            NothingToCollect: There is no mountinfo, or nothing is mounted at the root.
            OSError: The file cannot be read.
        """
        now = self._clock()
        self._change_reported = bool(self._poller.poll(0)) or self._change_reported  # poll reports a change only once
        if now - self._read_at < (READ_AT_MOST if self._change_reported else READ_AGAIN):
            return False
        self._watch()
        text = read_base(self._own_file)
        self.changed = self._change_reported or text != self._table.text
        self._change_reported = False
        init_text = _read_if_different(self._init_file, text)
        self._table = MountTable(text)
        self._host = MountTable(init_text or b"")
        self._by_point = {}
        self._by_number = {}
        own_root = self._table.at(self.prefix or "/")
        # With systemd's ProtectSystem=strict, / is read-only for this process alone. Where the mountinfo of process 1 may
        # not be read, the options of the whole file system then decide.
        self._sheltered = init_text is None and bool(own_root) and own_root[-1].readonly and not own_root[-1].frozen
        host_devices = {mount.device for mount in self._host.at("/")}
        at_root = self._at("/")
        if not at_root:
            raise NothingToCollect(
                f"{self._own_file} has no mount at {self.prefix or '/'}; --path.rootfs must be the mount point of the "
                "host's /, and in a chroot, bind-mount its directory first"
            )
        # A file system has the same device number in every mount namespace.
        self._same_root = bool(self.prefix) and any(mount.device in host_devices for mount in at_root)
        self._root = self._top(at_root[0], "/")
        self._read_at = now
        return True

    def of(self, path: str) -> Mount | None:
        """Return the mount that a path of the host leads to, through its links; None when the path does not exist.

        Links are followed only where reading them cannot hang. Beyond such a mount, the rest of the path is not resolved.
        """
        at = ""
        mount = self._root
        links = 0
        rest = _reversed_parts(path)
        while rest and mount is not None:
            if not self.is_local(mount):
                return self._deepest(mount, at, rest)
            name = rest.pop()
            if name == "..":
                at = at.rpartition("/")[0]
                mount = self._covering(at)
                continue
            at = f"{at}/{name}"
            if (covering := self._top(mount, at)) is not mount:
                mount = covering
                continue
            target = self._link_target(at)
            if target is None or (links := links + bool(target)) > LINKS:
                return None
            if target:
                at = "" if target.startswith("/") else at.rpartition("/")[0]
                mount = self._covering(at)
                rest += _reversed_parts(target)
        return None if mount is None or mount.fstype == AUTOFS else mount

    def is_local(self, mount: Mount) -> bool:
        """Return whether neither the mount nor any mount on the way to it may hang."""
        current: Mount | None = mount
        while current is not None:
            own_root = current is self._root and not self.prefix and current.fstype in STACKED
            if current.fstype not in LOCAL and not own_root:
                return False
            current = None if current is self._root else self._by_number.get(current.parent)
        return True

    def hidden(self, path: str) -> str:
        """Return the mount point on a path that the host has and the root here lacks; empty when there is none."""
        if not self._same_root:  # process 1 is in another container
            return ""
        names = _reversed_parts(path)[::-1]
        points = ["/" + "/".join(names[:count]) for count in range(len(names), 0, -1)]
        return next((point for point in points if self._host.at(point) and not self._at(point)), "")

    def close(self) -> None:
        """Close the file that is polled."""
        if self._descriptor is not None:
            self._poller.unregister(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _watch(self) -> None:
        """Open mountinfo anew, so that poll(2) reports changes from here on; for a file of a test it never does."""
        self.close()
        try:
            self._descriptor = os.open(self._own_file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            text = f"{self._own_file} does not exist; is --path.procfs the mount point of procfs?"
            raise NothingToCollect(text) from error
        self._poller.register(self._descriptor, select.POLLPRI)

    def _at(self, point: str) -> list[Mount]:
        """Return this process's mounts at a mount point of the host, with the host's read-only flag."""
        if (cached := self._by_point.get(point)) is not None:
            return cached
        visible = self._table.at(self.prefix + point if point != "/" else self.prefix or "/")
        readonly = {mount.device: mount.readonly for mount in self._host.at(point)} if visible else {}
        if self._sheltered:
            readonly = {mount.device: mount.frozen for mount in visible}
        mounts = [mount._replace(point=point, readonly=readonly.get(mount.device, mount.readonly)) for mount in visible]
        self._by_point[point] = mounts
        self._by_number.update((mount.number, mount) for mount in mounts)
        return mounts

    def _top(self, mount: Mount, point: str) -> Mount:
        """Return the topmost mount over *mount* at *point*; *mount* itself when nothing is mounted over it."""
        over = {upper.parent: upper for upper in self._at(point)}
        while (upper := over.pop(mount.number, None)) is not None:
            mount = upper
        return mount

    def _covering(self, at: str) -> Mount | None:
        """Return the mount of a path without links, searched from the root."""
        return self._deepest(self._root, "", _reversed_parts(at)) if self._root is not None else None

    def _deepest(self, mount: Mount, at: str, rest: list[str]) -> Mount | None:
        """Return the last mount on the way from *mount* at *at*; mountinfo has paths without links, so matches are true."""
        for name in reversed(rest):
            if name == "..":
                break
            at = f"{at}/{name}"
            mount = self._top(mount, at)
        return None if mount.fstype == AUTOFS else mount

    def _link_target(self, at: str) -> str | None:
        """Return a link's target; empty when it is no link or cannot be read, None when it does not exist."""
        try:
            return os.readlink(self.prefix + at)  # noqa: PTH115  a string, many times
        except OSError as error:
            return None if error.errno in (errno.ENOENT, errno.ENOTDIR) else ""


def _reversed_parts(path: str) -> list[str]:
    """Return the components of a path, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _read_if_different(path: Path, own: bytes) -> bytes | None:
    """Return a process's mountinfo; empty when it equals ours, None when it may not be read."""
    # Mount ids are unique in a machine, so the first page decides whether both have the same mounts.
    with suppress(OSError):  # another user's process, or hidden by hidepid
        with path.open("rb", buffering=0) as file:
            first = file.read(4096) or b""
        if not own.startswith(first):
            return read(path)
        return b""
    return None
