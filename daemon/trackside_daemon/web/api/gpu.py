"""The pages of `/api/v1` that let go of the GPUs, and take them again."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from math import isinf
from typing import TYPE_CHECKING, Annotated

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from trackside_daemon.collectors.gpu.nvml import until
from trackside_daemon.nvml.holders import holders

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from trackside_daemon.nvml.handle.handle import Nvml

log = logging.getLogger("trackside")

LONGEST = 366 * 86400.0
"""Seconds; who wants more wants no end."""


class GpuPages:
    """Pauses the reading of GPUs.

    Args:
        nvml: What reads them.
        forget: Told that other GPUs may be there after this.
    """

    def __init__(self, nvml: Nvml, forget: Callable[[], None]) -> None:
        self._nvml = nvml
        self._forget = forget

    async def pause_gpu(self, request: Request) -> Response:
        """Close the driver's device files; answers when they are, or who holds on."""
        seconds = _seconds(await request.body())
        released = await run_in_threadpool(self._nvml.pause, seconds)
        log.info("the GPUs are left alone as asked, %s", _end(self._nvml.paused_until))
        self._forget()
        holding = await run_in_threadpool(holders)
        return JSONResponse(
            {
                "released": released,
                "paused_until": until(self._nvml),
                "holders": [{"pid": one.pid, "name": one.name} for one in holding],
            }
        )

    async def resume_gpu(self, _request: Request) -> Response:
        """Read the GPUs again."""
        was = self._nvml.paused_until is not None
        await run_in_threadpool(self._nvml.resume)
        if was:
            log.info("the GPUs are read again, as asked")
        return JSONResponse({"resumed": was})


def _end(paused_until: float | None) -> str:
    """In words, in UTC as the log's own times."""
    if paused_until is None or isinf(paused_until):
        return "until trackside resume-gpu" if paused_until else "for a moment"
    return f"until {datetime.fromtimestamp(paused_until, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


class _Pause(msgspec.Struct, forbid_unknown_fields=True):
    """What is asked for; None for no end."""

    seconds: Annotated[float, msgspec.Meta(gt=0, le=LONGEST)] | None = msgspec.field(default=None, name="for")


def _seconds(body: bytes) -> float | None:
    """How long, of ``{"for": 600}``; None for no end, which an empty body is too."""
    try:
        return msgspec.json.decode(body.strip() or b"{}", type=_Pause).seconds
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        wanted = f'{{"for": SECONDS}}, {LONGEST:.0f} at most, or {{"for": null}} for no end'
        raise HTTPException(400, f"the body is {wanted} ({str(error)[:200]})") from None
