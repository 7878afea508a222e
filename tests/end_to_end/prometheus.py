"""Debian's own Prometheus as a process that scrapes the daemon each second."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import pytest
from end_to_end.listening import Listening
from processes import DEADLINE, eventually

if TYPE_CHECKING:
    from pathlib import Path


class Point(NamedTuple):
    """One series of an answer.

    Attributes:
        labels: Without its name and those that Prometheus itself adds.
        value: The newest.
    """

    labels: dict[str, str]
    value: float


class Prometheus(Listening):
    """Prometheus on a port of its own, with one target, whose first scrape comes five seconds after the start.

    As a context it ends with the block, and must have found no scrape wrong by then.

    Args:
        directory: For its configuration and storage.
        target: ``http://HOST:PORT`` whose ``/metrics`` is scraped.
        scrape: Further settings of the scrape, such as ``label_value_length_limit``.
    """

    def __init__(self, directory: Path, target: str, **scrape: object) -> None:
        job = {"job_name": "trackside", "static_configs": [{"targets": [target.removeprefix("http://")]}], **scrape}
        config = directory / "prometheus.yml"  # JSON is YAML
        config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
        super().__init__(
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'prometheus'}",
            "--web.listen-address=127.0.0.1:0",
            "--log.level=debug",
        )
        eventually(lambda: httpx.get(f"{self.url}/-/ready", timeout=DEADLINE).status_code == 200)

    def __enter__(self) -> Prometheus:  # noqa: PYI034  Self came with Python 3.11
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        complaints = self.complaints()
        self.stop()
        assert kind is not None or complaints == []

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer of the HTTP API."""
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=DEADLINE)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def query(self, expression: str) -> list[Point]:
        """An instant query."""
        return [
            Point(
                {name: text for name, text in one["metric"].items() if name not in {"__name__", "job", "instance"}},
                float(one["value"][1]),
            )
            for one in self.get("query", query=expression)["result"]
        ]

    def shows(self, expression: str, *values: float) -> list[Point]:
        """Wait until *expression* has just these values, in any order, NaN being like NaN; what it has then."""
        wanted = sorted(repr(float(value)) for value in values)
        found: list[Point] = []

        def look() -> bool:
            found[:] = self.query(expression)
            return sorted(repr(point.value) for point in found) == wanted

        try:
            eventually(look)
        except pytest.fail.Exception:
            pytest.fail(f"{expression} never had the values {values}; its last are {found}")
        return found

    def value(self, expression: str) -> float:
        """The one value of an instant query."""
        [point] = self.query(expression)
        return point.value

    def complaints(self) -> list[str]:
        """What Prometheus found wrong with any scrape so far: while there is none, `up` stays 1.

        A scrape that took too long does not count: on a busy machine a second is short.
        """
        wrong = re.compile(r"Scrape failed|Append failed|level=(warn|error)|[Ee]rror on ingesting")
        return [line for line in self.log if wrong.search(line) and "context deadline exceeded" not in line]
