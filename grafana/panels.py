"""Panels as all dashboards here have them: a title, a description, a unit, and queries with legends.

In a query `{HERE}`, `{RUN}`, `{RANK}` and `{GPU}` stand for the matchers of the dashboard's variables, and further matchers may
follow: ``trackside_gpu_up{GPU}``, ``trackside_training_phase_seconds_total{RANK, phase="data"}``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heats
from grafana_foundation_sdk.models import prometheus as prometheus_models

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
"""Whatever Prometheus the viewer chooses."""

HERE = 'job=~"$job", instance=~"$instance"'
# Quotes of this kind are the best there are for names: "$run" is not escaped as a pattern where one run is chosen, and Grafana
# leaves double quotes in it as they are; "${run:regex}" has backslashes that PromQL refuses. Only ` is left, see board.SAFE.
_MATCHERS = {
    "HERE": HERE,
    "RUN": f"{HERE}, run=~`${{run:regex}}`",
    "RANK": f'{HERE}, run=~`${{run:regex}}`, rank=~"$rank"',
    "GPU": f'{HERE}, gpu=~"$gpu"',
}
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Query(NamedTuple):
    """A query of a panel.

    Attributes:
        expr: PromQL, with the tokens of this module.
        legend: What a series is called; ``{{label}}`` is its value.
        instant: Only the newest value of each series.
    """

    expr: str
    legend: str = ""
    instant: bool = False


class Level(NamedTuple):
    """From which value on a panel has which colour; without a value from the lowest on."""

    color: str
    value: float | None = None


NONE = "0 * max(trackside_build_info{HERE})"
"""Behind ``or``: 0 where there are daemons, and nothing where there are none, so that what nobody looks at is not well."""

CALM = Level("green")
PLAIN = Level("text")
"""Of a number that is neither good nor bad."""


def above(value: float, color: str = "orange") -> list[Level]:
    """Well until *value*, and not beyond it."""
    return [CALM, Level(color, value)]


def below(value: float, color: str = "orange") -> list[Level]:
    """Well from *value* on."""
    return [Level(color), Level("green", value)]


def expand(expr: str) -> str:
    """A query with the matchers in place of their tokens."""
    return re.sub(r"\{(HERE|RUN|RANK|GPU)\b", lambda found: "{" + _MATCHERS[found[1]], " ".join(expr.split()))


def texts(meanings: Mapping[int, tuple[str, str]]) -> list[Any]:
    """Mappings of values to a text and a colour."""
    return [
        models.ValueMap(
            {
                str(value): models.ValueMappingResult(text=text, color=color, index=index)
                for index, (value, (text, color)) in enumerate(meanings.items())
            }
        )
    ]


def lines(title: str, description: str, unit: str, *queries: Query, **how: Any) -> timeseries.Panel:
    """Lines over time.

    Keywords:
        levels: Thresholds, drawn as dashed lines.
        stacked: One upon the other.
        log: A logarithmic axis.
        least, most: Of the axis.
        decimals: Places behind the point.
        empty: What is said when there is no value.
        width, height: In Grafana's grid of 24 columns.
        links: `DashboardLink`s that a click on a line offers.
    """
    panel = timeseries.Panel().fill_opacity(8).line_width(1).show_points(kinds.VisibilityMode.NEVER).span_nulls(False)
    panel.legend(
        common.VizLegendOptions()
        .display_mode(kinds.LegendDisplayMode.LIST)
        .placement(kinds.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    panel.tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI).sort(kinds.SortOrder.DESCENDING))
    panel.color_scheme(_colors(models.FieldColorModeId.PALETTE_CLASSIC))
    if how.pop("stacked", False):
        panel.stacking(common.StackingConfig().mode(kinds.StackingMode.NORMAL)).fill_opacity(40)
    if how.pop("log", False):
        panel.scale_distribution(common.ScaleDistributionConfig().type(kinds.ScaleDistribution.LOG).log(10))
    if how.get("levels"):
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(kinds.GraphThresholdsStyleMode.DASHED))
    return _dress(panel, title, description, unit, queries, **how)


def spread(title: str, description: str, unit: str, expr: str, legend: str, **how: Any) -> timeseries.Panel:
    """A value of many ranks or GPUs: a band from the lowest to the highest, the median, and single lines while few are chosen.

    Args:
        title: Of the panel.
        description: Of the panel.
        unit: Of the value.
        expr: One series for each of them.
        legend: Of a single line.
        how: As of `lines`; links are of the single lines.
    """
    links = [one.build() for one in how.pop("links", [])]
    panel = lines(
        title,
        description,
        unit,
        Query(f"min({expr})", LOWEST),
        Query(f"max({expr})", HIGHEST),
        Query(f"quantile(0.5, {expr})", MEDIAN),
        Query(f"({expr}) and on () (count({expr}) <= {MOST_LINES})", legend),
        **how,
    )
    middle = [models.DynamicConfigValue("custom.lineWidth", 2), models.DynamicConfigValue("color", _fixed("text"))]
    unfilled = models.DynamicConfigValue("custom.fillOpacity", 0)
    single = [unfilled, *([models.DynamicConfigValue("links", links)] if links else [])]
    return band(panel).override_by_name(MEDIAN, [*middle, unfilled]).override_by_query("D", single)


def band(panel: timeseries.Panel) -> timeseries.Panel:
    """Fill what is between the series `LOWEST` and `HIGHEST`."""
    edge = [models.DynamicConfigValue("custom.lineWidth", 0), models.DynamicConfigValue("color", _fixed(EDGES))]
    unfilled = models.DynamicConfigValue("custom.fillOpacity", 0)
    filled = [
        models.DynamicConfigValue("custom.fillBelowTo", LOWEST),
        models.DynamicConfigValue("custom.fillOpacity", 15),
    ]
    return panel.override_by_name(LOWEST, [*edge, unfilled]).override_by_name(HIGHEST, [*edge, *filled])


EDGES = "#8e8e8e"
"""No line of the palette has this colour."""

LOWEST, MEDIAN, HIGHEST = "lowest", "median", "highest"
MOST_LINES = 32
"""More lines than these nobody can tell apart."""


def number(title: str, description: str, unit: str, *queries: Query, **how: Any) -> stat.Panel:
    """One large number a series; keywords as of `lines`, and *mappings* of values to texts."""
    panel = stat.Panel().graph_mode(kinds.BigValueGraphMode.NONE).color_mode(kinds.BigValueColorMode.VALUE)
    panel.color_scheme(_colors(models.FieldColorModeId.THRESHOLDS)).orientation(kinds.VizOrientation.AUTO)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    if (mappings := how.pop("mappings", None)) is not None:
        panel.mappings(mappings)
    return _dress(panel, title, description, unit, queries, **{"width": 4, "height": 4, "levels": [PLAIN]} | how)


def bars(title: str, description: str, unit: str, *queries: Query, **how: Any) -> bargauge.Panel:
    """A bar a series; keywords as of `lines`."""
    panel = (
        bargauge.Panel().orientation(kinds.VizOrientation.HORIZONTAL).display_mode(kinds.BarGaugeDisplayMode.GRADIENT)
    )
    panel.color_scheme(_colors(models.FieldColorModeId.THRESHOLDS))
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    return _dress(panel, title, description, unit, queries, **how)


def states(
    title: str, description: str, *queries: Query, mappings: Sequence[Any] = (), **how: Any
) -> statetimeline.Panel:
    """What was so when, a row a series; *mappings* of values to texts and colours."""
    panel = statetimeline.Panel().mappings(list(mappings)).show_value(kinds.VisibilityMode.NEVER).merge_values(True)
    panel.color_scheme(_colors(models.FieldColorModeId.THRESHOLDS)).fill_opacity(80).line_width(0).per_page(MOST_LINES)
    panel.legend(
        common.VizLegendOptions()
        .display_mode(kinds.LegendDisplayMode.LIST)
        .placement(kinds.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    return _dress(panel, title, description, "none", queries, **how)


def heat(title: str, description: str, unit: str, query: Query, **how: Any) -> heatmap.Panel:
    """A classic histogram over time: *query* is the rate of its buckets, summed by ``le``."""
    panel = heatmap.Panel().calculate(False).y_axis(heatmap.YAxisConfig().unit(unit))
    panel.color(heatmap.HeatmapColorOptions().mode(heats.HeatmapColorMode.SCHEME).scheme("Turbo").steps(64))
    _dress(panel, title, description, unit, [query], **how)
    panel.targets([_target(query, "A", prometheus_models.PromQueryFormat.HEATMAP)])
    return panel


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        source: A label, or ``Value`` of the only query, or ``Value #A`` of the first.
        title: What stands above it.
        unit: Of its values.
        mappings: Of its values to texts and colours.
    """

    source: str
    title: str
    unit: str = ""
    mappings: Sequence[Any] = ()


