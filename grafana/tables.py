"""Tables with one query per column, with links and colors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from grafana.panels import Column, Level, Query, rows
from grafana_foundation_sdk.builders import common, dashboard
from grafana_foundation_sdk.models import dashboard as models

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grafana_foundation_sdk.builders import table


class Text(NamedTuple):
    """A column with the value of a label.

    Attributes:
        title: Heading of the column.
        label: The label.
        links: Links of its cells.
        expr: A query that has the label, if those of the values do not.
    """

    title: str
    label: str
    links: Sequence[Any] = ()
    expr: str = ""


class Value(NamedTuple):
    """A column with the values of a query.

    Attributes:
        title: Heading of the column.
        expr: A query whose labels are those of the table; rows are joined by them.
        unit: Unit of its values.
        levels: Colors by value.
        mappings: Texts and colors of its values.
        decimals: Decimal places.
    """

    title: str
    expr: str
    unit: str = "none"
    levels: Sequence[Level] = ()
    mappings: Sequence[Any] = ()
    decimals: int | None = None


def joined_table(
    title: str, description: str, texts: Sequence[Text], values: Sequence[Value], *, sort: str, **how: Any
) -> table.Panel:
    """Return a table with one row per set of labels, *texts* in front of *values*, sorted by *sort* in descending order."""
    queries = [Query(value.expr) for value in values] + [Query(text.expr) for text in texts if text.expr]
    names = ["Value"] if len(queries) == 1 else [f"Value #{chr(ord('A') + index)}" for index in range(len(values))]
    columns = [Column(text.label, text.title) for text in texts]
    columns += [
        Column(name, value.title, value.unit, value.mappings) for name, value in zip(names, values, strict=True)
    ]
    panel = rows(title, description, *queries, columns=columns, **how)
    panel.sort_by([common.TableSortByFieldState().display_name(sort).desc(True)]).filterable(True)
    for text in texts:
        if text.links:
            panel.override_by_name(text.title, [_property("links", [link.build() for link in text.links])])
    for value in values:
        if value.levels:
            panel.override_by_name(value.title, _colored(value.levels))
        if value.decimals is not None:
            panel.override_by_name(value.title, [_property("decimals", value.decimals)])
    return panel


def _colored(levels: Sequence[Level]) -> list[models.DynamicConfigValue]:
    steps = [models.Threshold(color=level.color, value=level.value) for level in levels]
    limits = dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
    return [_property("thresholds", limits.build()), _property("custom.cellOptions", {"type": "color-text"})]


def _property(name: str, value: object) -> models.DynamicConfigValue:
    return models.DynamicConfigValue(name, value)
