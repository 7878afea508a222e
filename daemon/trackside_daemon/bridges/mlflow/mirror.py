"""Mirror runs to an MLflow server, by its REST API."""

import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from math import isfinite
from typing import Any
from urllib.parse import urlsplit

from trackside_daemon.bridges.mirrors.target import Medium, MirroredRun, Row, State, Target
from trackside_daemon.bridges.mlflow.rest_client import RestClient, authorization
from trackside_daemon.bridges.wandb.log_run import flattened
from trackside_daemon.http_client import http_request
from trackside_daemon.http_client.errors import SendError, SettingError

SETTING = "bridges.mlflow"
UNAUTHORIZED = 401  # soon another token may do
BATCH = 1000  # metrics in one request, the server's limit
PARAMS = 100  # parameters in one request, the same
VALUE_LENGTH = 500  # characters of a parameter that all versions accept
RUN_TAG = "trackside.run"

_STATUSES = {"finished": "FINISHED", "failed": "FAILED", "lost": "FAILED", "stopped": "KILLED"}


class MlflowServer(Target):
    """See `trackside_daemon.bridges.mirrors.target.Target`.

    A metric that is sent again has the same key, time, step and value, and databases of MLflow keep it once.

    Args:
        client: The server's API.
        experiment: Name of the experiment for the runs.
    """

    machine = False
    histograms = False

    def __init__(self, client: RestClient, experiment: str) -> None:
        self._client = client
        self._experiment = experiment
        self._experiment_id = ""

    def begin(self, run: MirroredRun, state: State) -> State:
        """See `Target`."""
        if "run" not in state:
            state = {"run": self._found(run) or self._created(run)}
        if "artifacts" not in state:
            info = self._client.get("runs/get", run_id=state["run"]).get("run", {}).get("info", {})
            place = urlsplit(str(info.get("artifact_uri", "")))
            kept_by_server = place.scheme == "mlflow-artifacts"
            state = {**state, "artifacts": place.path.strip("/") if kept_by_server else ""}
        return state

    def send(self, run: MirroredRun, rows: Sequence[Row], state: State) -> State:
        """See `Target`."""
        del run
        metrics = iter(_metrics(rows))
        while batch := list(islice(metrics, BATCH)):
            self._client.post("runs/log-batch", {"run_id": state["run"], "metrics": batch})
        for row in rows:
            for one in row.media:
                self._store(one, f"{_key(row.name(one.item.key))}/step-{row.step}-{one.item.file}", state["artifacts"])
        return state

    def end(self, run: MirroredRun, state: State) -> State:
        """See `Target`."""
        ended = round((run.ended or 0.0) * 1000)
        status = _STATUSES.get(run.state, "FINISHED")
        self._client.post("runs/update", {"run_id": state["run"], "status": status, "end_time": ended})
        return state

    def _store(self, medium: Medium, name: str, artifacts: str) -> None:
        """Store an artifact; its name is the same when it is sent again."""
        if not artifacts:
            raise SendError("artifacts of this run are not kept by the server itself", "never")
        try:
            self._client.put(f"{artifacts}/media/{name}", medium.data)
        except SendError as error:
            # As of a server that keeps none: metrics go on.
            if error.retry == "later" and error.code not in {0, UNAUTHORIZED}:
                raise SendError(str(error), "never") from None
            raise

    def _experiment_number(self) -> str:
        if not self._experiment_id:
            body = {"max_results": 1, "filter": f"name = '{self._experiment.replace(chr(39), '')}'"}
            found = self._client.post("experiments/search", body).get("experiments") or ()
            created = found[0] if found else self._client.post("experiments/create", {"name": self._experiment})
            self._experiment_id = str(created["experiment_id"])
        return self._experiment_id

    def _found(self, run: MirroredRun) -> str:
        """Return the id of a run that was created before a worker was killed; empty if there is none."""
        wanted = f"tags.`{RUN_TAG}` = '{run.id.replace(chr(39), '')}'"
        body = {"experiment_ids": [self._experiment_number()], "filter": wanted, "max_results": 1}
        found = self._client.post("runs/search", body).get("runs") or ()
        own = {"key": RUN_TAG, "value": run.id}  # it may be the run of another id: a filter has no quotes in quotes
        return next((str(one["info"]["run_id"]) for one in found if own in (one.get("data") or {}).get("tags", ())), "")

    def _created(self, run: MirroredRun) -> str:
        tags = {RUN_TAG: run.id, "trackside.tags": ",".join(run.tags), "mlflow.user": str(run.about.get("user", ""))}
        body = {
            "experiment_id": self._experiment_number(),
            "run_name": run.name,
            "start_time": round(run.started * 1000),
            "tags": [{"key": key, "value": value} for key, value in tags.items() if value],
        }
        created = str(self._client.post("runs/create", body)["run"]["info"]["run_id"])
        params = [{"key": _key(key), "value": str(value)[:VALUE_LENGTH]} for key, value in flattened(run.config)]
        for begin in range(0, len(params), PARAMS):
            self._client.post("runs/log-batch", {"run_id": created, "params": params[begin : begin + PARAMS]})
        return created


def make_target(settings: dict[str, Any]) -> MlflowServer:
    """Return the target for some settings.

    Raises:
        SettingError: One of them cannot be used.
    """
    try:
        http_request.without_secrets(settings["url"])
    except ValueError as error:
        raise SettingError(f"{SETTING}.url: {error}") from None
    headers = authorization(os.environ)
    if settings["token_file"]:
        token = http_request.bearer_header(settings["token_file"], f"{SETTING}.token-file")
        headers = {"Authorization": token}
    context = http_request.tls_context(settings["ca_file"], f"{SETTING}.ca-file")
    return MlflowServer(RestClient(settings["url"], headers, context), settings["experiment"])


def _metrics(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    for row in rows:
        for key, value in row.named().items():
            shown = value if isfinite(value) else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
            yield {"key": _key(key), "value": shown, "timestamp": row.time // 1000, "step": row.step}


def _key(key: str) -> str:
    """Return a key with the characters that MLflow accepts."""
    return re.sub(r"[^\w\-. :/]", "_", key, flags=re.ASCII)[:250].strip("/. ") or "_"
