"""Endpoint of the images, texts and tables of runs.

What a run wrote is hostile. The media type is that of the kind, which the store has checked; no content is run or embedded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import Response

from trackside_daemon.history.media import index
from trackside_daemon.questions.artifacts import find_media

if TYPE_CHECKING:
    from starlette.requests import Request

    from trackside_daemon.web.api.history_access import HistoryAccess

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Content-Disposition": "attachment",
}


class MediaApi:
    """Answers requests for images, texts and tables.

    Args:
        history: The history.
    """

    def __init__(self, history: HistoryAccess) -> None:
        self._history = history

    async def media_file(self, request: Request) -> Response:
        """Send an image, a text or a table."""
        name, text, database = request.path_params["file"], request.path_params["id"], self._history.database
        run, items = await self._history.compute(lambda: find_media(database, text))
        item = next((item for item in items if item.file == name), None)
        if item is None:
            raise HTTPException(404, f"this run has no file {name[:60]!r}; /api/v1/runs/ID/media lists them")
        try:
            data = await self._history.run_in_thread(lambda: index.content(database.path.parent, run, item))
        except OSError:
            raise HTTPException(404, f"the file {name!r} was deleted") from None
        return Response(data, headers=HEADERS, media_type=index.TYPES[item.kind])
