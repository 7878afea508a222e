"""Where the threads of this process are."""

from __future__ import annotations

import sys
import threading
from traceback import StackSummary, walk_stack

FRAMES = 64
"""Of a thread's stack, so many innermost calls are told."""


def stacks() -> dict[str, list[str]]:
    """The Python stack of each thread, by its name: ``FILE:LINE FUNCTION``, the innermost call last.

    It only needs the GIL, so a thread that hangs in a collective or a driver is seen.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = {}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001  the only way to see other threads
        calls = StackSummary.extract(walk_stack(frame), limit=FRAMES, lookup_lines=False)
        name = f"{names.get(ident, 'thread')} {ident}"
        found[name] = [f"{call.filename}:{call.lineno} {call.name}" for call in reversed(calls)]
    return found
