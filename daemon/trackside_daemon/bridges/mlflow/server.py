"""Read the runs on an MLflow server."""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from trackside_daemon.bridges.foreign_run import MAX_KEYS, MAX_RUNS, ForeignRunError
from trackside_daemon.bridges.mlflow.rest_client import RestClient, authorization
from trackside_daemon.bridges.mlflow.tracked_run import TrackedRun, restored
from trackside_daemon.history.files.left_out import NO_NUMBER
from trackside_daemon.http_client.errors import SendError

PAGE = 1000
HISTORY_PAGE = 25_000  # samples of a metric in one answer, the server's limit

_PAGE = re.compile(r"/?(experiments/(?P<experiment>[\w-]+))?(/runs/(?P<run>[\w-]+))?")


class ServerRun(TrackedRun):
    """A run on a server.

    Args:
        client: The server's API.
        run: The run as the server describes it.
    """

    def __init__(self, client: RestClient, run: Mapping[str, Any]) -> None:
        info = run.get("info") or {}
        super().__init__(
            str(info.get("run_id") or info.get("run_uuid")), f"{client.url} (run {info.get('run_id')})", info
        )
        self._client = client
        self._data = run.get("data") or {}

    def _described(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        params, tags = (
            [(str(one.get("key")), str(one.get("value", ""))) for one in self._data.get(name) or ()]
            for name in ("params", "tags")
        )
        return params, tags

    def _metrics(self) -> list[str]:
        return sorted({str(metric.get("key")) for metric in self._data.get("metrics") or ()})[:MAX_KEYS]

    def _samples(self, key: str, *, final: bool) -> Iterator[tuple[int, int, float]]:
        del final
        query = {"run_id": self.id, "metric_key": key, "max_results": HISTORY_PAGE}
        try:
            for metric in self._client.get_pages("metrics/get-history", "metrics", **query):
                try:
                    value = restored(float(metric.get("value", 0)))
                    yield int(metric.get("step", 0)), int(metric.get("timestamp", 0)), value
                except (TypeError, ValueError):
                    self.left_out.add(NO_NUMBER, key)
        except SendError as error:
            raise ForeignRunError(f"{self.place}: {error}") from None


def server_runs(address: str, environ: Mapping[str, str]) -> list[ServerRun]:
    """Return runs on a server, oldest first.

    Args:
        address: Its address; that of a page of an experiment or of a run, as a browser shows it, means only these.
        environ: Environment with `authorization`.

    Raises:
        ForeignRunError: The server does not answer, or it is no MLflow server.
    """
    parts = urlsplit(address)
    page = _PAGE.match(parts.fragment)
    experiment, run = (page["experiment"], page["run"]) if page else (None, None)
    url = f"{parts.scheme}://{parts.netloc}{parts.path}"
    headers = {} if parts.username else authorization(environ)
    client = RestClient(url, headers)
    try:
        if run:
            return [ServerRun(client, client.get("runs/get", run_id=run)["run"])]
        experiments = [experiment] if experiment else _experiments(client)
        found: list[ServerRun] = []
        for number in experiments:
            body = {"experiment_ids": [number], "max_results": PAGE, "order_by": ["attributes.start_time ASC"]}
            for one in client.pages("runs/search", "runs", body):
                found.append(ServerRun(client, one))
                if len(found) >= MAX_RUNS:
                    return found
    except (SendError, KeyError, TypeError, AttributeError) as error:
        reason = f"{address}: the answer is not that of an MLflow server"
        raise ForeignRunError(str(error) if isinstance(error, SendError) else reason) from None
    return found


def _experiments(client: RestClient) -> list[str]:
    return [
        str(one["experiment_id"]) for one in client.pages("experiments/search", "experiments", {"max_results": PAGE})
    ]
