"""The kernel's table of mounts, of which only the lines that are asked for are taken apart: a node may have thousands."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from trackside_daemon.linux import mountinfo


class Mount(NamedTuple):
    """A line of mountinfo.

    Attributes:
        number: Its id, and *parent* that of the mount that it is on. The kernel uses ids again.
        device: Major and minor number, such as ``254:0``.
        point: Where it is mounted.
        fstype: As the kernel names it, such as ``ext4``, ``nfs4`` or ``fuse.sshfs``.
        readonly: Whether this mount, or the whole file system, is.
        frozen: Whether the whole file system is.
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
        """What tells it from a mount that is given its id when it is gone, as far as the kernel tells."""
        return self.number, self.device, self.point


class MountTable:
    """A mountinfo file.

    Args:
        text: All of it.
    """

    def __init__(self, text: bytes = b"") -> None:
        self.text = text

    def at(self, point: str) -> list[Mount]:
        """The mounts at a point, in the order of the file; a line that is none is left out."""
        mounts = []
        needle = b" " + _escaped(point) + b" r"  # its options follow, rw or ro first
        found = self.text.find(needle)
        while found >= 0:
            begin, end = self.text.rfind(b"\n", 0, found) + 1, self.text.find(b"\n", found)
            end = end if end >= 0 else len(self.text)
            mount = parse(self.text[begin:end])
            if mount is not None and mount.point == point:  # else it is the source, which has options behind it too
                mounts.append(mount)
            found = self.text.find(needle, end)
        return mounts


def parse(line: bytes) -> Mount | None:
    """The mount of a line; None when it is none."""
    for one in mountinfo.parse(line):
        frozen = "ro" in one.more
        return Mount(one.number, one.parent, one.device, one.point, one.fstype, "ro" in one.options or frozen, frozen)
    return None


def _escaped(point: str) -> bytes:
    """As the kernel writes it."""
    return re.sub(rb"[ \t\n\\]", lambda found: b"\\%03o" % found[0][0], os.fsencode(point))
