"""Facts that `trackside run --restart` gives a command that it has started again."""

from __future__ import annotations

import os
from pathlib import Path


def resume_path() -> Path | None:
    """Return the checkpoint from which this start of the training goes on; None at the first start.

    Source: ``$TRACKSIDE_RESUME``, which `trackside run --restart` sets to the newest intact checkpoint of the run, before
    its trouble began.

    Example:
        >>> if (path := trackside.resume_path()) is not None:
        ...     model.load_state_dict(torch.load(path / "model.pt"))
    """
    path = os.environ.get("TRACKSIDE_RESUME", "")
    return Path(path) if path and os.path.exists(path) else None  # noqa: PTH110  a path of any bytes


def restart() -> tuple[int, str]:
    """Return the number of this restart and why the start before has ended; 0 for a first start."""
    number, _, cause = os.environ.get("TRACKSIDE_RESTART", "").partition(": ")
    return (int(number), cause) if number.isdecimal() and len(number) < 18 else (0, "")
