"""Endpoint of the training processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from trackside_daemon.collectors.process.process import Process


class ProcessesApi:
    """Lists the training processes.

    Args:
        newest: Returns the processes of the last tick, each rank followed by its child processes.
    """

    def __init__(self, newest: Callable[[], Sequence[Process]]) -> None:
        self._newest = newest

    async def processes(self, _request: Request) -> Response:
        """Answer ``/api/v1/processes``."""
        return JSONResponse({"processes": [process._asdict() for process in self._newest()]})
