"""The run of Ray Train or the trial of Ray Tune to which this process belongs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from trackside.packing import writable

if TYPE_CHECKING:
    from collections.abc import Mapping


def ray_run(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the name and the id of this worker's Ray Train run or Ray Tune trial; None outside of one.

    The name is the experiment's or the trial's. A run that Ray restarts keeps its id.
    """
    if "RAY_JOB_ID" not in environ:  # only workers have it, and outside of one Ray's contexts print warnings
        return None
    tuning = "TUNE_ORIG_WORKING_DIR" in environ and "RANK" not in environ
    try:
        context = sys.modules["ray.tune" if tuning else "ray.train"].get_context()
        if tuning:
            return writable(context.get_trial_name()), writable(f"ray-{context.get_trial_id()}")
        name = context.get_experiment_name()
        session = sys.modules["ray"].get_runtime_context().get_session_name()
    except Exception:  # noqa: BLE001  a task or an actor of the user's own, or another version of Ray
        return None
    return writable(name), writable(f"ray-{session.removeprefix('session_')}-{name}")
