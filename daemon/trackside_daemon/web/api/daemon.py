"""Endpoints of the daemon itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from trackside.os_errors import file_error_text
from trackside_daemon import __version__
from trackside_daemon.web.api.history_access import json_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from trackside_daemon.web.http.auth_token import Token


class DaemonApi:
    """Answers requests about the daemon.

    Args:
        status: Returns its status.
        token: The token of its API.
        disconnect: Ends the streams that are open.
        document: Returns the document of the API of a version.
    """

    def __init__(
        self,
        status: Callable[[], dict[str, Any]],
        token: Token,
        disconnect: Callable[[], object],
        document: Callable[[str], dict[str, Any]],
    ) -> None:
        self._status = status
        self._token = token
        self._disconnect = disconnect
        self._document = document

    async def status(self, _request: Request) -> Response:
        """Return the daemon's status."""
        return json_response(self._status())

    async def rotate_token(self, _request: Request) -> Response:
        """Replace the token of the API; the old one opens nothing any more."""
        try:
            self._token.rotate()
        except OSError as error:
            raise HTTPException(507, file_error_text(error)) from error
        self._disconnect()  # what the old one has opened
        return json_response({"token": self._token.value})

    async def openapi(self, _request: Request) -> Response:
        """Return this document."""
        return json_response(self._document(__version__))
