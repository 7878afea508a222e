"""The kernel's table of mounts, of which only the lines that are asked for are taken apart: a node may have thousands."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import NamedTuple


class Mount(NamedTuple):
    """A line of mountinfo.

    Attributes:
        number: Its id, and *parent* that of the mount that it is on. The kernel uses ids again.
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
    with suppress(ValueError):  # too few columns, or an id that is no number: proc_pid_mountinfo(5) has neither
        before, after = line.split(b" - ", 1)
        number, parent, device, _, point, options, *_ = before.split(b" ")
        fstype, _, more = after.split(b" ", 2)
        readonly = b"ro" in options.split(b",") or b"ro" in more.split(b",")
        return Mount(int(number), int(parent), device.decode(), _plain(point), _plain(fstype), readonly)
    return None


def _escaped(point: str) -> bytes:
    """As the kernel writes it."""
    return re.sub(rb"[ \t\n\\]", lambda found: b"\\%03o" % found[0][0], os.fsencode(point))


def _plain(word: bytes) -> str:
    """A word of mountinfo, where the kernel writes space, tab, newline, backslash and # in octal."""
    if b"\\" in word:
        word = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), word)
    return os.fsdecode(word)
