"""Endpoint of audits of checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.web.api.history_access import json_response

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from trackside_daemon.checkpoints.checkpoints import Checkpoints
    from trackside_daemon.web.api.history_access import HistoryAccess


class CheckpointsApi:
    """Answers requests for audits of checkpoints.

    Args:
        checkpoints: Those that the daemon follows.
        history: The history, which has the runs.
    """

    def __init__(self, checkpoints: Checkpoints, history: HistoryAccess) -> None:
        self._checkpoints = checkpoints
        self._history = history

    async def audit(self, request: Request) -> Response:
        """Audit the checkpoints of a run again."""
        run = await self._history.resolve(request)
        self._checkpoints.audit_again(run)
        return json_response({"run": run})
