"""Queries to servers with Prometheus' HTTP API."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from processes import eventually, http

SCRAPED = 0.2
"""Seconds between questions to a server that scrapes each second; each question costs it, and the test, CPU time."""


class Point(NamedTuple):
    """A series of an answer.

    Attributes:
        labels: Its labels, without its name and those that Prometheus itself adds.
        value: Its newest value.
    """

    labels: dict[str, str]
    value: float


class Queries:
    """A server that answers queries.

    Attributes:
        url: ``http://HOST:PORT``.
    """

    url: str

    @property
    def write_url(self) -> str:
        """The URL for remote writes, for a server that accepts them."""
        return f"{self.url}/api/v1/write"

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of the HTTP API."""
        answer = http.get(f"{self.url}/api/v1/{path}", params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def query(self, expression: str) -> list[Point]:
        """Return the points of an instant query."""
        return [
            Point(
                {name: text for name, text in one["metric"].items() if name not in {"__name__", "job", "instance"}},
                float(one["value"][1]),
            )
            for one in self.get("query", query=expression)["result"]
        ]

    def shows(self, expression: str, *values: float) -> list[Point]:
        """Wait until *expression* has exactly these values, in any order, with NaN equal to NaN; return its points."""
        wanted = sorted(repr(float(value)) for value in values)
        found: list[Point] = []

        def matches() -> bool:
            found[:] = self.query(expression)
            return sorted(repr(point.value) for point in found) == wanted

        try:
            eventually(matches, pause=SCRAPED)
        except pytest.fail.Exception:
            pytest.fail(f"{expression} never had the values {values}; its last are {found}")
        return found

    def value(self, expression: str) -> float:
        """Return the single value of an instant query."""
        [point] = self.query(expression)
        return point.value
