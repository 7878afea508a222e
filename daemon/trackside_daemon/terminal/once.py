"""The data of one moment: as a frame of text, or as a file."""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from trackside_daemon.terminal.frame import DaemonData, plot_columns, render_frame
from trackside_daemon.terminal.polling import PolledDaemon, fetch
from trackside_daemon.terminal.styled_lines import to_ansi, to_text
from trackside_daemon.terminal.view import View

MIN_WIDTH = 40


def no_colour() -> bool:
    """Return whether the user or the terminal wants no colour."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "").endswith(("dumb", "-m", "-mono"))


def render_once(daemon: PolledDaemon) -> Iterator[str]:
    """Return the lines of a frame, as wide as the terminal or $COLUMNS.

    The frame is as high as the terminal or $LINES; without both, as high as necessary.

    Raises:
        UnansweredError: The daemon does not answer.
    """
    is_terminal = sys.stdout.isatty()
    size = shutil.get_terminal_size()
    columns, lines = size.columns or 80, size.lines or 24  # Python 3.10 returns 0 for a terminal of unknown size
    width = max(MIN_WIDTH, columns)
    # One line is left for the shell's prompt.
    height = lines - 1 if is_terminal or os.environ.get("LINES", "").isdecimal() else None
    view = View(columns=plot_columns(width))
    data = fetch(daemon, view)
    render = to_ansi if is_terminal and not no_colour() else to_text
    return (render(line) for line in chain.from_iterable(render_frame(data, view, width, height)))


def save_snapshot(data: DaemonData, directory: Path | None = None) -> Path:
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
