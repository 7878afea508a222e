"""The API's endpoints of diagnoses."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from trackside_daemon.diagnosis.comparison import MOST_KEYS, MOST_RUNS, read_comparison
from trackside_daemon.diagnosis.diagnosis import diagnose
from trackside_daemon.diagnosis.performance import POINTS, read_performance
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.series import LogTails, Window
from trackside_daemon.web.api.history_access import json_response
from trackside_daemon.web.api.query_params import parse_bounded, parse_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from trackside_daemon.diagnosis.settings import CostSection
    from trackside_daemon.web.api.history_access import HistoryAccess

MAX_POINTS = 500  # parts of the time of a performance


class DiagnosisApi:
    """Answers requests about the time of runs and their causes.

    Args:
        history: The history.
        prices: Returns the configured prices.
        straggler_ratio: The multiple of the median rank's own time from which `StragglerRank` counts a rank as slow.
        hang: Asks a run, by its id, why it makes no step; returns the verdict as JSON, or None.
    """

    def __init__(
        self,
        history: HistoryAccess,
        prices: Callable[[], CostSection],
        *,
        straggler_ratio: float,
        hang: Callable[[str], dict[str, Any] | None] = lambda _: None,
    ) -> None:
        self._straggler_ratio = straggler_ratio
        self._history = history
        self._prices = prices
        self._hang = hang

    async def diagnosis(self, request: Request) -> Response:
        """Return where the time of a run went, and the causes that cost most."""
        prices, name, params = self._prices(), request.path_params["id"], request.query_params
        baseline, keys = params.getlist("baseline"), params.getlist("key")
        _check_numbers(baseline, keys)
        diagnosis = await self._history.read(
            lambda connection: diagnose(
                connection, reader.resolve(connection, name), prices, baseline=baseline, keys=keys
            )
        )
        # Without an alert yet, or without a verdict in it, the ranks are asked now.
        hang = diagnosis["hang"] or await self._history.run_in_thread(lambda: self._hang(diagnosis["run"]))
        return json_response({**diagnosis, "hang": hang})

    async def performance(self, request: Request) -> Response:
        """Return how fast a run was over time."""
        name, params = request.path_params["id"], request.query_params
        points = max(1, parse_bounded(params, "points", POINTS, MAX_POINTS))
        low, high = parse_number(params, "from"), parse_number(params, "to")
        window = Window("time", -inf if low is None else low, inf if high is None else high)
        found = await self._history.read(
            lambda connection: read_performance(
                connection, reader.resolve(connection, name), LogTails(connection), points, window
            )
        )
        return json_response({**found, "straggler_ratio": self._straggler_ratio})

    async def comparison(self, request: Request) -> Response:
        """Return how runs differ from their baseline."""
        params = request.query_params
        runs, baseline, keys = (params.getlist(name) for name in ("run", "baseline", "key"))
        if not runs:
            raise HTTPException(400, "run: name at least one run, by its id or name; the parameter may be repeated")
        _check_numbers([*runs, *baseline], keys)
        prices = self._prices()
        return json_response(
            await self._history.read(lambda connection: read_comparison(connection, runs, baseline, keys, prices))
        )


def _check_numbers(runs: list[str], keys: list[str]) -> None:
    """Raise HTTP 400 for more runs or keys than one answer may take time for."""
    if len(runs) > MOST_RUNS or len(keys) > MOST_KEYS:
        raise HTTPException(400, f"at most {MOST_RUNS} runs with the baseline and {MOST_KEYS} keys at a time")
