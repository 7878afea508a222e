"""What a Prometheus answers to a dashboard's variables and queries."""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

Board = dict[str, Any]
"""A dashboard, or a panel of one, as its JSON has it."""

_VARIABLE = re.compile(r"\$\{(\w+)(?::(\w+))?\}|\$(\w+)")


class Line(NamedTuple):
    """One series of an answer.

    Attributes:
        query: The letter of the query.
        name: What its legend calls it.
        labels: All that it has.
        points: Times and values, of an instant query one.
    """

    query: str
    name: str
    labels: dict[str, str]
    points: list[tuple[float, float]]


class Asked:
    """A dashboard, asked for a time.

    Args:
        prometheus: ``http://HOST:PORT`` of a Prometheus.
        board: The dashboard.
        start: Unix time of the left edge.
        end: Unix time of the right edge.
        given: Values of variables that are chosen; the others have all, or the first where they have one.
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
        for one in board["templating"]["list"]:
            self.values[one["name"]] = given.get(one["name"]) or self._variable(one)

    def lines(self, panel: Board) -> list[Line]:
        """What its queries give."""
        return [line for target in panel.get("targets", []) for line in self._ask(target)]

    def text(self, written: str) -> str:
        """Variables replaced by their values."""
        return _VARIABLE.sub(lambda found: self.values.get(found[1] or found[3], found[0]), written)

    def _variable(self, variable: Board) -> str:
        if variable["type"] != "query" or variable.get("includeAll"):
            return str(variable.get("allValue") or "")
        query = variable["query"]["query"] if isinstance(variable["query"], dict) else variable["query"]
        selector, label = re.fullmatch(r"label_values\((?:(.+), )?(\w+)\)", self.text(query)).groups()  # type: ignore[union-attr]
        found = self._get(f"label/{label}/values", **{"match[]": selector, "start": self.start, "end": self.end})
        return str(found[0])

    def _ask(self, target: Board) -> list[Line]:
        expr = self.text(target["expr"])
        if target.get("instant"):
            found = self._get("query", query=expr, time=self.end)["result"]
            series = [(one["metric"], [one["value"]]) for one in found]
        else:
            asked = {"query": expr, "start": self.start, "end": self.end, "step": self.step}
            series = [(one["metric"], one["values"]) for one in self._get("query_range", **asked)["result"]]
        return [
            Line(
                target["refId"],
                re.sub(r"\{\{(\w+)\}\}", lambda hit: labels.get(hit[1], ""), target.get("legendFormat", "")),  # noqa: B023
                labels,
                [(float(at), float(value)) for at, value in points],
            )
            for labels, points in series
        ]

    def _get(self, path: str, **asked: Any) -> Any:
        url = f"{self._prometheus}/api/v1/{path}?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310  the caller's own Prometheus
            return json.load(answer)["data"]
