"""Endpoints of the distributions of layers: heat maps of one value, and one layer's distribution over steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from trackside_daemon.history.read import layers, reader
from trackside_daemon.history.read.layers import VALUES, LayerWindow
from trackside_daemon.web.api.history_access import json_response
from trackside_daemon.web.api.query_params import parse_bounded, parse_integer, parse_window

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from trackside_daemon.web.api.history_access import HistoryAccess

POINTS, MAX_POINTS = 200, 2000


class LayersApi:
    """Answers requests about the distributions of layers.

    Args:
        history: The history.
    """

    def __init__(self, history: HistoryAccess) -> None:
        self._history = history

    async def layer_map(self, request: Request) -> Response:
        """Return one value of all layers over steps."""
        kind = request.query_params.get("kind", "")
        value = request.query_params.get("value", "")
        if value and value not in VALUES.get(kind or "weights", ()):
            raise HTTPException(
                400, f"value: must be one of {', '.join(VALUES[kind or 'weights'])}, not {value[:60]!r}"
            )

        def read(connection: Any, window: LayerWindow, found: list[str]) -> dict[str, Any]:
            chosen = value if value in VALUES[window.kind] else VALUES[window.kind][0]
            return {"kinds": {one: VALUES[one] for one in found}, **layers.heat_map(connection, window, chosen)}

        return await self._answer(request, read)

    async def layer_values(self, request: Request) -> Response:
        """Return the newest values of all layers."""
        run = request.path_params["id"]
        found = await self._history.read(lambda connection: layers.newest(connection, reader.resolve(connection, run)))
        return json_response(found)

    async def layer(self, request: Request) -> Response:
        """Return a layer's distribution over steps."""
        name = request.path_params["layer"]

        def read(connection: Any, window: LayerWindow, _: list[str]) -> dict[str, Any]:
            found = layers.distribution(connection, window, name)
            if not found["steps"]:
                raise HTTPException(404, f"layer {name!r}: run {window.run!r} has no {window.kind} of it")
            return found

        return await self._answer(request, read)

    async def _answer(
        self, request: Request, read: Callable[[Any, LayerWindow, list[str]], dict[str, Any]]
    ) -> Response:
        params = request.query_params
        kind = params.get("kind", "")
        if kind and kind not in VALUES:
            raise HTTPException(400, f"kind: must be one of {', '.join(VALUES)}, not {kind[:60]!r}")
        try:
            ranks = frozenset(parse_integer(rank) for rank in params.getlist("rank") if rank != "all")
            attempt = parse_integer(params["attempt"]) if "attempt" in params else None
        except ValueError:
            raise HTTPException(400, "rank and attempt must be numbers; use rank=all for every rank") from None
        part = parse_window(params)
        points = parse_bounded(params, "points", POINTS, MAX_POINTS) or POINTS

        def query(connection: Any) -> dict[str, Any]:
            run = reader.resolve(connection, request.path_params["id"])
            found = layers.kinds(connection, run)
            chosen = kind or next(iter(found), "weights")
            window = LayerWindow(run, chosen, ranks, attempt, part.low, part.high, part.by, points)
            return {"run": run, **read(connection, window, found)}

        return json_response(await self._history.read(query))
