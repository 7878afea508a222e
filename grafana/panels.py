"""Panels of all dashboards: a title, a description, a unit, and queries with legends.

In a query, `CLUSTER` stands for the label of the cluster, and `{HERE}`, `{RUN}`, `{RANK}` and `{GPU}` stand for the matchers of the dashboard's variables, and further matchers
may follow: ``trackside_gpu_up{GPU}``, ``trackside_training_phase_seconds_total{RANK, phase="data"}``.
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

from trackside_daemon.alerts.rules.query import Targets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
"""The Prometheus that the viewer selects."""

TARGETS = Targets(clusters=("CLUSTER",))
HERE = 'CLUSTER=~"$cluster", job=~"$job", instance=~"$instance"'
# Backticks are the safest quotes for names: Grafana does not escape "$run" as a pattern when one run is selected and leaves double
# quotes in it, and the backslashes of "${run:regex}" are invalid in PromQL. Only ` itself remains, see board.RUN_FILTER.
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
        legend: The name of a series; ``{{label}}`` is a label's value.
        instant: Query only the newest value of each series.
    """

    expr: str
    legend: str = ""
    instant: bool = False


class Level(NamedTuple):
    """A color and the value from which it applies; without a value it applies from the lowest value on."""

    color: str
    value: float | None = None


ZERO_IF_UP = "0 * max(trackside_build_info{HERE})"
"""Follows ``or``: 0 where daemons run, and nothing where none do, so that missing data does not look healthy."""

OK = Level("green")
PLAIN = Level("text")
"""The color of a number that is neither good nor bad."""


def above(value: float, color: str = "orange") -> list[Level]:
    """Return levels that are green below *value* and *color* from it on."""
    return [OK, Level(color, value)]


def below(value: float, color: str = "orange") -> list[Level]:
    """Return levels that are *color* below *value* and green from it on."""
    return [Level(color), Level("green", value)]


def expand(expr: str) -> str:
    """Return a query with its tokens replaced by the matchers."""
    return re.sub(r"\{(HERE|RUN|RANK|GPU)\b", lambda match: "{" + _MATCHERS[match[1]], " ".join(expr.split()))


def of_sites(expr: str) -> str:
    """Return an expanded query in which machines and runs of equal names in two clusters or namespaces stay two."""
    named = r"\b(on|by) \((?!CLUSTER)([^)]*\b(?:instance|run)\b)"
    return re.sub(named, lambda found: f"{found[1]} ({TARGETS.of_site(found[2])}", expand(expr))


def value_texts(meanings: Mapping[int, tuple[str, str]]) -> list[Any]:
    """Return mappings of values to a text and a color."""
    return [
        models.ValueMap(
            {
                str(value): models.ValueMappingResult(text=text, color=color, index=index)
                for index, (value, (text, color)) in enumerate(meanings.items())
            }
        )
    ]


