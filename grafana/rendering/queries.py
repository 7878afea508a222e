"""Queries of a dashboard's variables and panels to a Prometheus."""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

Board = dict[str, Any]
"""The JSON of a dashboard or of a panel."""

_VARIABLE = re.compile(r"\$\{(\w+)(?::(\w+))?\}|\$(\w+)")


class Line(NamedTuple):
    """One series of a result.

    Attributes:
        query: The letter of the query.
        name: Its name in the legend.
        labels: Its labels.
        points: Times and values; an instant query has one.
    """

    query: str
    name: str
    labels: dict[str, str]
    points: list[tuple[float, float]]


class DashboardQueries:
    """The queries of a dashboard over a time range.

    Args:
        prometheus: ``http://HOST:PORT`` of a Prometheus.
        board: The dashboard.
        start: Unix time of the left edge.
        end: Unix time of the right edge.
        given: Values of variables; others have all values, or the first if they have exactly one.
    """

    def __init__(self, prometheus: str, board: Board, start: float, end: float, given: dict[str, str]) -> None:
        self._prometheus = prometheus
        self.start, self.end = start, end
        self.step = max(1.0, (end - start) / 400)
        self.values = {
            "__rate_interval": "15s",
            "__interval": "5s",
            "__range": f"{end - start:.0f}s",
            "__range_s": f"{end - start:.0f}",
        }
        for variable in board["templating"]["list"]:
            self.values[variable["name"]] = given.get(variable["name"]) or self._variable(variable)

    def lines(self, panel: Board) -> list[Line]:
        """Return the series of a panel's queries."""
        return [line for target in panel.get("targets", []) for line in self._series(target)]

    def text(self, template: str) -> str:
        """Return a text with its variables replaced by their values."""
        return _VARIABLE.sub(lambda match: self.values.get(match[1] or match[3], match[0]), template)

    def _variable(self, variable: Board) -> str:
        if variable["type"] != "query" or variable.get("includeAll"):
            return str(variable.get("allValue") or "")
        query = variable["query"]["query"] if isinstance(variable["query"], dict) else variable["query"]
        selector, label = re.fullmatch(r"label_values\((?:(.+), )?(\w+)\)", self.text(query)).groups()  # type: ignore[union-attr]
        values = self._get(f"label/{label}/values", **{"match[]": selector, "start": self.start, "end": self.end})
        return str(values[0])

    def _series(self, target: Board) -> list[Line]:
        expr = self.text(target["expr"])
        if target.get("instant"):
            result = self._get("query", query=expr, time=self.end)["result"]
            series = [(entry["metric"], [entry["value"]]) for entry in result]
        else:
            parameters = {"query": expr, "start": self.start, "end": self.end, "step": self.step}
            series = [(entry["metric"], entry["values"]) for entry in self._get("query_range", **parameters)["result"]]
        return [
            Line(
                target["refId"],
                re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), target.get("legendFormat", "")),  # noqa: B023
                labels,
                [(float(at), float(value)) for at, value in points],
            )
            for labels, points in series
        ]

    def _get(self, path: str, **parameters: Any) -> Any:
        url = f"{self._prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310  the caller's own Prometheus
            return json.load(response)["data"]
