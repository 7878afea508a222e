"""The committed dashboards and their queries."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DASHBOARDS = ROOT / "grafana" / "dashboards"
Board = dict[str, Any]
"""A dashboard, a panel or another object of its JSON."""


class Query(NamedTuple):
    """A query of a dashboard.

    Attributes:
        where: The dashboard's uid, and the panel with its query, the annotation or the variable.
        expr: PromQL with Grafana's variables.
        legend: The legend of its series.
        panel: The panel; empty for an annotation.
    """

    where: str
    expr: str
    legend: str
    panel: Board


def committed() -> dict[str, Board]:
    """Return every dashboard by the name of its file without the suffix."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(DASHBOARDS.glob("*.json"))}


def panels(board: Board) -> list[Board]:
    """Return the panels that show data, including those of collapsed rows."""
    below = [one for row in board["panels"] for one in row.get("panels", ())]
    return [one for one in (*board["panels"], *below) if one["type"] != "row"]


def variables(board: Board, kind: str = "query") -> list[Board]:
    """Return the variables of a kind, in their order."""
    return [one for one in board["templating"]["list"] if one["type"] == kind]


def board_annotations(board: Board) -> list[Board]:
    """Return the annotations that a query makes."""
    return [one for one in board["annotations"].get("list", ()) if not one.get("builtIn")]


def queries(board: Board) -> Iterator[Query]:
    """Yield all queries but those of the variables."""
    for panel in panels(board):
        for target in panel.get("targets", ()):
            where = f"{board['uid']}: panel {panel['title']!r}, query {target['refId']}"
            yield Query(where, target["expr"], target.get("legendFormat", ""), panel)
    for annotation in board_annotations(board):
        expr = annotation.get("expr") or annotation["target"]["expr"]
        yield Query(f"{board['uid']}: annotation {annotation['name']!r}", expr, "", {})


def label_query(variable: Board) -> tuple[str, str]:
    """Return the selector, which may be empty, and the label of a variable's ``label_values(selector, label)``; or an expression and the label that its filter selects."""
    text = variable["query"]["query"] if isinstance(variable["query"], dict) else variable["query"]
    if result := re.fullmatch(r"query_result\((.+)\)", text):
        label = re.match(r"/\^\{(\w+)=", variable["regex"])
        assert label is not None, f"{variable['name']}: {variable['regex']}"
        return result[1], label[1]
    found = re.fullmatch(r"label_values\((?:(.+),)?\s*(\w+)\)", text)
    assert found is not None, f"{variable['name']}: {text}"
    return found[1] or "", found[2]


def used_variables(text: str) -> set[str]:
    """Return the names of the variables in a text, without Grafana's built-in ones."""
    found = re.findall(r"\$(?:\{(\w+)[^}]*\}|(\w+))", text)
    return {one for pair in found for one in pair if one and not one.startswith("__")}


def substituted(text: str, values: Mapping[str, str]) -> str:
    """Return a text with its variables replaced; a variable without a value stays."""
    return re.sub(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))", lambda found: values.get(found[1] or found[2], found[0]), text)