def rows(title: str, description: str, *queries: Query, columns: Sequence[Column] = (), **how: Any) -> table.Panel:
    """A table of the newest values: a row for each set of labels, in the order of *columns*; keywords as of `lines`."""
    panel = table.Panel().show_header(True)
    _dress(panel, title, description, how.pop("unit", "none"), queries, **how)
    panel.targets(
        [
            _target(one._replace(instant=True), letter, prometheus_models.PromQueryFormat.TABLE)
            for one, letter in zip(queries, _LETTERS, strict=False)
        ]
    )
    sources = [one.source for one in columns]
    added = ("Time", "Value", *(f"Value #{letter}" for letter in _LETTERS[: len(queries)]))
    order = {
        "excludeByName": {name: True for name in added if name not in sources},
        "indexByName": {source: index for index, source in enumerate(sources)},
        "renameByName": {one.source: one.title for one in columns},
    }
    panel.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(models.DataTransformerConfig(id_val="organize", options=order))
    for one in columns:
        if one.unit:
            panel.override_by_name(one.title, [models.DynamicConfigValue("unit", one.unit)])
        if one.mappings:
            panel.override_by_name(one.title, _mapped(one.mappings))
    return panel


def _mapped(mappings: Sequence[Any]) -> list[models.DynamicConfigValue]:
    colored = models.DynamicConfigValue("custom.cellOptions", {"type": "color-text"})
    return [models.DynamicConfigValue("mappings", list(mappings)), colored]


