"""Network namespaces that stand for machines: each has its own address, and reaches the daemon's over a bridge."""

from __future__ import annotations

import ctypes
import os
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# For benchmarks of networks, RFC 2544.
DAEMON = "198.18.0.1"
PREFIX = "198.18.1."
CLONE_NEWNET = 0x40000000  # linux/sched.h


@contextmanager
def nodes(count: int) -> Iterator[list[str]]:
    """Make namespaces, joined by a bridge on which this machine has the address `DAEMON`; needs root and ip(8).

    Args:
        count: How many, at most 250; 0 for none, which needs nothing.

    Yields:
        Their names, for `enter`.
    """
    if not count:
        yield []
        return
    own = f"ts{os.getpid() % 100_000}"
    names = [f"{own}-{number}" for number in range(count)]
    with ExitStack() as made:
        _ip("link", "add", own, "type", "bridge")
        made.callback(_ip, "link", "del", own)
        _ip("address", "add", f"{DAEMON}/16", "dev", own)
        _ip("link", "set", own, "up")
        for number, name in enumerate(names):
            _ip("netns", "add", name)
            made.callback(_ip, "netns", "del", name)
            _ip("link", "add", f"{own}v{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", f"{own}v{number}", "master", own, "up")
            for command in (
                ("address", "add", f"{PREFIX}{number + 1}/16", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
            ):
                _ip("-n", name, *command)
        yield names


def enter(name: str) -> None:
    """Move this thread, and those that it starts, into a namespace (setns(2)).

    Raises:
        OSError: This process may not.
    """
    with Path("/run/netns", name).open("rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
