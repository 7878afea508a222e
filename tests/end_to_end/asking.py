"""Queries of dashboards to a server, as Grafana would send them."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import httpx
from grafana.boards import label_query, queries, variables
from grafana.promql import kind, parsed, selectors, walk
from processes import DEADLINE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from grafana.boards import Board
    from grafana.promql import Node

SECONDS = 60
"""The time range that is looked at."""
PAUSE = 8.0
"""Seconds of scrapes from one round of queries to the next: each round costs the server and the test CPU time."""
BUILTIN = {
    "__rate_interval": "10s",
    "__interval": "1s",
    "__interval_ms": "1000",
    "__range": f"{SECONDS}s",
    "__range_s": str(SECONDS),
}

SPECIAL, LITERALLY = r"([\\^$*+?.()|\[\]{}])", r"\\\1"
"""What means something in a regular expression, and what to write for it."""

Values = dict[str, str]
"""What is chosen of each variable, as a regular expression."""


class Asking:
    """A server that dashboards query.

    Args:
        url: ``http://HOST:PORT``, with Prometheus' HTTP API.
        rates: Grafana's value of ``$__rate_interval``.
    """

    def __init__(self, url: str, rates: str = BUILTIN["__rate_interval"]) -> None:
        self._rates = rates
        self._client = httpx.Client(base_url=f"{url}/api/v1", timeout=DEADLINE, trust_env=False)
        self._answered: set[str] = set()
        self._scraped = 0.0

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()

    def fresh(self) -> bool:
        """Return whether scrapes have happened since it was true last: without, queries return the same."""
        answer = self._get("query", query="max(timestamp(up))")["result"]
        scraped = float(answer[0]["value"][1]) if answer else 0.0
        if scraped < self._scraped + PAUSE:
            return False
        self._scraped = scraped
        return True

    def complaints(self, board: Board) -> list[str]:
        """Return a line for each query of a dashboard without data; queries that had data before are skipped."""
        values, wrong = self._chosen(board)
        if wrong:
            return wrong
        known = set(self._get("label/__name__/values"))
        everything = {
            **dict.fromkeys(values, ".+"),
            "__rate_interval": self._rates,
        }  # the parser takes no escapes in ``
        for query in queries(board):
            expr = filled(query.expr, {**values, "__rate_interval": self._rates})
            if expr in self._answered:
                continue
            try:
                families = {one.name for one, _ in selectors(parsed(query.expr))}
                missing = sorted(one for one in families - known if f"{one}_bucket" not in known)
                if not missing and not families & known:
                    continue  # of native histograms, while the server stores classic ones
                if missing or not self._answers(expr):
                    wrong.append(f"{query.where}: no data" + "".join(f"; {one} has no series" for one in missing))
                elif empty := [one for one in unfilled(filled(query.expr, everything)) if not self._answers(one)]:
                    wrong.append(f"{query.where}: no data but 0: {'; '.join(empty)}")
                else:
                    self._answered.add(expr)
            except (ValueError, httpx.HTTPStatusError) as error:
                wrong.append(f"{query.where}: {error}: {expr}")
        return wrong

    def _chosen(self, board: Board) -> tuple[Values, list[str]]:
        """Return a choice for each variable, in order, and a line for each variable without values.

        The choice is All where the dashboard has it, as when it is opened, otherwise any of the values.
        """
        values: Values = {}
        wrong = []
        for variable in variables(board):
            selector, label = label_query(variable)
            chosen = re.compile(variable.get("regex", "").strip("/"))
            if variable["query"].startswith("query_result"):
                rows = self._get("query", query=filled(selector, values))["result"]
                texts = [f'{{{label}="{row["metric"][label]}"}} 1 1' for row in rows]  # as Grafana writes them
                found = [one[1] for one in map(chosen.search, texts) if one]
            else:
                match = {"match[]": filled(selector, values)} if selector else {}
                found = [one for one in self._get(f"label/{label}/values", **match) if chosen.search(one)]
            if not found:
                wrong.append(f"{board['uid']}: variable {variable['name']}: no values of {variable['query']}")
            any_of_them = f"({'|'.join(re.sub(SPECIAL, LITERALLY, one) for one in found)})"
            values[variable["name"]] = variable["allValue"] if variable.get("includeAll") else any_of_them
        return values, wrong

    def _answers(self, expr: str) -> bool:
        now = time.time()
        span = {"start": f"{now - SECONDS:.3f}", "end": f"{now:.3f}", "step": "2"}
        return bool(self._get("query_range", query=expr, **span)["result"])

    def _get(self, path: str, **parameters: str) -> Any:
        answer = self._client.get(path, params=parameters)
        if answer.status_code != 200:
            raise httpx.HTTPStatusError(answer.text, request=answer.request, response=answer)
        return answer.json()["data"]


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a query with values in place of variables.

    As in Grafana, values are escaped once more for double quotes, except those of ``${name:regex}``, which is for other
    quotes.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        if name in BUILTIN:
            return values.get(name, BUILTIN[name])
        chosen = values.get(name, found[0])
        return chosen if found[2] == "regex" else chosen.replace("\\", "\\\\")

    return re.sub(r"\$(?:\{(\w+)(?::(\w+))?\}|(\w+))", value, text)


def unfilled(expr: str) -> Iterator[str]:
    """Yield the operands before ``or vector(0)`` or ``or 0 * …`` in a query, which hide an operand without data."""
    for node, _ in walk(parsed(expr)):
        if kind(node) == "BinaryExpr" and str(node.op) == "or" and _is_zero(node.rhs):
            yield node.lhs.prettify()


def _is_zero(node: Node) -> bool:
    if kind(node) == "Call":
        return bool(node.func.name == "vector" and getattr(node.args[0], "val", None) == 0)
    return kind(node) == "BinaryExpr" and str(node.op) == "*" and getattr(node.lhs, "val", None) == 0
