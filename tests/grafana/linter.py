"""The Prometheus rules of grafana/dashboard-linter, as its documentation describes them.

Here they apply to every panel with queries; the linter checks only some types. The linter's file `.lint` next to the
dashboards may exclude findings.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from grafana.boards import Board, panels, substituted, used_variables, variables
from grafana.promql import MAGIC, kind, matchers, parsed, selectors, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_UNITS = """
none string short sishort percent percentunit sci locale bool bool_yes_no bool_on_off
bytes decbytes bits decbits Bps binBps bps binbps pps
dateTimeAsIso dateTimeAsIsoNoDateIfToday dateTimeAsLocal dateTimeAsLocalNoDateIfToday dateTimeAsSystem dateTimeFromNow
watt kwatt joule watth kwatth celsius hertz rotrpm
ns µs ms s m h d dtdurationms dtdurations dthms dtdhms clocks
flops tflops pflops cps ops reqps rps wps iops cpm opm rpm wpm
"""
UNITS = set(_UNITS.split())
"""Units of Grafana (packages/grafana-data/src/valueFormats/categories.ts) that the families here may have."""
SILENT = {"text"}
"""Types of panels without queries."""
QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)""")
COUNTING = {"rate", "irate", "increase"}
FUNCTIONS = {"label_names", "label_values", "metrics", "query_result"}


class Finding(NamedTuple):
    """A finding of a rule.

    Attributes:
        rule: The linter's name of the rule.
        message: The mistake.
        panel: The title of the panel; empty for the whole dashboard.
        target: The index of the query.
    """

    rule: str
    message: str
    panel: str = ""
    target: int | None = None


Found = tuple[str, str, "int | None"]
"""The findings of a rule: messages with their places."""


def findings(board: Board) -> list[Finding]:
    """Yield all findings in a dashboard."""
    return [Finding(name, *found) for name, rule in RULES.items() for found in rule(board)]


def excluded(finding: Finding, title: str, lint: dict[str, Any]) -> bool:
    """Return True if the file `.lint` excludes a finding in the dashboard of this title."""
    if finding.rule not in lint["exclusions"]:
        return False
    entries = (lint["exclusions"][finding.rule] or {}).get("entries") or [{}]
    return any(
        entry.get("dashboard", title) == title
        and entry.get("panel", finding.panel) == finding.panel
        and str(entry.get("targetIdx", finding.target)) == str(finding.target)
        for entry in entries
    )


def _datasource(board: Board) -> Iterator[Found]:
    found = [(one["name"], one.get("label"), one["query"]) for one in variables(board, "datasource")]
    if found != [("datasource", "Data source", "prometheus")]:
        yield f"there is to be one data source variable 'datasource', labelled 'Data source', not {found}", "", None


def _template(name: str) -> Callable[[Board], Iterator[Found]]:
    wanted = {"type": "query", "multi": True, "allValue": ".+"}

    def rule(board: Board) -> Iterator[Found]:
        found = [one for one in board["templating"]["list"] if one["name"] == name]
        right = len(found) == 1 and wanted.items() <= found[0].items()
        if not right or found[0]["datasource"]["uid"] != "${datasource}" or found[0]["label"].lower() != name:
            yield f"there is to be one variable {name}: a query of $datasource, multi, with allValue .+", "", None

    return rule


def _label_promql(board: Board) -> Iterator[Found]:
    for one in variables(board):
        text = one["query"]["query"] if isinstance(one["query"], dict) else one["query"]
        found = re.fullmatch(r"([a-z_]+)\((.+)\)", text)
        selector = found[2].rpartition(",")[0] if found else ""
        if found is None or found[1] not in FUNCTIONS or (selector and _wrong(selector)):
            yield f"variable {one['name']}: {text} is no query of label values", "", None


def _reload(board: Board) -> Iterator[Found]:
    for one in variables(board):
        if one.get("refresh") != 2:
            yield f"variable {one['name']} is to be asked again when the time range changes: refresh 2", "", None


def _panel_datasource(board: Board) -> Iterator[Found]:
    for panel in _asking(board):
        sources = {one.get("datasource", {}).get("uid") for one in (panel, *panel.get("targets", ()))}
        if sources != {"${datasource}"}:
            yield f"it does not ask $datasource, but {sources}", panel["title"], None


