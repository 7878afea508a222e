"""Tables of several queries, each a column, with links and colours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from grafana.panels import Column, Level, Query, rows
from grafana_foundation_sdk.builders import common, dashboard
from grafana_foundation_sdk.models import dashboard as models

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grafana_foundation_sdk.builders import table


class Text(NamedTuple):
    """A column of what a label says.

    Attributes:
        title: What stands above it.
        label: The label.
        links: Where a click on it leads.
        expr: A query that has the label, where the values' have not.
    """

    title: str
    label: str
    links: Sequence[Any] = ()
    expr: str = ""


class Value(NamedTuple):
    """A column of a query's values.

    Attributes:
        title: What stands above it.
        expr: A query with the labels of the table, by which its rows are joined.
        unit: Of its values.
        levels: From which value on it has which colour.
        mappings: Of its values to texts and colours.
        decimals: Places behind the point.
    """

    title: str
    expr: str
    unit: str = "none"
    levels: Sequence[Level] = ()
    mappings: Sequence[Any] = ()
    decimals: int | None = None


def joined(
    title: str, description: str, texts: Sequence[Text], values: Sequence[Value], *, sort: str, **how: Any
) -> table.Panel:
    """A row for each set of labels: *texts* on the left, then *values*; the greatest of *sort* first; *how* as of `lines`."""
    queries = [Query(value.expr) for value in values] + [Query(text.expr) for text in texts if text.expr]
    names = ["Value"] if len(queries) == 1 else [f"Value #{chr(ord('A') + at)}" for at in range(len(values))]
    columns = [Column(text.label, text.title) for text in texts]
    columns += [
        Column(name, value.title, value.unit, value.mappings) for name, value in zip(names, values, strict=True)
    ]
    made = rows(title, description, *queries, columns=columns, **how)
    made.sort_by([common.TableSortByFieldState().display_name(sort).desc(True)]).filterable(True)
    for text in texts:
        if text.links:
            made.override_by_name(text.title, [_property("links", [one.build() for one in text.links])])
    for value in values:
        if value.levels:
            made.override_by_name(value.title, _colored(value.levels))
        if value.decimals is not None:
            made.override_by_name(value.title, [_property("decimals", value.decimals)])
    return made


def _colored(levels: Sequence[Level]) -> list[models.DynamicConfigValue]:
    steps = [models.Threshold(color=one.color, value=one.value) for one in levels]
    limits = dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
    return [_property("thresholds", limits.build()), _property("custom.cellOptions", {"type": "color-text"})]


def _property(name: str, value: object) -> models.DynamicConfigValue:
    return models.DynamicConfigValue(name, value)
