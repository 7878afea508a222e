"""The dashboards as Grafana reads them, and what each asks Prometheus."""

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
    """What is asked.

    Attributes:
        where: The dashboard's uid, and the panel and its query, the annotation or the variable.
        expr: PromQL, with Grafana's variables in it.
        legend: How its series are called.
        panel: Whose it is; empty of an annotation.
    """

    where: str
    expr: str
    legend: str
    panel: Board


def committed() -> dict[str, Board]:
    """Every dashboard, by the name of its file without the suffix."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(DASHBOARDS.glob("*.json"))}


def panels(board: Board) -> list[Board]:
    """Those that show something, those of collapsed rows too."""
    below = [one for row in board["panels"] for one in row.get("panels", ())]
    return [one for one in (*board["panels"], *below) if one["type"] != "row"]


def variables(board: Board, kind: str = "query") -> list[Board]:
    """The variables of a kind, in their order."""
    return [one for one in board["templating"]["list"] if one["type"] == kind]


def marks(board: Board) -> list[Board]:
    """Marks on the charts that a query makes."""
    return [one for one in board["annotations"].get("list", ()) if not one.get("builtIn")]


def queries(board: Board) -> Iterator[Query]:
    """All but those of the variables."""
    for panel in panels(board):
        for target in panel.get("targets", ()):
            where = f"{board['uid']}: panel {panel['title']!r}, query {target['refId']}"
            yield Query(where, target["expr"], target.get("legendFormat", ""), panel)
    for mark in marks(board):
        expr = mark.get("expr") or mark["target"]["expr"]
        yield Query(f"{board['uid']}: annotation {mark['name']!r}", expr, "", {})


def asked(variable: Board) -> tuple[str, str]:
    """The selector, which may be empty, and the label of a variable's ``label_values(selector, label)``."""
    text = variable["query"]["query"] if isinstance(variable["query"], dict) else variable["query"]
    found = re.fullmatch(r"label_values\((?:(.+),)?\s*(\w+)\)", text)
    assert found is not None, f"{variable['name']}: {text}"
    return found[1] or "", found[2]


def named(text: str) -> set[str]:
    """The variables that a text has, without those of Grafana's own."""
    found = re.findall(r"\$(?:\{(\w+)[^}]*\}|(\w+))", text)
    return {one for pair in found for one in pair if one and not one.startswith("__")}


def substituted(text: str, values: Mapping[str, str]) -> str:
    """A text with values in place of variables; one that has no value stays."""
    return re.sub(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))", lambda found: values.get(found[1] or found[2], found[0]), text)