def _title(board: Board) -> Iterator[Found]:
    for panel in panels(board):
        if not panel.get("title") or not panel.get("description"):
            yield "it has no title or no description", panel.get("title", ""), None


def _units(board: Board) -> Iterator[Found]:
    for panel in _asking(board):
        config = panel.get("fieldConfig", {})
        given = [
            one["value"] for two in config.get("overrides", ()) for one in two["properties"] if one["id"] == "unit"
        ]
        for unit in (config.get("defaults", {}).get("unit"), *given):
            if unit not in UNITS:
                yield f"{unit!r} is none of Grafana's units", panel["title"], None


def _no_targets(board: Board) -> Iterator[Found]:
    for panel in _asking(board):
        if not panel.get("targets"):
            yield "it asks nothing", panel["title"], None


def _promql(board: Board) -> Iterator[Found]:
    for panel, at, expr in _targets(board):
        if wrong := _wrong(expr):
            yield f"{expr}: {wrong}", panel, at


def _rate_interval(board: Board) -> Iterator[Found]:
    for panel, at, expr in _targets(board):
        for node, parents in _nodes(expr):
            rated = kind(node) == "MatrixSelector" and parents and kind(parents[-1]) == "Call"
            if rated and parents[-1].func.name in {"rate", "irate"} and _seconds(node) != MAGIC["__rate_interval"]:
                yield f"{expr}: a rate is to be over $__rate_interval", panel, at


def _matcher(label: str) -> Callable[[Board], Iterator[Found]]:
    def rule(board: Board) -> Iterator[Found]:
        for panel, at, expr in _targets(board):
            if any(matchers(one).get(label) != ("=~", f"${label}") for one in _selected(expr)):
                yield f'{expr}: each selector is to have {label}=~"${label}"', panel, at

    return rule


def _counter(board: Board) -> Iterator[Found]:
    for panel, at, expr in _targets(board):
        for node, parents in _nodes(expr):
            if kind(node) == "VectorSelector" and (node.name or "").endswith("_total"):
                calls = [one.func.name for one in parents[-2:] if kind(one) == "Call"]
                if not COUNTING.intersection(calls) or kind(parents[-1]) != "MatrixSelector":
                    yield f"{node.name}: a counter is to be under rate, irate or increase", panel, at


def _uneditable(board: Board) -> Iterator[Found]:
    if board.get("editable") is not False:
        yield "it is to be editable: false", "", None


RULES: dict[str, Callable[[Board], Iterator[Found]]] = {
    "template-datasource-rule": _datasource,
    "template-job-rule": _template("job"),
    "template-instance-rule": _template("instance"),
    "template-label-promql-rule": _label_promql,
    "template-on-time-change-reload-rule": _reload,
    "panel-datasource-rule": _panel_datasource,
    "panel-title-description-rule": _title,
    "panel-units-rule": _units,
    "panel-no-targets-rule": _no_targets,
    "target-promql-rule": _promql,
    "target-rate-interval-rule": _rate_interval,
    "target-job-rule": _matcher("job"),
    "target-instance-rule": _matcher("instance"),
    "target-counter-agg-rule": _counter,
    "uneditable-dashboard": _uneditable,
}


def _asking(board: Board) -> list[Board]:
    return [one for one in panels(board) if one["type"] not in SILENT]


def _targets(board: Board) -> Iterator[tuple[str, int, str]]:
    for panel in _asking(board):
        for at, target in enumerate(panel.get("targets", ())):
            yield panel["title"], at, target["expr"]


def _wrong(expr: str) -> str:
    """Return why a text is not PromQL; empty when it is."""
    try:
        parsed(_plain(expr))
    except ValueError as error:
        return str(error)
    return ""


def _nodes(expr: str) -> Iterator[Any]:
    """Return the nodes of a query; none if it is not PromQL, which another rule reports."""
    return iter(()) if _wrong(expr) else walk(parsed(_plain(expr)))


def _selected(expr: str) -> list[Any]:
    return [] if _wrong(expr) else [one for one, _ in selectors(parsed(_plain(expr)))]


def _plain(expr: str) -> str:
    """Replace each variable outside quotes by a number, as the linter does; quoted ones are values of matchers."""
    return "".join(
        part if at % 2 else substituted(part, dict.fromkeys(used_variables(part), "1"))
        for at, part in enumerate(re.split(QUOTED, expr))
    )


def _seconds(node: Any) -> str:
    return f"{node.range.total_seconds():.0f}s"
