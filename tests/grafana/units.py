"""Grafana's units that a panel may have for the quantity of its queries."""

from __future__ import annotations

import re
from math import isclose
from typing import TYPE_CHECKING, Any

from grafana.boards import panels
from grafana.promql import parsed, selectors
from grafana.quantity import QuantityError, measured

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grafana.boards import Board
    from grafana.quantity import Quantity

NUMBER = {"none", "short", "sishort", "locale", "sci", "string", "bool", "bool_yes_no", "bool_on_off"}
EVENTS = {"none", "short", "sishort", "cps", "ops", "wps", "rps", "reqps", "iops", "pps"}
FITTING: list[tuple[dict[str, int], float, set[str]]] = [
    ({"B": 1}, 1, {"bytes", "decbytes"}),
    ({"B": 1}, 8, {"bits", "decbits"}),
    ({"B": 1, "s": -1}, 1, {"Bps", "binBps"}),
    ({"B": 1, "s": -1}, 8, {"bps", "binbps"}),
    ({"°C": 1}, 1, {"celsius"}),
    ({"Hz": 1}, 1, {"hertz"}),
    ({"J": 1}, 1, {"joule"}),
    ({"J": 1}, 1 / 3600, {"watth"}),
    ({"J": 1}, 1 / 3.6e6, {"kwatth"}),
    ({"J": 1, "s": -1}, 1, {"watt"}),
    ({"J": 1, "s": -1}, 1 / 1000, {"kwatt"}),
    ({"moment": 1}, 1000, {"dateTimeAsIso", "dateTimeAsIsoNoDateIfToday", "dateTimeAsLocal", "dateTimeAsSystem"}),
    ({"moment": 1}, 1000, {"dateTimeFromNow", "dateTimeAsLocalNoDateIfToday"}),
    ({"s": 1}, 1, {"s", "dtdurations", "dthms", "dtdhms", "clocks"}),
    ({"s": 1}, 1000, {"ms", "dtdurationms"}),
    ({"s": 1}, 1 / 60, {"m"}),
    ({"s": 1}, 1 / 3600, {"h"}),
    ({"s": 1}, 1 / 86400, {"d"}),
    ({"s": -1}, 1, EVENTS),
    ({"s": -1}, 60, {"cpm", "opm", "rpm", "wpm"}),
    ({"J": -1}, 1, NUMBER),
    ({}, 1, NUMBER),
]
"""Dimensions, a scale and their units; Grafana's times are in milliseconds."""
SHARES = {1.0: {"percentunit"}, 100.0: {"percent"}}


def fitting(quantity: Quantity) -> set[str]:
    """Return the units of a quantity."""
    found: set[str] = set()
    if quantity.share:
        found |= next((units for scale, units in SHARES.items() if isclose(scale, quantity.scale)), set())
    if quantity.share == "part":
        return found
    if quantity.share == "time":
        found |= {"s"}
    if quantity.dimensions == {"s": -1}:
        found |= {"none", "short", "sishort"}  # events in whatever time
    for dimensions, scale, units in FITTING:
        if dimensions == quantity.dimensions and isclose(scale, quantity.scale):
            found |= units
    return found


def misfits(board: Board) -> Iterator[str]:
    """Yield each query of a dashboard whose unit does not fit its quantity."""
    for panel in panels(board):
        for target in panel.get("targets", ()):
            where = f"{board['uid']}: panel {panel['title']!r}, query {target['refId']}: "
            try:
                allowed = fitting(_quantity(panel, target))
            except QuantityError as error:
                yield f"{where}{error}: {target['expr']}"
                continue
            unit = unit_of(panel, target)
            if unit not in allowed:
                yield f"{where}the unit is {unit}, not {' or '.join(sorted(allowed)) or 'known here'}: {target['expr']}"


def unit_of(panel: Board, target: Board) -> str:
    """Return the unit of a query's values: the panel's, or that of an override."""
    config = panel.get("fieldConfig", {})
    unit = config.get("defaults", {}).get("unit", "")
    for override in config.get("overrides", ()):
        if _meant(override["matcher"], panel, target):
            unit = next((one["value"] for one in override["properties"] if one["id"] == "unit"), unit)
    return str(unit)


def _quantity(panel: Board, target: Board) -> Quantity:
    node = parsed(target["expr"])
    if panel["type"] == "heatmap":
        [bucket] = [one for one, _ in selectors(node)]
        return measured(parsed(bucket.name.removesuffix("_bucket") + "_sum"))
    return measured(node)


def _meant(matcher: dict[str, Any], panel: Board, target: Board) -> bool:
    """Return True if an override applies to the values of a query."""
    how, what = matcher["id"], matcher.get("options", "")
    if how == "byFrameRefID":
        return bool(what == target["refId"])
    if how == "byRegexp":
        return any(re.search(what.strip("/"), one) for one in _names(panel, target))
    return how == "byName" and what in _names(panel, target)


def _names(panel: Board, target: Board) -> set[str]:
    """Return the names of a query's values: its legend, or in a table its letter and new name."""
    values = {f"Value #{target['refId']}"} | ({"Value"} if len(panel["targets"]) == 1 else set())
    renamed = {
        new
        for one in panel.get("transformations", ())
        for old, new in one.get("options", {}).get("renameByName", {}).items()
        if old in values
    }
    return {target.get("legendFormat", "")} | (renamed or values)
