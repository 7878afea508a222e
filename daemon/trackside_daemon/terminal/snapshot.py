"""Snapshot of the data on the screen, as a JSON file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trackside_daemon.terminal.frame import DaemonData


def save(data: DaemonData, directory: Path | None = None) -> Path:
    """Write ``trackside-top-DATE.json`` with the overview, and the series of the selected run.

    Args:
        data: Responses of the daemon.
        directory: Directory of the file; None for the working directory.

    Returns:
        The path of the file. No existing file is overwritten.

    Raises:
        OSError: The file cannot be written.
    """
    folder = (directory or Path()).absolute()
    stem = time.strftime("trackside-top-%Y%m%d-%H%M%S")
    number = 1
    while True:
        file = folder / (f"{stem}.json" if number == 1 else f"{stem}-{number}.json")
        try:
            stream = file.open("x", encoding="utf-8")
        except FileExistsError:
            number += 1
            continue
        with stream:
            json.dump({"overview": data.overview, "run": data.run, "series": list(data.series)}, stream, indent=1)
            stream.write("\n")
        return file
