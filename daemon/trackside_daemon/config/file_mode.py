"""A check that a configuration file with secrets is closed to other users."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from pydantic import SecretStr

from trackside_daemon.config.loading import set_in
from trackside_daemon.config.names import dotted, setting, setting_paths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trackside_daemon.config.loading import Settings


def file_warnings(model: type[Settings], file: Path) -> Iterator[str]:
    """Yield one line if a valid configuration file contains a secret and others may read or change it."""
    status = file.stat()
    # As for keys: a group may read a file that root owns, such as that of the system's daemon.
    # A pipe cannot be read again.
    if not stat.S_ISREG(status.st_mode) or not status.st_mode & (0o037 if status.st_uid == 0 else 0o077):
        return
    secrets = (path for path in setting_paths(model) if setting(model, path).annotation is SecretStr)
    if found := set_in(file, secrets):
        yield f"{file}: others may read it, and {', '.join(map(dotted, found))} is secret: chmod 600 {file}"
