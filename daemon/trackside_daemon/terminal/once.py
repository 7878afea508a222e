"""One frame as text."""

from __future__ import annotations

import os
import shutil
import sys
from itertools import chain
from typing import TYPE_CHECKING

from trackside_daemon.terminal.frame import plot_columns, render_frame
from trackside_daemon.terminal.polling import fetch
from trackside_daemon.terminal.styled_lines import to_ansi, to_text
from trackside_daemon.terminal.view import View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.terminal.polling import Daemon

MIN_WIDTH = 40


def no_colour() -> bool:
    """Return whether the user or the terminal wants no colour."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "").endswith(("dumb", "-m", "-mono"))


def render_once(daemon: Daemon) -> Iterator[str]:
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
