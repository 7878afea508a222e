"""Endpoints of captures: begin one, and download its files."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from trackside_daemon.captures.captures import CaptureError, CaptureRequest, Captures
from trackside_daemon.model.capture import Capture, CaptureBody, OptionError, as_json
from trackside_daemon.questions.artifacts import find_capture
from trackside_daemon.web.api.history_access import HistoryAccess, decoded_body, json_response, unchanged


@dataclass(eq=False)
class CapturesApi:
    """Answers requests about captures."""

    _captures: Captures  # those of the daemon
    _history: HistoryAccess  # which has the earlier ones
    _attempt: Callable[[str], int]  # returns the last attempt of a run, by its id

    async def begin_capture(self, request: Request) -> Response:
        """Begin a capture of a run."""
        body = await decoded_body(request, CaptureBody, '{"kind": "profile", "steps": 10, …}')
        run = await self._history.resolve(request)
        try:
            return json_response(await self.begin(run, body))
        except CaptureError as error:
            raise HTTPException(409, str(error)) from None

    async def begin(self, run: str, body: CaptureBody) -> dict[str, Any]:
        """Begin a capture of the run with this id, and return it as JSON.

        Raises:
            CaptureError: The run cannot be recorded.
            HTTPException: The kind of captures does not take an option.
        """
        try:
            options = body.options()
        except OptionError as error:
            raise HTTPException(400, str(error)) from None
        ranks = tuple(sorted(set(body.ranks)))

        def begin() -> Capture:
            asked = CaptureRequest(run, self._attempt(run), body.kind, body.trigger, ranks, options)
            return self._captures.begin(asked)

        return as_json(await self._history.run_in_thread(begin))

    async def capture_file(self, request: Request) -> Response:
        """Download a file of a capture, compressed by gzip."""
        id_, name = request.path_params["capture"], request.path_params["file"]
        capture = await self._history.compute(lambda: find_capture(self._history.database, self._history.live, id_))
        path = self._captures.store.path(capture, name)
        if path is None:
            raise HTTPException(404, f"capture {capture.id} has no file {name!r}")
        whole = f"{capture.id}_{name}"
        headers, known = unchanged(request, whole)
        return known or FileResponse(path, headers=headers, media_type="application/octet-stream", filename=whole)
