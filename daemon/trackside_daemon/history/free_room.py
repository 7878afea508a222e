"""The free bytes that storage.min-free leaves to others on the disk of the history."""

import shutil
from contextlib import suppress
from pathlib import Path


def lacks_room(directory: Path, least: int) -> bool:
    """Return whether the disk of a directory has fewer free bytes than *least*; False if it does not say."""
    with suppress(OSError):
        return bool(least) and shutil.disk_usage(directory).free < least
    return False
