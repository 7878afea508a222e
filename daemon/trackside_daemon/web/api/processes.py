"""The page of `/api/v1` that shows the training's processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from trackside_daemon.collectors.process.process import Process


class ProcessPages:
    """Shows the processes as they were seen last.

    Args:
        seen: Each rank, then those below it.
    """

    def __init__(self, seen: Callable[[], Sequence[Process]]) -> None:
        self._seen = seen

    async def processes(self, _request: Request) -> Response:
        """``/api/v1/processes``."""
        return JSONResponse({"processes": [one._asdict() for one in self._seen()]})
