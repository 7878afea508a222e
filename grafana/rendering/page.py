"""A dashboard as an HTML page that resembles Grafana."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from grafana.rendering.charts import chart, heatmap, timeline
from grafana.rendering.style import format_value, mapped_text, overrides_of, series_styles, threshold_color

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grafana.rendering.queries import Board, DashboardQueries, Line

COLUMN, ROW, GAP, WIDTH = 64.0, 34.0, 8, 24
STYLE = """
body { margin: 0; padding: 12px; background: #111217; color: #ccccdc; font: 12px Inter, "DejaVu Sans", sans-serif; width: 1536px; }
h1 { font-size: 17px; margin: 2px 4px 10px; font-weight: 500; }
h1 small { color: #8e909b; font-size: 12px; margin-left: 14px; font-weight: 400; }
h1 b { color: #6e9fff; font-weight: 500; margin-left: 4px; }
#board { position: relative; }
.panel { position: absolute; background: #181b1f; border: 1px solid #24262d; border-radius: 3px; box-sizing: border-box; overflow: hidden; }
.panel > header { padding: 7px 9px 3px; font-weight: 500; font-size: 12.5px; white-space: nowrap; }
.row { position: absolute; font-weight: 500; font-size: 14px; padding: 6px 4px; box-sizing: border-box; }
svg text { fill: #9a9ca8; font-size: 10.5px; }
svg .grid { stroke: #ccccdc; opacity: .08; }
.legend { height: 22px; padding: 0 10px; font-size: 11px; white-space: nowrap; overflow: hidden; }
.legend span { margin-right: 13px; } .legend i { display: inline-block; width: 14px; height: 3px; margin: 0 5px 3px 0; border-radius: 2px; }
.stats { display: flex; height: calc(100% - 28px); align-items: center; justify-content: space-around; text-align: center; }
.stats div { font-size: 27px; font-weight: 500; } .stats small { display: block; font-size: 11px; color: #9a9ca8; font-weight: 400; }
table { border-collapse: collapse; width: 100%; font-size: 11.5px; } td, th { text-align: left; padding: 4px 9px; border-top: 1px solid #24262d; white-space: nowrap; }
th { color: #6e9fff; font-weight: 500; } .bars { padding: 4px 10px; } .bars div { display: flex; align-items: center; margin: 5px 0; }
.bars label { width: 42%; overflow: hidden; white-space: nowrap; text-overflow: ellipsis; } .bars i { flex: 1; background: #22252b; height: 13px; } .bars i b { display: block; height: 13px; }
.bars u { width: 70px; text-align: right; text-decoration: none; } .none { padding: 24px; text-align: center; color: #8e909b; }
"""


def page(board: Board, results: DashboardQueries) -> str:
    """Return the page of a dashboard with all rows expanded."""
    subtitle = f"<small>run<b>{escape(run)}</b></small>" if (run := results.values.get("run", ".+")) != ".+" else ""
    panels = list(_positions(board))
    height = max(top + panel["gridPos"]["h"] for panel, top in panels) * ROW
    body = "".join(_panel(panel, top, results) for panel, top in panels)
    return (
        f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style><h1>{escape(board["title"])}{subtitle}</h1>'
        f'<div id="board" style="height:{height}px">{body}</div>'
    )


def _positions(board: Board) -> Iterator[tuple[Board, int]]:
    """Yield the panels and their vertical position in the grid."""
    rows: list[list[Board]] = []
    for panel in board["panels"]:
        if panel["type"] == "row":
            rows.append([])
        rows[-1] += [panel, *panel.get("panels", [])]
    top = 0
    for row in rows:
        first = row[0]["gridPos"]["y"]
        yield from ((panel, top + panel["gridPos"]["y"] - first) for panel in row)
        top += max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in row) - first


def _panel(panel: Board, top: int, results: DashboardQueries) -> str:
    position = panel["gridPos"]
    width, height = position["w"] * COLUMN - GAP, position["h"] * ROW - GAP
    style = f"left:{position['x'] * COLUMN}px;top:{top * ROW}px;width:{width}px;height:{height}px"
    if panel["type"] == "row":
        return f'<div class="row" style="{style}">▾ {escape(panel["title"])}</div>'
    inside = "".join(_content(panel, results, width - 2, height - 30))
    return f'<section class="panel" style="{style}"><header>{escape(results.text(panel["title"]))}</header>{inside}</section>'


def _content(panel: Board, results: DashboardQueries, width: float, height: float) -> Iterator[str]:
    lines = results.lines(panel)
    if not lines:
        yield f'<div class="none">{escape(panel["fieldConfig"]["defaults"].get("noValue") or "No data")}</div>'
    elif panel["type"] in ("timeseries", "heatmap", "state-timeline"):
        draw = {"timeseries": chart, "heatmap": heatmap, "state-timeline": timeline}[panel["type"]]
        yield draw(panel, results, lines, width, height)
    elif panel["type"] == "stat":
        yield _stats(panel, lines)
    elif panel["type"] == "bargauge":
        yield _bars(panel, lines)
    else:
        yield _table(panel, lines)


def _stats(panel: Board, lines: list[Line]) -> str:
    cells = []
    for line, style in zip(lines, series_styles(panel, lines), strict=True):
        value = line.points[-1][1]
        mapped = mapped_text(value, style.mappings)
        text, shade = mapped or (
            format_value(value, style.unit, panel["fieldConfig"]["defaults"].get("decimals")),
            threshold_color(value, panel),
        )
        name = f"<small>{escape(line.name)}</small>" if line.name and len(lines) > 1 else ""
        cells.append(f'<div style="color:{shade}">{name}{escape(text)}</div>')
    return f'<div class="stats">{"".join(cells)}</div>'


def _bars(panel: Board, lines: list[Line]) -> str:
    values = [line.points[-1][1] for line in lines]
    maximum = panel["fieldConfig"]["defaults"].get("max") or max(values) or 1
    rows = [
        f'<div><label>{escape(line.name)}</label><i><b style="width:{min(100, 100 * value / maximum):.0f}%;background:{threshold_color(value, panel)}"></b></i>'
        f"<u>{format_value(value, style.unit)}</u></div>"
        for line, style, value in zip(lines, series_styles(panel, lines), values, strict=True)
    ]
    return f'<div class="bars">{"".join(rows)}</div>'


def _table(panel: Board, lines: list[Line]) -> str:
    """Return a table; rows with equal labels are merged and columns organized, as by Grafana's transformations."""
    multiple = len(panel["targets"]) > 1
    merged: list[dict[str, Any]] = []
    for line in lines:
        value = {f"Value #{line.query}" if multiple else "Value": line.points[-1][1]}
        matching = [row for row in merged if not value.keys() & row.keys() and _agree(row, line.labels)]
        for row in matching:
            row.update(value | line.labels)
        if not matching:
            merged.append(value | line.labels)
    order: dict[str, Any] = next(
        (step["options"] for step in panel.get("transformations", []) if step["id"] == "organize"), {}
    )
    names = sorted(
        {name for row in merged for name in row} - set(order.get("excludeByName", {})),
        key=lambda name: order.get("indexByName", {}).get(name, 99),
    )
    head = "".join(f"<th>{escape(order.get('renameByName', {}).get(name, name))}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(_cell(panel, row.get(name), order.get('renameByName', {}).get(name, name)) for name in names)}</tr>"
        for row in merged
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _agree(row: dict[str, Any], labels: dict[str, str]) -> bool:
    return all(row.get(name, value) == value for name, value in labels.items())


def _cell(panel: Board, value: Any, title: str) -> str:
    overrides = overrides_of(panel, title, "")
    if not isinstance(value, float):
        return f"<td>{escape(str(value or ''))}</td>"
    text, shade = mapped_text(value, overrides.get("mappings", [])) or (
        format_value(value, overrides.get("unit", "none")),
        "inherit",
    )
    return f'<td style="color:{shade}">{escape(text)}</td>'
