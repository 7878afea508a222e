"""What /proc/PID/mountinfo says, the one table of mounts that the kernel has."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import NamedTuple

_ESCAPED = re.compile(rb"\\([0-7]{3})")


class Line(NamedTuple):
    """One of them, as proc_pid_mountinfo(5) has it.

    Attributes:
        number: The mount's id, and *parent* that of the mount that it is on.
        device: Major and minor number, such as ``254:0``.
        root: The directory of the file system that is seen at *point*.
        point: Where it is mounted.
        options: Of this mount.
        fstype: As the kernel names it, such as ``ext4``, ``nfs4`` or ``fuse.sshfs``.
        more: Options of the whole file system; of cgroup v1 the controllers.
    """

    number: int
    parent: int
    device: str
    root: str
    point: str
    options: tuple[str, ...]
    fstype: str
    more: tuple[str, ...]


def parse(text: bytes) -> list[Line]:
    r"""The lines of a mountinfo file, in its order; one that is none is left out.

    Only ``\n`` ends a line: the kernel writes that one in octal where a name has it, and ``\r`` as it is.
    """
    lines = []
    for line in text.split(b"\n"):
        with suppress(ValueError):  # too few columns, or an id that is no number: the kernel writes neither
            before, after = line.split(b" - ", 1)
            number, parent, device, root, point, options, *_ = before.split(b" ")
            fstype, _, more = after.split(b" ", 2)
            numbers = int(number), int(parent), device.decode()
            names = _plain(root), _plain(point)
            lines.append(Line(*numbers, *names, _options(options), _plain(fstype), _options(more)))
    return lines


def _options(word: bytes) -> tuple[str, ...]:
    return tuple(_plain(option) for option in word.split(b","))


def _plain(word: bytes) -> str:
    """A word, where the kernel writes space, tab, newline, backslash and # in octal."""
    if b"\\" in word:
        word = _ESCAPED.sub(lambda found: bytes([int(found[1], 8) & 0xFF]), word)
    return os.fsdecode(word)
