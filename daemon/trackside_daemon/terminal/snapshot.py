"""What is on the screen, as a JSON file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trackside_daemon.terminal.frame import Told


def save(said: Told, directory: Path | None = None) -> Path:
    """Write ``trackside-top-DATE.json`` with the overview, and the series of the chosen run.

    Args:
        said: What the daemon has said.
        directory: None for the working one.

    Raises:
        OSError: It cannot be written; nothing that was there is overwritten.
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
            json.dump({"overview": said.overview, "run": said.run, "series": list(said.series)}, stream, indent=1)
            stream.write("\n")
        return file
