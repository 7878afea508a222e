"""One frame as text."""

from __future__ import annotations

import os
import shutil
import sys
from itertools import chain
from typing import TYPE_CHECKING

from trackside_daemon.terminal.frame import columns, frame
from trackside_daemon.terminal.polling import ask
from trackside_daemon.terminal.styled_lines import coloured, plain
from trackside_daemon.terminal.view import View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.terminal.polling import Daemon

LEAST_WIDTH = 40


def colourless() -> bool:
    """Whether the user or the terminal wants no colour."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "").endswith(("dumb", "-m", "-mono"))


def once(daemon: Daemon) -> Iterator[str]:
    """The lines of a frame, as wide as the terminal or $COLUMNS; without a terminal or $LINES as high as it wants.

    Raises:
        UnansweredError: The daemon does not answer.
    """
    terminal = sys.stdout.isatty()
    size = shutil.get_terminal_size()
    width = max(LEAST_WIDTH, size.columns)
    height = size.lines - 1 if terminal or os.environ.get("LINES", "").isdecimal() else None
    view = View(columns=columns(width))
    said = ask(daemon, view.question)
    write = coloured if terminal and not colourless() else plain
    return (write(line) for line in chain.from_iterable(frame(said, view, width, height)))
