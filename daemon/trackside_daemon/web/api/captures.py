"""Endpoints of captures: begin one, list and read them, and download their files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse

from trackside_daemon.captures.captures import CaptureError, Request
from trackside_daemon.captures.kinds import by_name
from trackside_daemon.history import capture_rows
from trackside_daemon.history.read import reader
from trackside_daemon.model.capture import Asked, OptionError, as_json
from trackside_daemon.web.api.history_access import json_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

    from trackside_daemon.captures.captures import Captures
    from trackside_daemon.model.capture import Capture
    from trackside_daemon.web.api.history_access import HistoryAccess


_decode = msgspec.json.Decoder(Asked).decode


class CapturesApi:
    """Answers requests about captures.

    Args:
        captures: The captures of the daemon.
        history: The history, which has the earlier ones.
        attempt: Returns the last attempt of a run, by its id.
    """

    def __init__(self, captures: Captures, history: HistoryAccess, attempt: Callable[[str], int]) -> None:
        self._captures = captures
        self._history = history
        self._attempt = attempt

    async def begin_capture(self, request: HttpRequest) -> Response:
        """Begin a capture of a run."""
        try:
            body = _decode(await request.body() or b"{}")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise HTTPException(400, f"the body cannot be used: {error}") from None
        run = await self._history.read(lambda connection: reader.resolve(connection, request.path_params["id"]))
        try:
            return json_response(await self.begin(run, body))
        except CaptureError as error:
            raise HTTPException(409, str(error)) from None

    async def begin(self, run: str, body: Asked) -> dict[str, Any]:
        """Begin a capture of the run with this id, and return it as JSON.

        Raises:
            CaptureError: The run cannot be recorded.
            HTTPException: The kind of captures does not take an option.
        """
        try:
            options = body.options()
        except OptionError as error:
            raise HTTPException(400, str(error)) from None

        def begin() -> Capture:
            asked = Request(run, self._attempt(run), body.kind, body.trigger, tuple(sorted(set(body.ranks))), options)
            return self._captures.ask(asked)

        return as_json(await self._history.run_in_thread(begin))

    async def run_captures(self, request: HttpRequest) -> Response:
        """List the captures of a run, oldest first, without their summaries."""
        return json_response({"captures": await self._list(request.path_params["id"])})

    async def captures(self, _request: HttpRequest) -> Response:
        """List the captures of all runs, oldest first, without their summaries."""
        return json_response({"captures": await self._list("")})

    async def capture(self, request: HttpRequest) -> Response:
        """Return a capture with its summary, also as lines of text."""
        return json_response(await self.find(request.path_params["capture"]))

    async def find(self, id_: str) -> dict[str, Any]:
        """Return the capture with this id as JSON, its summary also as lines of text."""
        capture = await self._find(id_)
        return {**as_json(capture), "text": by_name.text(capture)}

    async def capture_file(self, request: HttpRequest) -> Response:
        """Send a file of a capture."""
        capture, name = await self._find(request.path_params["capture"]), request.path_params["file"]
        path = self._captures.store.path(capture, name)
        if path is None:
            raise HTTPException(404, f"capture {capture.id} has no file {name!r}")
        return FileResponse(path, media_type="application/gzip", filename=f"{capture.id}_{name}")

    async def _list(self, text: str) -> list[dict[str, Any]]:
        def read(connection: Any) -> list[dict[str, Any]]:
            run = reader.resolve(connection, text) if text else ""
            merged = {capture.id: capture for capture in capture_rows.captures(connection, run)}
            merged |= {known.id: known for known in self._captures.known() if run in {"", known.run}}
            return [
                {**as_json(capture), "summary": {}} for capture in sorted(merged.values(), key=lambda one: one.asked)
            ]

        entries: list[dict[str, Any]] = await self._history.read(read)
        return entries

    async def _find(self, id_: str) -> Capture:
        found = next((capture for capture in self._captures.known() if capture.id == id_), None)
        capture = found or await self._history.read(lambda connection: capture_rows.capture(connection, id_))
        if capture is None:
            raise HTTPException(404, f"capture {id_!r}: there is none")
        return capture
