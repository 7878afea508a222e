"""Start a command as the unit does, as far as possible without systemd: `python confine.py UNIT COMMAND …`.

It applies these settings of the unit: UMask, NoNewPrivileges, SystemCallFilter, RestrictAddressFamilies,
RestrictNamespaces, RestrictSUIDSGID and MemoryDenyWriteExecute. It uses only the standard library, and imports nothing
of the project.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from pathlib import Path

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EQUAL, MASKED_EQUAL = 4, 7
PR_SET_NO_NEW_PRIVS, PR_SET_MDWE, REFUSE_EXEC_GAIN = 38, 65, 1
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
SUID, SGID = 0o4000, 0o2000

libc = ctypes.CDLL(None, use_errno=True)


class Comparison(ctypes.Structure):
    """struct scmp_arg_cmp of <seccomp.h>."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


class Filter:
    """One filter of libseccomp; the kernel holds the strictest of those that are loaded."""

    def __init__(self, otherwise: int) -> None:
        self._library = ctypes.CDLL("libseccomp.so.2")
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._library.seccomp_rule_add_array.argtypes = (
            *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint),
            ctypes.POINTER(Comparison),
        )
        self._context = ctypes.c_void_p(self._library.seccomp_init(otherwise))

    def rule(self, action: int, name: str, *comparisons: Comparison) -> None:
        """Add a rule for a system call with these arguments; skip a call that this machine lacks."""
        number = self._library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:
            array = (Comparison * len(comparisons))(*comparisons)
            done = self._library.seccomp_rule_add_array(self._context, action, number, len(comparisons), array)
            if done:
                raise OSError(-done, name)

    def load(self) -> None:
        """Load the filter into this process."""
        if done := self._library.seccomp_load(self._context):
            raise OSError(-done, "seccomp_load")


def settings(unit: Path) -> dict[str, list[str]]:
    """Return the values of the unit's settings, by name."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def calls(names: list[str]) -> set[str]:
    """Return the system calls of a list, including those of groups with @."""
    found: set[str] = set()
    for name in names:
        if name.startswith("@"):
            listed = subprocess.run(
                ["systemd-analyze", "--no-pager", "syscall-filter", name], capture_output=True, text=True, check=True
            ).stdout.splitlines()
            found |= calls([line.strip() for line in listed[1:] if line.strip() and "#" not in line])
        else:
            found.add(name)
    return found


def allowed(lines: list[str]) -> set[str]:
    """Return the calls that the lines of SystemCallFilter allow."""
    left = calls(["@default"])
    for line in lines:
        if line.startswith("~"):
            left -= calls(line[1:].split())
        else:
            left |= calls(line.split())
    return left


def confine(unit: dict[str, list[str]]) -> None:
    """Apply the settings of the unit to this process."""
    only = allowed(unit["SystemCallFilter"])
    os.umask(int(unit["UMask"][0], 8))
    for option, value in ((PR_SET_NO_NEW_PRIVS, 1), (PR_SET_MDWE, REFUSE_EXEC_GAIN)):
        refused = libc.prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0)))
        if refused and not (option == PR_SET_MDWE and ctypes.get_errno() == errno.EINVAL):  # before Linux 6.3
            raise OSError(ctypes.get_errno(), f"prctl {option}")
    others = Filter(ALLOW)
    families = {FAMILIES[name] for name in unit["RestrictAddressFamilies"][0].split()}
    for family in set(range(64)) - families:
        others.rule(ERRNO | errno.EAFNOSUPPORT, "socket", Comparison(0, EQUAL, family, 0))
    for flag in NAMESPACES:
        for name in ("clone", "unshare"):
            others.rule(ERRNO | errno.EPERM, name, Comparison(0, MASKED_EQUAL, flag, flag))
    others.rule(ERRNO | errno.ENOSYS, "clone3")
    for bit in (SUID, SGID):
        for name, argument in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("mkdir", 1), ("mkdirat", 2)):
            others.rule(ERRNO | errno.EPERM, name, Comparison(argument, MASKED_EQUAL, bit, bit))
    others.load()
    strict = Filter(ERRNO | errno.EPERM)
    for name in only | {"seccomp"}:
        strict.rule(ALLOW, name)
    strict.load()


if __name__ == "__main__":
    confine(settings(Path(sys.argv[1])))
    os.execvp(sys.argv[2], sys.argv[2:])
