"""Mirror runs to W&B, by its client, which is imported in the worker process alone.

The client buffers what it gets, and only the end of its run shows that everything is uploaded, or in a log on disk in the
mode offline. So each batch of rows resumes the run and ends it again.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trackside_daemon.http_client.errors import SendError, SettingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trackside_daemon.bridges.mirrors.target import MirroredRun, Row, State

STEP_KEY = "trackside/step"


class WandbClient:
    """See `trackside_daemon.bridges.mirrors.target.Target`.

    W&B keeps one row for each of its steps, which are the numbers of the rows here: a row that is sent again is dropped. The
    step of the training is a value of the row, and the axis of all charts.

    Args:
        settings: The section of the configuration.
        wandb: The client's module.
    """

    machine = False
    histograms = False

    def __init__(self, settings: dict[str, Any], wandb: Any) -> None:
        self._settings = settings
        self._wandb = wandb

    def begin(self, run: MirroredRun, state: State) -> State:
        """See `Target`."""
        del run
        return {"rows": 0, **state}

    def send(self, run: MirroredRun, rows: Sequence[Row], state: State) -> State:
        """See `Target`."""
        begin = int(state["rows"])
        self._log(run, enumerate(rows, begin))
        return {"rows": begin + len(rows)}

    def end(self, run: MirroredRun, state: State) -> State:
        """See `Target`."""
        self._log(run, (), exit_code=int(run.state in ("failed", "lost")))
        return state

    def close(self) -> None:
        """See `Target`."""

    def _log(self, run: MirroredRun, rows: Iterable[tuple[int, Row]], exit_code: int = 0) -> None:
        wandb, settings = self._wandb, self._settings
        options = {"console": "off", "silent": True, "x_disable_stats": True, "disable_git": True, "save_code": False}
        try:
            opened = wandb.init(
                project=settings["project"],
                entity=settings["entity"] or None,
                mode=settings["mode"],
                dir=settings["directory"],
                id=re.sub(r"[^A-Za-z0-9_-]", "-", run.id)[:120],
                name=run.name,
                config=run.config,
                tags=run.tags or None,
                resume="allow",
                settings=wandb.Settings(**options),
            )
            opened.define_metric(STEP_KEY)
            opened.define_metric("*", step_metric=STEP_KEY)
            for number, row in rows:
                values = {**row.named(), STEP_KEY: row.step, "_timestamp": row.time / 1e6}
                opened.log({**values, "trackside/attempt": row.attempt} if row.attempt else values, step=number)
            opened.finish(exit_code=exit_code)
        except Exception as error:  # noqa: BLE001  the client raises many kinds of errors
            reason = " ".join(str(error).split())[:200]
            with suppress(Exception):
                wandb.teardown()  # else its service process refuses the next try: "run ID is in use"
            raise SendError(f"the client of W&B: {type(error).__name__}: {reason}") from None


def make_target(settings: dict[str, Any]) -> WandbClient:
    """Return the target for some settings.

    Raises:
        SettingError: wandb is not installed, or the directory cannot be made.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    try:
        import wandb
    except ImportError:
        raise SettingError("bridges.wandb: wandb is not installed; pip install 'trackside[wandb]'") from None
    try:
        Path(settings["directory"]).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"bridges.wandb.directory: {error}") from None
    return WandbClient(settings, wandb)
