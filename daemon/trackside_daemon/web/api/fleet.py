"""Endpoint of the runs of all machines."""

from typing import Annotated, Any

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from trackside_daemon.bridges.fleet import Fleet
from trackside_daemon.questions.question import InvalidError, Question
from trackside_daemon.web.api.history_access import HistoryAccess, json_response, parsed


class FleetQuery(Question, frozen=True, kw_only=True):
    """The parameters of a request for the runs of all machines."""

    query: Annotated[str, Meta(max_length=1000, description="Only runs that this selects; see docs/queries.md.")] = ""


class FleetApi:
    """Answers requests for the runs of all machines."""

    def __init__(self, fleet: Fleet, history: HistoryAccess) -> None:
        self._fleet = fleet
        self._history = history

    async def fleet(self, request: Request) -> Response:
        """List the runs of all machines, newest first: live ones from a server, ended ones from the archive."""
        query = parsed(FleetQuery, request).query

        def answer() -> dict[str, Any]:
            try:
                return self._fleet.runs(query)
            except ValueError as error:
                raise InvalidError(f"query: {error}") from None

        return json_response(await self._history.run_in_thread(answer))
