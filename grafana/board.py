"""A dashboard: its variables, its links to the others, and its rows of panels."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from grafana.panels import SOURCE, expand
from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

TAG = "trackside"

VARIABLES = {
    "job": ("Job", "label_values(trackside_build_info, job)"),
    "instance": ("Instance", 'label_values(trackside_build_info{job=~"$job"}, instance)'),
    "run": ("Run", "label_values(trackside_training_run_info{HERE}, run)"),
    "rank": ("Rank", "label_values(trackside_training_rank_state{RUN}, rank)"),
    "gpu": ("GPU", "label_values(trackside_gpu_info{HERE}, gpu)"),
}
"""Label and query of each variable that a dashboard may have, in the order in which they depend on each other."""

SAFE = "/^[^`]*$/"
"""Runs that can be chosen: no format of Grafana escapes what ends the quotes of `RUN`, and one name would break each panel."""


class Row:
    """A heading and the panels below it, which are hidden until it is clicked when it is *collapsed*."""

    def __init__(self, title: str, *panels: Any, collapsed: bool = False) -> None:
        self.title = title
        self.panels = panels
        self.collapsed = collapsed


def marks(name: str, expr: str, title: str, text: str, color: str, *, tags: str = "", moments: bool = False) -> Any:
    """What is marked on all charts: the time in which *expr* is above 0.

    Args:
        name: Of the switch above the charts.
        expr: PromQL, with the tokens of `grafana.panels`.
        title: Of a mark; ``{{label}}`` is a label's value.
        text: Below it.
        color: Of the line.
        tags: Labels that are shown as tags, with commas between them.
        moments: The value is the time, in Unix milliseconds.
    """
    made = dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(color)
    made.expr(expand(expr)).title_format(title).text_format(text).tag_keys(tags)
    return made.use_value_for_time(True) if moments else made


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
    """A dashboard as JSON, of the classic schema.

    Args:
        uid: By which links know it; never to be changed.
        title: Without the project's name.
        description: What it answers.
        rows: From above.
        variables: Of `VARIABLES`, beside ``datasource``, ``job`` and ``instance``, which each has.
        single: Those of them that have one value at a time.
        annotations: `marks` on all charts.
        refresh: How often it is asked anew.
    """
    made = dashboard.Dashboard(f"Trackside / {title}").uid(uid).description(description).tags([TAG])
    made.time("now-1h", "now").refresh(refresh).readonly().tooltip(models.DashboardCursorSync.CROSSHAIR)
    made.link(
        dashboard.DashboardLink("Trackside")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .include_vars(True)
        .keep_time(True)
    )
    made.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    for name in ("job", "instance", *variables):
        made.with_variable(_variable(name, many=name not in single))
    for one in annotations:
        made.annotation(one)
    for row in rows:
        _lay(made, row)
    whole = json.loads(JSONEncoder(sort_keys=True).encode(made.build()), object_hook=_in_sight)
    for number, panel in enumerate(_every(whole["panels"]), 1):
        panel["id"] = number
    return json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _lay(made: dashboard.Dashboard, row: Row) -> None:
    heading = dashboard.Row(row.title).collapsed(row.collapsed)
    for panel in row.panels if row.collapsed else ():
        heading.with_panel(panel)
    made.with_row(heading)
    for panel in () if row.collapsed else row.panels:
        made.with_panel(panel)


def _in_sight(value: dict[str, Any]) -> dict[str, Any]:
    """Without what the SDK adds by itself: it would put links and switches of marks into a menu."""
    return {name: one for name, one in value.items() if (name, one) != ("placement", "inControlsMenu")}


def _every(panels: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in panels:
        yield panel
        yield from _every(panel.get("panels", ()))


def _variable(name: str, *, many: bool) -> dashboard.QueryVariable:
    label, query = VARIABLES[name]
    made = dashboard.QueryVariable(name).label(label).datasource(SOURCE).query(expand(query))
    if name == "run":
        made.regex(SAFE)
    made.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(models.VariableSort.NATURAL_ASC)
    if not many:
        return made.multi(False).include_all(False)
    made.current(models.VariableOption(selected=True, text=["All"], value=["$__all"]))
    return made.multi(True).include_all(True).all_value(".+")
