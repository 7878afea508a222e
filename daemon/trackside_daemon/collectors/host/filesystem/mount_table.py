"""Find mounts in the text of a mountinfo file; only matching lines are parsed, as a node may have thousands."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from trackside_daemon.linux import mountinfo


class Mount(NamedTuple):
    """A mount.

    Attributes:
        number: Id of the mount; the kernel reuses ids.
        parent: Id of the mount that it is mounted on.
        device: Major and minor number, such as ``254:0``.
        point: The mount point.
        fstype: The kernel's name of the file system, such as ``ext4``, ``nfs4`` or ``fuse.sshfs``.
        readonly: This mount or the whole file system is read-only.
        frozen: The whole file system is read-only.
    """

    number: int
    parent: int
    device: str
    point: str
    fstype: str
    readonly: bool
    frozen: bool = False

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
