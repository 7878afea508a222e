"""Endpoints of the daemon itself, and of its reading of GPUs."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from math import isinf
from typing import Annotated, Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trackside.os_errors import file_error_text
from trackside_daemon import __version__
from trackside_daemon.collectors.gpu.nvml_worker import paused_until
from trackside_daemon.nvml.handle.handle import Nvml
from trackside_daemon.nvml.holders import holders
from trackside_daemon.web.api.history_access import decoded_body, json_response
from trackside_daemon.web.http.auth_token import MAX_KEEP_SECONDS, Token

log = logging.getLogger("trackside")

MAX_PAUSE_SECONDS = 366 * 86400.0  # seconds of the longest timed pause; a pause without an end is possible too


@dataclass(eq=False)
class DaemonApi:
    """Answers requests about the daemon."""

    _status: Callable[[], dict[str, Any]]  # returns its status
    _token: Token  # that of its API
    _disconnect: Callable[[], object]  # ends the streams that are open
    _document: Callable[[str], dict[str, Any]]  # returns the document of the API of a version

    async def status(self, _request: Request) -> Response:
        """Return the daemon's status."""
        return json_response(self._status())

    async def rotate_token(self, request: Request) -> Response:
        """Replace the token of the API, and with it the tokens of all roles."""
        shape = f'{{"keep": SECONDS}}, {MAX_KEEP_SECONDS:.0f} at most'
        keep = (await decoded_body(request, RotateBody, shape)).keep
        try:
            self._token.rotate(keep)
        except OSError as error:
            raise HTTPException(507, file_error_text(error)) from error
        if keep:  # what the old one has opened ends with it
            asyncio.get_running_loop().call_later(keep + 1, self._disconnect)
        else:
            self._disconnect()
        return json_response({"token": self._token.value})

    async def openapi(self, _request: Request) -> Response:
        """Return this document."""
        return json_response(self._document(__version__))


@dataclass(eq=False)
class GpuApi:
    """Pauses and resumes the reading of GPUs."""

    _nvml: Nvml
    _forget: Callable[[], None]  # called after a pause, since the set of GPUs may change during it

    async def pause_gpu(self, request: Request) -> Response:
        """Pause GPU readings and release the GPUs, so that they can be reset or removed."""
        shape = f'{{"for": SECONDS}}, {MAX_PAUSE_SECONDS:.0f} at most, or {{"for": null}} for no end'
        seconds = (await decoded_body(request, PauseBody, shape)).seconds
        # In a thread, because the pause waits some seconds for the worker's end, and the event loop serves all other
        # requests.
        released = await run_in_threadpool(self._nvml.pause, seconds)
        log.info("GPU readings paused on request, %s", _pause_end_text(self._nvml.paused_until))
        self._forget()
        processes = await run_in_threadpool(holders)
        return JSONResponse(
            {
                "released": released,
                "paused_until": paused_until(self._nvml),
                "holders": [{"pid": process.pid, "name": process.name} for process in processes],
            }
        )

    async def resume_gpu(self, _request: Request) -> Response:
        """Resume GPU readings."""
        was_paused = self._nvml.paused_until is not None
        await run_in_threadpool(self._nvml.resume)
        if was_paused:
            log.info("GPU readings resumed on request")
        return JSONResponse({"resumed": was_paused})


def _pause_end_text(paused_until: float | None) -> str:
    """Return the end of a pause in words, in UTC like the log's timestamps."""
    if paused_until is None or isinf(paused_until):
        return "until trackside resume-gpu" if paused_until else "for a moment"
    return f"until {datetime.fromtimestamp(paused_until, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


class PauseBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a pause request; None for no end."""

    seconds: Annotated[float, msgspec.Meta(gt=0, le=MAX_PAUSE_SECONDS)] | None = msgspec.field(default=None, name="for")


class RotateBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a rotation: seconds for which the old token stays valid."""

    keep: Annotated[float, msgspec.Meta(ge=0, le=MAX_KEEP_SECONDS)] = 0.0
