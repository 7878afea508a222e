"""Find the checkpoints of a training by its calls of `torch.save`, and report them as events of the run."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from trackside.auto.hooks import auto_run
from trackside.checkpoints.file_names import checkpoint_of, final_name, is_accessory

CLIENT = "trackside.default_run"  # imported by all who open a run
EACH_STEP = 16  # most reports between two steps: a script may also save its results, in any number of files
PAUSE_SECONDS = 1.0  # after which the next reports are permitted: where others count the steps, none are found here


class SavedFiles:
    """The files that this process saves."""

    def __init__(self) -> None:
        self._step = -1
        self._since = 0.0
        self._reported: set[Path] = set()

    def report(self, target: Any) -> None:
        """Report a saved file as a checkpoint, or as a part of one, if a run is open.

        Args:
            target: Second argument of `torch.save`; only paths count, and none in a temporary directory.
        """
        if CLIENT not in sys.modules or not isinstance(target, str | os.PathLike):
            return  # its import would take longer than many a file
        run = auto_run()
        queue = run.queue
        if queue is None:
            return
        path = Path(os.path.abspath(target))  # noqa: PTH100  `resolve` would follow links, which have the training's names
        file = final_name(path)
        checkpoint = checkpoint_of(file)
        if checkpoint is None or (checkpoint == file and is_accessory(file)) or _is_temporary(path):
            return
        now = monotonic()
        if run.step != self._step or now - self._since >= PAUSE_SECONDS:
            self._step, self._since = run.step, now
            self._reported.clear()
        if checkpoint in self._reported or len(self._reported) >= EACH_STEP:
            return
        self._reported.add(checkpoint)
        fields: dict[str, Any] = {"path": str(checkpoint), "auto": True}
        if checkpoint == file:
            with suppress(OSError):  # deleted already
                fields["bytes"] = path.stat().st_size
        queue.event("checkpoint", fields)


def _is_temporary(path: Path) -> bool:
    """Return whether a file is in a temporary directory. A training that works in one has its own files there."""
    here = Path.cwd()
    for place in map(Path, ("/tmp", "/var/tmp", tempfile.gettempdir())):  # noqa: S108  nothing is written there
        is_own = here != place and here.is_relative_to(place) and path.is_relative_to(here)
        if path.is_relative_to(place) and not is_own:
            return True
    return False
