"""The command that runs one of our own modules, which never imports from the working directory."""

from __future__ import annotations

import os
import sys
from stat import S_IWGRP, S_IWOTH
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# ``-m`` puts the working directory before the standard library, and others may write there. -P is of Python 3.11.
_WITHOUT_DIRECTORY = (
    "import sys; sys.path[:] = [entry for entry in sys.path if entry]; "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def own_module(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Return the command that runs a module of trackside.

    Args:
        module: Its name.
        arguments: Its arguments.
        python: The interpreter, of any version; this process's by default.
    """
    if python == sys.executable and sys.version_info >= (3, 11):
        return [python, "-P", "-m", module, *arguments]
    return [python, "-c", _WITHOUT_DIRECTORY, module, *arguments]


def import_warnings(directory: Path, path: Sequence[str] = sys.path) -> Iterator[str]:
    """Yield one line if this process imports from its working directory, where others may write.

    Args:
        directory: The working directory.
        path: Where modules are looked for.
    """
    if not {"", str(directory)} & {*path}:
        return
    about = directory.stat()
    shared = about.st_mode & S_IWOTH or (about.st_mode & S_IWGRP and about.st_gid != os.getegid())
    if shared or about.st_uid not in {0, os.geteuid()}:
        yield (
            f"this daemon imports from its working directory {directory}, where others may write, and so run as this user; "
            "start it elsewhere, without an empty entry in PYTHONPATH"
        )