def lines(title: str, description: str, unit: str, *queries: Query, **how: Any) -> timeseries.Panel:
    """Return a panel of lines over time.

    Keywords:
        levels: Thresholds, drawn as dashed lines.
        stacked: Stack the lines.
        colors: Colors by the legend of a line, where they have a meaning.
        log: Use a logarithmic axis.
        minimum, maximum: The ends of the axis.
        decimals: Decimal places.
        empty: Text when there is no value.
        width, height: Size in Grafana's grid of 24 columns.
        links: `DashboardLink`s of a line.
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
    for name, color in how.pop("colors", {}).items():
        panel.override_by_name(name, [models.DynamicConfigValue("color", _fixed(color))])
    if how.pop("stacked", False):
        panel.stacking(common.StackingConfig().mode(kinds.StackingMode.NORMAL)).fill_opacity(40)
    if how.pop("log", False):
        panel.scale_distribution(common.ScaleDistributionConfig().type(kinds.ScaleDistribution.LOG).log(10))
    if how.get("levels"):
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(kinds.GraphThresholdsStyleMode.DASHED))
    return _configure(panel, title, description, unit, queries, **how)


def spread(title: str, description: str, unit: str, expr: str, legend: str, **how: Any) -> timeseries.Panel:
    """Return a panel for a value of many ranks or GPUs: a band from lowest to highest, the median, and lines if few.

    Args:
        title: Title of the panel.
        description: Description of the panel.
        unit: Unit of the value.
        expr: A query with one series per rank or GPU.
        legend: Legend of a single line.
        how: Keywords of `lines`; links apply to the single lines.
    """
    links = [link.build() for link in how.pop("links", [])]
    panel = lines(
        title,
        description,
        unit,
        Query(f"min({expr})", LOWEST),
        Query(f"max({expr})", HIGHEST),
        Query(f"quantile(0.5, {expr})", MEDIAN),
        Query(f"({expr}) and on () (count({expr}) <= {MAX_LINES})", legend),
        **how,
    )
    middle = [models.DynamicConfigValue("custom.lineWidth", 2), models.DynamicConfigValue("color", _fixed("text"))]
    unfilled = models.DynamicConfigValue("custom.fillOpacity", 0)
    single = [unfilled, *([models.DynamicConfigValue("links", links)] if links else [])]
    return band(panel).override_by_name(MEDIAN, [*middle, unfilled]).override_by_query("D", single)


def band(panel: timeseries.Panel) -> timeseries.Panel:
    """Fill the area between the series `LOWEST` and `HIGHEST`."""
    edge = [models.DynamicConfigValue("custom.lineWidth", 0), models.DynamicConfigValue("color", _fixed(EDGES))]
    unfilled = models.DynamicConfigValue("custom.fillOpacity", 0)
    filled = [
        models.DynamicConfigValue("custom.fillBelowTo", LOWEST),
        models.DynamicConfigValue("custom.fillOpacity", 15),
    ]
    return panel.override_by_name(LOWEST, [*edge, unfilled]).override_by_name(HIGHEST, [*edge, *filled])


EDGES = "#8e8e8e"
"""A color that the palette does not use for lines."""

LOWEST, MEDIAN, HIGHEST = "lowest", "median", "highest"
MAX_LINES = 32
"""More lines cannot be told apart."""


def number(title: str, description: str, unit: str, *queries: Query, **how: Any) -> stat.Panel:
    """Return a panel with one large number per series; keywords of `lines`, and *mappings* of values to texts."""
    panel = stat.Panel().graph_mode(kinds.BigValueGraphMode.NONE).color_mode(kinds.BigValueColorMode.VALUE)
    panel.color_scheme(_colors(models.FieldColorModeId.THRESHOLDS)).orientation(kinds.VizOrientation.AUTO)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    if (mappings := how.pop("mappings", None)) is not None:
        panel.mappings(mappings)
    return _configure(panel, title, description, unit, queries, **{"width": 4, "height": 4, "levels": [PLAIN]} | how)


def bars(title: str, description: str, unit: str, *queries: Query, **how: Any) -> bargauge.Panel:
    """Return a panel with one bar per series; keywords of `lines`."""
    panel = (
        bargauge.Panel().orientation(kinds.VizOrientation.HORIZONTAL).display_mode(kinds.BarGaugeDisplayMode.GRADIENT)
    )
    panel.color_scheme(_colors(models.FieldColorModeId.THRESHOLDS))
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    return _configure(panel, title, description, unit, queries, **how)


def states(
    title: str, description: str, *queries: Query, mappings: Sequence[Any] = (), **how: Any
) -> statetimeline.Panel:
    """Return a timeline with one row per series; *mappings* map values to texts and colors."""
    panel = statetimeline.Panel().mappings(list(mappings)).show_value(kinds.VisibilityMode.NEVER).merge_values(True)
    panel.color_scheme(_colors(models.FieldColorModeId.THRESHOLDS)).fill_opacity(80).line_width(0).per_page(MAX_LINES)
    panel.legend(
        common.VizLegendOptions()
        .display_mode(kinds.LegendDisplayMode.LIST)
        .placement(kinds.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    return _configure(panel, title, description, "none", queries, **how)


def heat(title: str, description: str, unit: str, query: Query, **how: Any) -> heatmap.Panel:
    """Return a heatmap of a classic histogram; *query* is the rate of its buckets, summed by ``le``."""
    panel = heatmap.Panel().calculate(False).y_axis(heatmap.YAxisConfig().unit(unit))
    panel.color(heatmap.HeatmapColorOptions().mode(heats.HeatmapColorMode.SCHEME).scheme("Turbo").steps(64))
    _configure(panel, title, description, unit, [query], **how)
    panel.targets([_target(query, "A", prometheus_models.PromQueryFormat.HEATMAP)])
    return panel


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        source: A label, or ``Value`` of the only query, or ``Value #A`` of the first.
        title: Heading of the column.
        unit: Unit of its values.
        mappings: Texts and colors of its values.
    """

    source: str
    title: str
    unit: str = ""
    mappings: Sequence[Any] = ()


