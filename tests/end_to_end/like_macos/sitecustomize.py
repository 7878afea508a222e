"""Make this interpreter resemble Python on macOS, as far as a Linux machine allows.

The platform's name is darwin, functions that macOS lacks are gone, and every access to /proc and /sys fails. psutil is an
exception: it stays the Linux build that reads /proc, because its macOS build cannot run here. So this shows what our own
code needs of Linux, and nothing about psutil on macOS.
"""

from __future__ import annotations

import os
import pathlib
import select
import selectors
import socket
import sys
import sysconfig

# Modules that choose code by sys.platform while they are imported would choose macOS libraries that do not exist here.
import urllib.request
import uuid
from typing import Any

import psutil

_HIDDEN = ("/proc/", "/sys/")
_stat = os.stat


def _is_hidden(path: Any) -> bool:
    if not isinstance(path, (str, bytes, os.PathLike)) or not os.fsdecode(path).startswith(_HIDDEN):
        return False
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "psutil":
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return True


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in {"open", "os.listdir", "os.scandir"} and arguments and _is_hidden(arguments[0]):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])


def _hiding_stat(path: Any, **options: Any) -> os.stat_result:
    if _is_hidden(path):
        raise FileNotFoundError(2, "No such file or directory", path)
    return _stat(path, **options)


assert psutil.LINUX
sysconfig.get_config_vars()  # the same, at its first call
del urllib, uuid
for module, names in {
    os: ("pidfd_open", "pipe2", "memfd_create", "waitid", "sched_getaffinity", "eventfd", "posix_fadvise"),
    select: ("epoll", "EPOLLIN", "EPOLLONESHOT"),
    socket: ("SO_PEERCRED", "SO_PASSCRED", "SOCK_CLOEXEC", "SOCK_NONBLOCK"),
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc, assignment]
os.stat = _hiding_stat
if hasattr(pathlib, "_normal_accessor"):  # Python 3.10 keeps references to the functions of os
    pathlib._normal_accessor.stat = _hiding_stat
sys.addaudithook(_hook)
sys.platform = "darwin"
