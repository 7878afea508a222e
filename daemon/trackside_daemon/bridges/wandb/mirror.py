"""Mirror runs to W&B, by its client, which is imported in the worker process alone.

The client writes each row to a log on disk, and its own process uploads the log. A row counts as sent once it is in the log.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trackside_daemon.bridges.protobuf import ProtobufError, integer, message, messages
from trackside_daemon.bridges.wandb.log_file import LogFile
from trackside_daemon.http_client.errors import SendError, SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.bridges.mirrors.target import MirroredRun, Row, State

STEP_KEY = "trackside/step"
STORED_SECONDS = 30.0  # longest wait for rows to be in the log
FINISH_SECONDS = 60

_HISTORY, _STEP = 2, 2  # fields of Record and of HistoryRecord


class WandbClient:
    """See `trackside_daemon.bridges.mirrors.target.Target`.

    W&B keeps one row for each of its steps, which are the numbers of the rows here: a row that is sent again replaces
    nothing and is dropped. The step of the training is a value of the row, and the axis of all charts.

    Args:
        settings: The section of the configuration.
        wandb: The client's module.
    """

    machine = False

    def __init__(self, settings: dict[str, Any], wandb: Any) -> None:
        self._settings = settings
        self._wandb = wandb
        self._runs: dict[str, tuple[Any, LogFile]] = {}

    def begin(self, run: MirroredRun, state: State) -> State:
        """See `Target`."""
        if run.id in self._runs:
            return state
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
                reinit="create_new",
                settings=wandb.Settings(**options),
            )
            opened.define_metric(STEP_KEY)
            opened.define_metric("*", step_metric=STEP_KEY)
            self._runs[run.id] = opened, _open_log(Path(opened.settings.sync_file))
        except Exception as error:  # noqa: BLE001  the client raises many kinds of errors
            raise SendError(f"the client of W&B: {type(error).__name__}: {_line(error)}") from None
        return {**state, "rows": state.get("rows", 0)}

    def send(self, run: MirroredRun, rows: Sequence[Row], state: State) -> State:
        """See `Target`."""
        opened, log = self._runs[run.id]
        number = int(state["rows"])
        try:
            for number, row in enumerate(rows, number):  # noqa: B020  it goes on from there
                values = {**row.named(), STEP_KEY: row.step, "_timestamp": row.time / 1e6}
                opened.log({**values, "trackside/attempt": row.attempt} if row.attempt else values, step=number)
            opened.log({}, step=number + 1)  # the client writes a row when the next one begins
        except Exception as error:  # noqa: BLE001  the client raises many kinds of errors
            raise SendError(f"the client of W&B: {type(error).__name__}: {_line(error)}") from None
        self._wait_stored(log, number)
        return {**state, "rows": number + 1}

    def end(self, run: MirroredRun, state: State) -> State:
        """See `Target`."""
        opened, log = self._runs.pop(run.id)
        log.close()
        opened.finish(exit_code=int(run.state in ("failed", "lost")))
        return state

    def close(self) -> None:
        """See `Target`."""
        for opened, _ in self._runs.values():
            opened.finish(exit_code=0)

    def _wait_stored(self, log: LogFile, last: int) -> None:
        """Wait until a row is in the log.

        Raises:
            SendError: It takes too long.
        """
        until = time.monotonic() + STORED_SECONDS
        while time.monotonic() < until:
            for record in log.read():
                try:
                    steps = [integer(message(history, _STEP), 1) for history in messages(record, _HISTORY)]
                except ProtobufError:
                    continue
                if steps and max(steps) >= last:
                    return
            time.sleep(0.02)
        raise SendError("the client of W&B does not write what it gets; see the logs in its directory")


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


def _open_log(path: Path) -> LogFile:
    """Return the client's log, which its own process creates."""
    until = time.monotonic() + STORED_SECONDS
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.02)
    return LogFile(path)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
