"""A dashboard as a page of HTML that looks much as in Grafana."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from grafana.pictures.charts import chart, heatmap, timeline
from grafana.pictures.look import level, looks, meaning, overridden, written

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from grafana.pictures.answers import Asked, Board, Line

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


def page(board: Board, asked: Asked, only: Collection[str] = ()) -> str:
    """All of it, unfolded.

    Args:
        board: The dashboard.
        asked: Its answers.
        only: The rows that are drawn, by their titles; empty for all.
    """
    said = f"<small>run<b>{escape(run)}</b></small>" if (run := asked.values.get("run", ".+")) != ".+" else ""
    panels = list(_placed(board, only))
    height = max(top + one["gridPos"]["h"] for one, top in panels) * ROW
    body = "".join(_panel(one, top, asked) for one, top in panels)
    return (
        f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style><h1>{escape(board["title"])}{said}</h1>'
        f'<div id="board" style="height:{height}px">{body}</div>'
    )


def _placed(board: Board, only: Collection[str]) -> Iterator[tuple[Board, int]]:
    """The panels that are drawn, and at which line of the grid."""
    rows: list[list[Board]] = []
    for one in board["panels"]:
        if one["type"] == "row":
            rows.append([])
        rows[-1] += [one, *one.get("panels", [])]
    top = 0
    for row in rows:
        if only and row[0]["title"] not in only:
            continue
        first = row[0]["gridPos"]["y"]
        yield from ((one, top + one["gridPos"]["y"] - first) for one in row)
        top += max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in row) - first


def _panel(panel: Board, top: int, asked: Asked) -> str:
    place = panel["gridPos"]
    width, height = place["w"] * COLUMN - GAP, place["h"] * ROW - GAP
    style = f"left:{place['x'] * COLUMN}px;top:{top * ROW}px;width:{width}px;height:{height}px"
    if panel["type"] == "row":
        return f'<div class="row" style="{style}">▾ {escape(panel["title"])}</div>'
    inside = "".join(_inside(panel, asked, width - 2, height - 30))
    return f'<section class="panel" style="{style}"><header>{escape(asked.text(panel["title"]))}</header>{inside}</section>'


def _inside(panel: Board, asked: Asked, width: float, height: float) -> Iterator[str]:
    lines = asked.lines(panel)
    if not lines:
        yield f'<div class="none">{escape(panel["fieldConfig"]["defaults"].get("noValue") or "No data")}</div>'
    elif panel["type"] in ("timeseries", "heatmap", "state-timeline"):
        draw = {"timeseries": chart, "heatmap": heatmap, "state-timeline": timeline}[panel["type"]]
        yield draw(panel, asked, lines, width, height)
    elif panel["type"] == "stat":
        yield _stats(panel, lines)
    elif panel["type"] == "bargauge":
        yield _bars(panel, lines)
    else:
        yield _table(panel, lines)


def _stats(panel: Board, lines: list[Line]) -> str:
    cells = []
    for line, look in zip(lines, looks(panel, lines), strict=True):
        value = line.points[-1][1]
        said = meaning(value, look.mappings)
        text, shade = said or (
            written(value, look.unit, panel["fieldConfig"]["defaults"].get("decimals")),
            level(value, panel),
        )
        name = f"<small>{escape(line.name)}</small>" if line.name and len(lines) > 1 else ""
        cells.append(f'<div style="color:{shade}">{name}{escape(text)}</div>')
    return f'<div class="stats">{"".join(cells)}</div>'


def _bars(panel: Board, lines: list[Line]) -> str:
    values = [line.points[-1][1] for line in lines]
    most = panel["fieldConfig"]["defaults"].get("max") or max(values) or 1
    rows = [
        f'<div><label>{escape(line.name)}</label><i><b style="width:{min(100, 100 * value / most):.0f}%;background:{level(value, panel)}"></b></i>'
        f"<u>{written(value, look.unit)}</u></div>"
        for line, look, value in zip(lines, looks(panel, lines), values, strict=True)
    ]
    return f'<div class="bars">{"".join(rows)}</div>'


def _table(panel: Board, lines: list[Line]) -> str:
    """Rows with the same labels are one, as the transformation merge has it; columns as organize has them."""
    many = len(panel["targets"]) > 1
    merged: list[dict[str, Any]] = []
    for line in lines:
        value = {f"Value #{line.query}" if many else "Value": line.points[-1][1]}
        like = [row for row in merged if not value.keys() & row.keys() and _agree(row, line.labels)]
        for row in like:
            row.update(value | line.labels)
        if not like:
            merged.append(value | line.labels)
    order: dict[str, Any] = next(
        (one["options"] for one in panel.get("transformations", []) if one["id"] == "organize"), {}
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
    own = overridden(panel, title, "")
    if not isinstance(value, float):
        return f"<td>{escape(str(value or ''))}</td>"
    text, shade = meaning(value, own.get("mappings", [])) or (written(value, own.get("unit", "none")), "inherit")
    return f'<td style="color:{shade}">{escape(text)}</td>'
