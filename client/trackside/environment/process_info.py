"""What this process runs: its command and directory, the interpreter, the system, what is imported, the code's state."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from trackside.environment.git import dirty
from trackside.environment.kubernetes import container, namespace, pod
from trackside.packing import writable
from trackside.wire import ProcessInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

COMMAND_BYTES = 16 * 1024
DIRECTORY_BYTES = 4096
VERSION_LENGTH = 64
NAME_LENGTH = 256
PACKAGES = 200
POD_BYTES = 253
"""Kubernetes has no longer names."""

T = TypeVar("T")

_namespace = vars(ModuleType)["__dict__"].__get__
"""A module's own names. Asking the module itself would make one import itself that waits to be used first."""


def about() -> ProcessInfo:
    """This process's `ProcessInfo`, found out when it is first asked for: a few ms, `trackside.environment.git.SECONDS` at most.

    Never raises: what cannot be found out is left out by itself.
    """
    return _of(os.getpid())


@lru_cache(maxsize=1)
def _of(_pid: int) -> ProcessInfo:
    return ProcessInfo(
        command=_or((), lambda: command(sys.orig_argv)),
        directory=_or("", lambda: _cut(str(Path.cwd()), DIRECTORY_BYTES)),
        python=_or("", lambda: _cut(sys.version.partition(" ")[0], VERSION_LENGTH)),
        platform=_or("", _platform),
        packages=_or({}, lambda: packages(sys.modules)),
        git_dirty=_or(None, lambda: dirty(sys.argv[0] if sys.argv else "")),
        k8s_pod=_or("", lambda: _cut(pod(os.environ), POD_BYTES)),
        k8s_namespace=_or("", lambda: _cut(namespace(os.environ), POD_BYTES)),
        k8s_container=_or("", lambda: _cut(container(os.environ), POD_BYTES)),
        launch=_or("", lambda: _cut(os.environ.get("TRACKSIDE_LAUNCH", ""), VERSION_LENGTH)),
    )


def command(arguments: Iterable[str]) -> tuple[str, ...]:
    """*arguments* as far as they fit into `COMMAND_BYTES`, a byte for the space behind each counted in."""
    kept: list[str] = []
    left = COMMAND_BYTES
    for argument in arguments:
        kept.append(_cut(argument, left))
        left -= len(kept[-1].encode()) + 1
        if left <= 0 or len(kept[-1]) < len(argument):
            break
    return tuple(kept)


def packages(modules: dict[str, ModuleType]) -> dict[str, str]:
    """The versions of the packages among *modules*, by name and in its order: the first `PACKAGES` imported.

    A package is what has a ``__version__`` that is text, and does not come with Python.
    """
    found: dict[str, str] = {}
    for name, module in modules.copy().items():  # other threads import meanwhile
        if len(found) == PACKAGES:
            break
        if "." in name or len(name) > NAME_LENGTH or name in sys.stdlib_module_names:
            continue
        version = _version(module)
        if version:
            found[writable(name)] = version
    return dict(sorted(found.items()))


def _version(module: object) -> str:
    """What the module says, without running any code of it; empty when it says nothing."""
    if not issubclass(type(module), ModuleType):  # None, or whatever else somebody has put there
        return ""
    version = _namespace(module).get("__version__")
    return _cut(str.__str__(version), VERSION_LENGTH) if issubclass(type(version), str) else ""


def _platform() -> str:
    system = os.uname()
    return _cut(f"{system.sysname} {system.release} {system.machine}", NAME_LENGTH)


def _cut(text: str, size: int) -> str:
    """*text* as UTF-8 can write it, in *size* bytes at most."""
    return writable(text).encode()[:size].decode(errors="ignore")


def _or(otherwise: T, find: Callable[[], T]) -> T:
    try:
        return find()
    except Exception:  # noqa: BLE001  user code may have put anything into sys, and training goes on
        return otherwise
