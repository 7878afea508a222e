"""Mirror runs to W&B, by its client, which is imported in the worker process alone.

The client buffers what it gets, and uploads or writes everything before the end of its run. So each batch of rows resumes
the run and ends it again. The end does not show whether the server has accepted the rows, so the server is queried for them.
"""

import json
import os
import re
import shutil
from base64 import b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from trackside_daemon.bridges.mirrors.target import Medium, MirroredRun, Row, State, Target
from trackside_daemon.history.files.jsonl import folder
from trackside_daemon.http_client.errors import SendError, SettingError
from trackside_daemon.model.text import shown

STEP_KEY = "trackside/step"

_PATIENCE = {  # the client would retry for a week, in which nobody would see an error
    "x_file_stream_retry_max": 4,  # after 2, 4, 8 and 16 seconds
    "x_file_stream_timeout_seconds": 60,
    "x_graphql_retry_max": 4,
    "x_file_transfer_retry_max": 4,
    "x_file_transfer_timeout_seconds": 60,
}


class WandbClient(Target):
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
        self.refused: list[str] = []

    def begin(self, run: MirroredRun, state: State) -> State:
        """See `Target`."""
        # Versions before gave another id, and left none here.
        known = re.sub(r"[^A-Za-z0-9_-]", "-", run.id)[:120] if state else folder(run.id)
        return {"rows": 0, "id": known, **state}

    def send(self, run: MirroredRun, rows: Sequence[Row], state: State) -> State:
        """See `Target`."""
        begin, self.refused = int(state["rows"]), []
        self._log(run._replace(id=state["id"]), enumerate(rows, begin), begin + len(rows))
        return {**state, "rows": begin + len(rows)}

    def end(self, run: MirroredRun, state: State) -> State:
        """See `Target`."""
        self._log(run._replace(id=state["id"]), (), int(state["rows"]), exit_code=int(run.state in ("failed", "lost")))
        return state

    def _log(self, run: MirroredRun, rows: Iterable[tuple[int, Row]], count: int, exit_code: int = 0) -> None:
        """Send rows with their numbers, after which the server must have *count* rows of the run."""
        try:
            opened = self._opened(run)
            opened.define_metric(STEP_KEY)
            opened.define_metric("*", step_metric=STEP_KEY)
            for number, row in rows:
                values = {**row.named(), STEP_KEY: row.step, "_timestamp": row.time / 1e6}
                media: dict[str, Any] = {}
                for one in row.media:
                    try:
                        media[row.name(one.item.key)] = self._medium(one)
                    except Exception as error:  # noqa: BLE001  one that the client refuses costs only itself
                        self.refused.append(f"{shown(one.item.key)}: {_reason(error)}")
                attempt = {"trackside/attempt": row.attempt} if row.attempt else {}
                opened.log({**values, **media, **attempt}, step=number)
            path = f"{opened.entity}/{opened.project}/{opened.id}"
            opened.finish(exit_code=exit_code)
            online = self._settings["mode"] == "online"
            stored = (self._wandb.Api().run(path).historyLineCount or 0) if online else count
        except Exception as error:  # noqa: BLE001  the client raises many kinds of errors
            _end_service(self._wandb)
            raise SendError(f"the client of W&B: {_reason(error)}") from None
        if stored < count:
            log = self._directory() / "wandb" / "debug-internal.log"
            raise SendError(f"the server of W&B has not accepted all rows; the reason is in {log}")

    def _medium(self, medium: Medium) -> Any:
        """Return an image, a text, a table or a histogram as the client has them."""
        kind, data = medium.item.kind, medium.data
        if kind == "text":
            return self._wandb.Html(f"<pre>{escape(data.decode('utf-8', 'replace'))}</pre>", inject=False)
        if kind == "image" and find_spec("PIL"):
            return self._wandb.Image(str(medium.path))
        if kind == "image":
            encoded = b64encode(data).decode()
            return self._wandb.Html(f'<img src="data:image/png;base64,{encoded}">', inject=False)
        found = json.loads(data)
        if kind == "histogram":
            return self._wandb.Histogram(np_histogram=(found["counts"], found["edges"]))
        rows = [[None if cell is None else str(cell) for cell in row] for row in found["rows"]]
        return self._wandb.Table(columns=found["columns"], data=rows)

    def _opened(self, run: MirroredRun) -> Any:
        settings, directory = self._settings, self._directory()
        if settings["mode"] == "online":
            shutil.rmtree(directory, ignore_errors=True)  # the client leaves a directory with each batch
        directory.mkdir(parents=True, exist_ok=True)
        options = {"console": "off", "silent": True, "x_disable_stats": True, "disable_git": True, "save_code": False}
        return self._wandb.init(
            project=settings["project"],
            entity=settings["entity"] or None,
            mode=settings["mode"],
            dir=str(directory),
            id=run.id,
            name=run.name,
            config=run.config,
            tags=run.tags or None,
            resume="allow",
            settings=self._wandb.Settings(**options, **_PATIENCE),
        )

    def _directory(self) -> Path:
        directory = Path(self._settings["directory"])
        return directory if self._settings["mode"] == "offline" else directory / "trackside-online"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _end_service(wandb: Any) -> None:
    """End the client's service process, which would refuse the next try: "run ID is in use"."""
    services = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if child.name() == "wandb-core":
                child.kill()  # while the server is away, it would end after all its retries
                services.append(child)
    with suppress(Exception, SystemExit):  # it exits with the status of that process
        wandb.teardown()
    psutil.wait_procs(services, timeout=1.0)


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