def rows(title: str, description: str, *queries: Query, columns: Sequence[Column] = (), **how: Any) -> table.Panel:
    """Return a table of the newest values: one row per set of labels, in the order of *columns*; keywords of `lines`."""
    panel = table.Panel().show_header(True)
    _configure(panel, title, description, how.pop("unit", "none"), queries, **how)
    panel.targets(
        [
            _target(query._replace(instant=True), letter, prometheus_models.PromQueryFormat.TABLE)
            for query, letter in zip(queries, _LETTERS, strict=False)
        ]
    )
    sources = [*(column.source for column in columns), *TARGETS.sites]
    added = ("Time", "Value", *(f"Value #{letter}" for letter in _LETTERS[: len(queries)]))
    order = {
        "excludeByName": {name: True for name in added if name not in sources},
        "indexByName": {source: index for index, source in enumerate(sources)},
        "renameByName": {column.source: column.title for column in columns},
    }
    panel.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(models.DataTransformerConfig(id_val="organize", options=order))
    for column in columns:
        if column.unit:
            panel.override_by_name(column.title, [models.DynamicConfigValue("unit", column.unit)])
        if column.mappings:
            panel.override_by_name(column.title, _mapped(column.mappings))
    return panel


def _mapped(mappings: Sequence[Any]) -> list[models.DynamicConfigValue]:
    colored = models.DynamicConfigValue("custom.cellOptions", {"type": "color-text"})
    return [models.DynamicConfigValue("mappings", list(mappings)), colored]


def link(title: str, uid: str, *kept: str, **variables: str) -> dashboard.DashboardLink:
    """Return a link to another dashboard with the same time range.

    Args:
        title: Text of the link.
        uid: Identifier of the other dashboard.
        kept: Variables passed on unchanged, such as ``run``; data source, cluster and job always are.
        variables: Variables passed with another value, such as ``rank="${__field.labels.rank:percentencode}"``.
    """
    parameters = "".join(f"&${{{name}:queryparam}}" for name in kept)
    parameters += "".join(f"&var-{name}={value}" for name, value in variables.items())
    url = f"/d/{uid}?${{__url_time_range}}&${{datasource:queryparam}}&${{cluster:queryparam}}&${{job:queryparam}}{parameters}"
    return dashboard.DashboardLink(title).url(url).type(models.DashboardLinkType.LINK)


def _configure(panel: Any, title: str, description: str, unit: str, queries: Sequence[Query], **how: Any) -> Any:
    panel.title(title).description(description).unit(unit).datasource(SOURCE)
    panel.span(how.pop("width", 12)).height(how.pop("height", 8))
    panel.targets([_target(query, letter) for query, letter in zip(queries, _LETTERS, strict=False)])
    if (minimum := how.pop("minimum", None)) is not None:
        panel.min(minimum)
    if (maximum := how.pop("maximum", None)) is not None:
        panel.max(maximum)
    if (empty := how.pop("empty", None)) is not None:
        panel.no_value(empty)
    if (decimals := how.pop("decimals", None)) is not None:
        panel.decimals(decimals)
    levels = how.pop("levels", None)
    steps = [models.Threshold(color=level.color, value=level.value) for level in levels or [OK]]
    panel.thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    panel.data_links(how.pop("links", []))
    if how:
        raise TypeError(f"{title}: unknown keyword: {', '.join(how)}")
    return panel


def _colors(mode: models.FieldColorModeId) -> dashboard.FieldColor:
    return dashboard.FieldColor().mode(mode)


def _fixed(color: str) -> dict[str, str]:
    return {"mode": "fixed", "fixedColor": color}


def _target(
    query: Query, letter: str, form: Any = prometheus_models.PromQueryFormat.TIME_SERIES
) -> prometheus.Dataquery:
    target = (
        prometheus.Dataquery().datasource(SOURCE).expr(of_sites(query.expr)).legend_format(query.legend).ref_id(letter)
    )
    target.format(form)
    return target.instant() if query.instant else target.range()
