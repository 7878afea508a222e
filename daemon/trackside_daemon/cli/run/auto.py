"""Why `trackside run --auto` has found nothing in a command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trackside.auto.environment import refusal
from trackside_daemon.captures.kineto.environment import interpreter
from trackside_daemon.linux.child_process import output

if TYPE_CHECKING:
    from collections.abc import Sequence

SECONDS = 10.0  # time limit for an interpreter to try the import

# A file of the working directory is no proof, and may be another user's.
_IMPORT = (
    "import sys; sys.path[:] = [entry for entry in sys.path if entry]; import trackside.default_run; print('here')"
)


def why_nothing(command: Sequence[str]) -> str:
    """Return the reason in one line, for a command that has opened no run."""
    python = interpreter(command[0])
    if not python:
        return "nothing was pushed, and what it started imported neither PyTorch nor a tracker"
    is_script = Path(python).name != Path(command[0]).name
    if reason := refusal([] if is_script else command[1:]):
        return f"{reason}, by which --auto finds the training; leave the flag out, or call trackside.push"
    if output([python, "-c", _IMPORT], SECONDS).strip() != "here":
        ours = f"{sys.version_info.major}.{sys.version_info.minor}"
        return f"{python} cannot import trackside; install it there: {python} -m pip install trackside (this is {ours})"
    return "no optimizer of PyTorch made a step, and no tracker got a number"
