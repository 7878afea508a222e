"""Mistakes that Grafana accepts silently: overlapping panels, duplicate names, broken links."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from grafana.boards import board_annotations, panels, queries, used_variables
from grafana.labels import LabelError, labels
from grafana.promql import parsed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from grafana.boards import Board

COLUMNS = 24
AGREED = {"datasource", "cluster", "job", "instance", "run", "rank", "gpu"}
"""Permitted names of variables, which are part of addresses such as ``var-run=``."""


def twice(board: Board) -> Iterator[str]:
    """Yield ids, titles and query letters that are not unique."""
    everything = [*board["panels"], *(one for row in board["panels"] for one in row.get("panels", ()))]
    yield from _twice("panel id", (one.get("id") for one in everything))
    yield from _twice("title", (one["title"] for one in panels(board)))
    yield from _twice("row", (one["title"] for one in board["panels"] if one["type"] == "row"))
    yield from _twice("variable", (one["name"] for one in board["templating"]["list"]))
    for panel in panels(board):
        yield from _twice(f"{panel['title']}: query", (one.get("refId") for one in panel.get("targets", ())))


def misplaced(board: Board) -> Iterator[str]:
    """Yield panels that overlap or exceed the width."""
    places = [(one["title"], one["gridPos"]) for one in board["panels"]]
    for title, at in places:
        if at["x"] < 0 or at["x"] + at["w"] > COLUMNS or at["w"] < 1 or at["h"] < 1:
            yield f"{title} is not within {COLUMNS} columns: {at}"
    for (one, at), (other, there) in combinations(places, 2):
        apart = at["x"] + at["w"] <= there["x"] or there["x"] + there["w"] <= at["x"]
        if not apart and at["y"] < there["y"] + there["h"] and there["y"] < at["y"] + at["h"]:
            yield f"{one} and {other} are upon one another"


def nameless(board: Board) -> Iterator[str]:
    """Yield queries without a legend, or with one that does not distinguish their series."""
    for panel in panels(board):
        shows = panel["type"] not in {"table", "heatmap", "text"}
        for target in panel.get("targets", ()) if shows else ():
            legend = target.get("legendFormat", "")
            try:
                several = bool(labels(parsed(target["expr"])))
            except LabelError:
                continue
            if (several or len(panel["targets"]) > 1) and legend in {"", "__auto"}:
                yield f"{panel['title']}, query {target['refId']}: several series, and no legend"
            elif several and "{{" not in legend:
                yield f"{panel['title']}, query {target['refId']}: series that are all called {legend!r}"


def unused(board: Board) -> Iterator[str]:
    """Yield unused variables, and undefined ones that are used."""
    there = {one["name"] for one in board["templating"]["list"]}
    elsewhere = {one["name"]: json.dumps({**one, "name": ""}) for one in board["templating"]["list"]}
    rest = json.dumps({name: value for name, value in board.items() if name not in {"templating", "links"}})
    for name in sorted(there):
        if name not in used_variables(rest) and not any(name in used_variables(text) for text in elsewhere.values()):
            yield f"nothing uses the variable {name}"
    for name in sorted(used_variables(rest) - there - {"labels"}):
        yield f"${name} is no variable"
    for name in sorted(there - AGREED):
        yield f"the variable {name} is none of {', '.join(sorted(AGREED))}"


def lost(board: Board, boards: Mapping[str, Board]) -> Iterator[str]:
    """Yield links to unknown dashboards, variables, tags and labels."""
    for link in board["links"]:
        tagged = [one for one in boards.values() if set(link["tags"]) <= set(one["tags"])]
        if link["type"] == "dashboards" and len(tagged) < 2:
            yield f"link {link['title']!r}: no other dashboard has the tags {link['tags']}"
    for title, link, everything, exprs in _links(board):
        for wrong in _astray(link["url"], board, boards, everything=everything, exprs=exprs):
            yield f"{title}, link {link['title']!r}: {wrong}"


def _links(board: Board) -> Iterator[tuple[str, Any, bool, list[str]]]:
    """Yield each link of a panel, whether it applies to every value, and the panel's queries."""
    for panel in panels(board):
        config = panel.get("fieldConfig", {})
        exprs = [one["expr"] for one in panel.get("targets", ())]
        for link in (*panel.get("links", ()), *config.get("defaults", {}).get("links", ())):
            yield panel["title"], link, True, exprs
        for override in config.get("overrides", ()):
            for one in override["properties"]:
                for link in one["value"] if one["id"] == "links" else ():
                    yield panel["title"], link, False, exprs


def _astray(
    url: str, board: Board, boards: Mapping[str, Board], *, everything: bool, exprs: list[str]
) -> Iterator[str]:
    found = re.fullmatch(r"/d/([\w-]+)", urlsplit(url).path)
    if found is None or found[1] not in boards:
        yield f"{url} leads to no dashboard"
        return
    here, there = _variables(board), _variables(boards[found[1]])
    carried = set(re.findall(r"\$\{(\w+):queryparam\}", url))
    given = {name.removeprefix("var-") for name, _ in parse_qsl(urlsplit(url).query) if name.startswith("var-")}
    for name in sorted(carried - here):
        yield f"${name} is no variable here"
    for name in sorted((carried | given) - there):
        yield f"{found[1]} has no variable {name}"
    has = [_labels(expr) for expr in exprs]
    wanted = set.intersection(*has) if everything and has else set().union(*has)
    for name in sorted(set(re.findall(r"\$\{__field\.labels\.(\w+)(?::\w+)?\}", url)) - wanted):
        yield f"the series have no label {name}"
    for name in sorted(set(re.findall(r"\$\{__data\.fields\.(\w+)(?::\w+)?\}", url)) - set().union(*has)):
        yield f"the table has no column {name}"


def unheeded(board: Board) -> Iterator[str]:
    """Yield queries by rank or GPU that ignore the selection."""
    for query in queries(board):
        try:
            has = labels(parsed(query.expr))
        except LabelError:
            continue
        for name in sorted(has & {"rank", "gpu"} & _variables(board) if query.panel else ()):
            if name not in used_variables(query.expr):
                yield f"{query.where}: its series have the label {name}, and ${name} does not choose among them"


def mistimed(board: Board) -> Iterator[str]:
    """Yield annotations whose time is in seconds or is not used."""
    for mark in board_annotations(board):
        millis = bool(re.match(r"1000 \*", mark["expr"]))
        moments = "_timestamp_seconds" in mark["expr"]
        if not (moments == millis == mark.get("useValueForTime", False)):
            yield f"{mark['name']}: a time is in milliseconds and is the mark's, and nothing else is"


def _labels(expr: str) -> set[str]:
    """Return the labels of a query; none for unknown names, which another check reports."""
    try:
        return labels(parsed(expr))
    except LabelError:
        return set()


def _variables(board: Board) -> set[str]:
    return {one["name"] for one in board["templating"]["list"]}


def _twice(what: str, names: Iterable[Any]) -> Iterator[str]:
    return (f"{what} {name!r} is there {times} times" for name, times in Counter(names).items() if times > 1)
