"""Dashboards as JSON: their variables, links, annotations and rows of panels."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from grafana.panels import SOURCE, expand, of_sites
from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

TAG = "trackside"

VARIABLES = {
    "cluster": ("Cluster", "label_values(trackside_build_info, CLUSTER)"),
    "job": ("Job", 'label_values(trackside_build_info{CLUSTER=~"$cluster"}, job)'),
    "instance": ("Instance", 'label_values(trackside_build_info{CLUSTER=~"$cluster", job=~"$job"}, instance)'),
    "run": ("Run", "label_values(trackside_training_run_info{HERE}, run)"),
    "rank": ("Rank", "label_values(trackside_training_rank_state{RUN}, rank)"),
    "gpu": ("GPU", "label_values(trackside_gpu_info{HERE}, gpu)"),
}
"""Label and query of each variable, in the order in which they depend on each other."""

RUN_FILTER = "/^[^`]*$/"
"""Selectable runs: no format of Grafana escapes a backtick, which would end the quotes of `RUN` and break each panel."""

STARTED = "max by (run) (last_over_time(trackside_training_start_timestamp_seconds{HERE}[$__range]))"
LIVE = 'max by (run) (trackside_training_state{HERE, state=~"starting|running|stalled"})'
ONE_RUN = f"query_result(sort_desc(({STARTED} + 1e10 * {LIVE}) or {STARTED}))"
"""The runs of the time range, live ones first, then the newest: a dashboard of one run opens on the first of them."""

ONE_RUN_FILTER = '/^{run="([^`]*)"} /'


class Row:
    """A heading and the panels below it; a *collapsed* row hides its panels until it is clicked."""

    def __init__(self, title: str, *panels: Any, collapsed: bool = False) -> None:
        self.title = title
        self.panels = panels
        self.collapsed = collapsed


def annotation(
    name: str, expr: str, title: str, text: str, color: str, *, tags: str = "", timestamps: bool = False
) -> Any:
    """Return an annotation of all charts: the times at which *expr* is above 0.

    Args:
        name: Label of its switch above the charts.
        expr: PromQL, with the tokens of `grafana.panels`.
        title: Title of a mark; ``{{label}}`` is a label's value.
        text: Text below the title.
        color: Color of the line.
        tags: Labels shown as tags, separated by commas.
        timestamps: The value is the time of the mark, in Unix milliseconds.
    """
    query = dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(color)
    query.expr(of_sites(expr)).title_format(title).text_format(text).tag_keys(tags)
    return query.use_value_for_time(True) if timestamps else query


def board(
    uid: str,
    title: str,
    description: str,
    rows: Sequence[Row],
    *,
    variables: Sequence[str],
    single: Sequence[str] = (),
    annotations: Sequence[Any] = (),
    refresh: str = "30s",
) -> str:
    """Return a dashboard as JSON, in the classic schema.

    Args:
        uid: Its identifier in links; it must never change.
        title: Title without the project's name.
        description: The questions that it answers.
        rows: Rows from top to bottom.
        variables: Names from `VARIABLES`, in addition to ``datasource``, ``cluster``, ``job`` and ``instance``.
        single: Variables with exactly one value.
        annotations: Annotations of all charts.
        refresh: Interval of automatic reloads.
    """
    builder = dashboard.Dashboard(f"Trackside / {title}").uid(uid).description(description).tags([TAG])
    builder.time("now-1h", "now").refresh(refresh).readonly().tooltip(models.DashboardCursorSync.CROSSHAIR)
    builder.link(
        dashboard.DashboardLink("Trackside")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .include_vars(True)
        .keep_time(True)
    )
    builder.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    for name in ("cluster", "job", "instance", *variables):
        builder.with_variable(_variable(name, multiple=name not in single))
    for query in annotations:
        builder.annotation(query)
    for row in rows:
        _add_row(builder, row)
    document = json.loads(JSONEncoder(sort_keys=True).encode(builder.build()), object_hook=_without_placement)
    for number, panel in enumerate(_all_panels(document["panels"]), 1):
        panel["id"] = number
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _add_row(builder: dashboard.Dashboard, row: Row) -> None:
    heading = dashboard.Row(row.title).collapsed(row.collapsed)
    for panel in row.panels if row.collapsed else ():
        heading.with_panel(panel)
    builder.with_row(heading)
    for panel in () if row.collapsed else row.panels:
        builder.with_panel(panel)


def _without_placement(value: dict[str, Any]) -> dict[str, Any]:
    """Remove the SDK's default placement, which would move links and annotation switches into a menu."""
    return {name: entry for name, entry in value.items() if (name, entry) != ("placement", "inControlsMenu")}


def _all_panels(panels: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in panels:
        yield panel
        yield from _all_panels(panel.get("panels", ()))


def _variable(name: str, *, multiple: bool) -> dashboard.QueryVariable:
    label, query = VARIABLES[name]
    is_sorted = name == "run" and not multiple
    query = ONE_RUN if is_sorted else query
    variable = dashboard.QueryVariable(name).label(label).datasource(SOURCE).query(expand(query))
    if name == "run":
        variable.regex(ONE_RUN_FILTER if is_sorted else RUN_FILTER)
    order = models.VariableSort.DISABLED if is_sorted else models.VariableSort.NATURAL_ASC
    variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(order)
    if not multiple:
        return variable.multi(False).include_all(False)
    variable.current(models.VariableOption(selected=True, text=["All"], value=["$__all"]))
    return variable.multi(True).include_all(True).all_value(".*" if name == "cluster" else ".+")
