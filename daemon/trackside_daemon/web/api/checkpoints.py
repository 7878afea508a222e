"""Endpoints of checkpoints: list them, and audit them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.checkpoints.overview import overview
from trackside_daemon.history.read import reader
from trackside_daemon.web.api.history_access import json_response

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from trackside_daemon.checkpoints.checkpoints import Checkpoints
    from trackside_daemon.web.api.history_access import HistoryAccess


class CheckpointsApi:
    """Answers requests about checkpoints.

    Args:
        checkpoints: Those that the daemon follows.
        history: The history, which has all.
    """

    def __init__(self, checkpoints: Checkpoints, history: HistoryAccess) -> None:
        self._checkpoints = checkpoints
        self._history = history

    async def checkpoints(self, request: Request) -> Response:
        """List the checkpoints of a run, oldest first."""
        id_, metric = request.path_params["id"], request.query_params.get("metric", "")
        return json_response(
            await self._history.read(lambda connection: overview(connection, reader.resolve(connection, id_), metric))
        )

    async def audit(self, request: Request) -> Response:
        """Audit the checkpoints of a run again."""
        id_ = request.path_params["id"]
        run = await self._history.read(lambda connection: reader.resolve(connection, id_))
        self._checkpoints.audit_again(run)
        return json_response({"run": run})