def link(title: str, uid: str, *kept: str, **variables: str) -> dashboard.DashboardLink:
    """To another dashboard, with the time that is shown.

    Args:
        title: What it says.
        uid: Of the other dashboard.
        kept: Variables that it is given as they are here, such as ``run``; data source and job always are.
        variables: Those that it is given otherwise, such as ``rank="${__field.labels.rank:percentencode}"``.
    """
    given = "".join(f"&${{{name}:queryparam}}" for name in kept)
    given += "".join(f"&var-{name}={value}" for name, value in variables.items())
    url = f"/d/{uid}?${{__url_time_range}}&${{datasource:queryparam}}&${{job:queryparam}}{given}"
    return dashboard.DashboardLink(title).url(url).type(models.DashboardLinkType.LINK)


def _dress(panel: Any, title: str, description: str, unit: str, queries: Sequence[Query], **how: Any) -> Any:
    panel.title(title).description(description).unit(unit).datasource(SOURCE)
    panel.span(how.pop("width", 12)).height(how.pop("height", 8))
    panel.targets([_target(one, letter) for one, letter in zip(queries, _LETTERS, strict=False)])
    if (least := how.pop("least", None)) is not None:
        panel.min(least)
    if (most := how.pop("most", None)) is not None:
        panel.max(most)
    if (empty := how.pop("empty", None)) is not None:
        panel.no_value(empty)
    if (decimals := how.pop("decimals", None)) is not None:
        panel.decimals(decimals)
    levels = how.pop("levels", None)
    steps = [models.Threshold(color=one.color, value=one.value) for one in levels or [CALM]]
    panel.thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    panel.data_links(how.pop("links", []))
    if how:
        raise TypeError(f"{title}: no such keyword: {', '.join(how)}")
    return panel


def _colors(mode: models.FieldColorModeId) -> dashboard.FieldColor:
    return dashboard.FieldColor().mode(mode)


def _fixed(color: str) -> dict[str, str]:
    return {"mode": "fixed", "fixedColor": color}


def _target(
    query: Query, letter: str, form: Any = prometheus_models.PromQueryFormat.TIME_SERIES
) -> prometheus.Dataquery:
    target = (
        prometheus.Dataquery().datasource(SOURCE).expr(expand(query.expr)).legend_format(query.legend).ref_id(letter)
    )
    target.format(form)
    return target.instant() if query.instant else target.range()
