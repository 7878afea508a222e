"""The pages of `/api/v1` that let go of the GPUs, and take them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from trackside_daemon.collectors.nvml import until
from trackside_daemon.nvml.holders import holders

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from trackside_daemon.nvml.handle import Nvml

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
        self._nvml.resume()
        return JSONResponse({"resumed": was})


def _seconds(body: bytes) -> float | None:
    """How long, of ``{"for": 600}``; None for no end, which an empty body is too."""
    try:
        said: Any = msgspec.json.decode(body) if body.strip() else {}
        seconds = said.get("for")
    except (ValueError, AttributeError):
        raise HTTPException(400, 'the body is {"for": SECONDS}, or {"for": null} for no end') from None
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= LONGEST:
        raise HTTPException(
            400, f"for: {str(seconds)[:60]!r} is no number of seconds from 0 to {LONGEST:.0f}, nor null"
        )
    return float(seconds)
