"""Parse /proc/PID/mountinfo, the kernel's table of mounts (proc_pid_mountinfo(5))."""

import os
import re
from contextlib import suppress
from typing import NamedTuple

_OCTAL = re.compile(rb"\\([0-7]{3})")


class MountLine(NamedTuple):
    """A line of mountinfo."""

    number: int  # id of the mount
    parent: int  # id of the mount that it is mounted on
    device: str  # major and minor number, such as ``254:0``
    root: str  # the directory of the file system that appears at *point*
    point: str  # the mount point
    options: tuple[str, ...]  # options of this mount
    fstype: str  # the kernel's name of the file system, such as ``ext4``, ``nfs4`` or ``fuse.sshfs``
    super_options: tuple[str, ...]  # options of the whole file system; the controllers in case of cgroup v1


def parse(text: bytes) -> list[MountLine]:
    """Return the lines of a mountinfo file in their order; malformed lines are left out."""
    lines = []
    # Not splitlines(): the kernel writes a newline in a name as octal, but a carriage return unchanged.
    for line in text.split(b"\n"):
        with suppress(ValueError):  # too few columns or an id that is not a number; the kernel writes neither
            before, after = line.split(b" - ", 1)
            # Optional fields such as shared:1 follow, any number of them; a lone hyphen ends them.
            number, parent, device, root, point, options, *_ = before.split(b" ")
            fstype, _, super_options = after.split(b" ", 2)
            lines.append(
                MountLine(
                    int(number),
                    int(parent),
                    device.decode(),
                    _unescape(root),
                    _unescape(point),
                    _options(options),
                    _unescape(fstype),
                    _options(super_options),
                )
            )
    return lines


def _options(word: bytes) -> tuple[str, ...]:
    return tuple(_unescape(option) for option in word.split(b","))


def _unescape(word: bytes) -> str:
    """Decode a word in which the kernel writes space, tab, newline, backslash and # in octal."""
    if b"\\" in word:
        # Three octal digits can exceed a byte, and bytes() would raise an error.
        word = _OCTAL.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), word)
    return os.fsdecode(word)
