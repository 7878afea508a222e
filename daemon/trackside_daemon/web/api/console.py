"""Endpoint of the output that the command of a run printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from trackside_daemon.history.console import files, lines
from trackside_daemon.history.read import reader
from trackside_daemon.web.api.history_access import json_response
from trackside_daemon.web.api.query_params import parse_bounded, parse_flag

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from trackside_daemon.web.api.history_access import HistoryAccess

DEFAULT_LINES, MAX_LINES = 400, 10_000
MAX_SEARCH = 256  # characters


class ConsoleApi:
    """Answers requests about the output of commands.

    Args:
        history: The history.
    """

    def __init__(self, history: HistoryAccess) -> None:
        self._history = history

    async def console(self, request: Request) -> Response:
        """Return the newest lines that the command of a run printed, or those that contain a text."""
        params = request.query_params
        count = parse_bounded(params, "lines", DEFAULT_LINES, MAX_LINES)
        before = parse_bounded(params, "before", 0, 10**9 - 1)
        search = params.get("search", "")
        colors = parse_flag(params, "colors", default=False)
        if len(search) > MAX_SEARCH:
            raise HTTPException(400, f"search: longer than {MAX_SEARCH} characters")
        run = request.path_params["id"]
        launch = await self._history.read(lambda connection: reader.launch(connection, reader.resolve(connection, run)))

        def read() -> dict[str, Any]:
            data = files.read(self._history.database.path.parent, launch)
            kept = lines.split(data)
            found = lines.select(list(map(lines.plain, kept)), count, before, search)
            rows = [(*row, lines.colored_parts(kept[row[0] - 1])) for row in found.lines] if colors else found.lines
            return {"bytes": len(data), **found._asdict(), "lines": rows}

        return json_response(await self._history.run_in_thread(read))
