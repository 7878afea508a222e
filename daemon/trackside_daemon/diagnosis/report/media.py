"""Images, texts and tables of runs in a report: some steps of each series, the first and the newest among them."""

from __future__ import annotations

from contextlib import suppress
from html import escape
from typing import TYPE_CHECKING, Any

from trackside_daemon.history.files import media_lines
from trackside_daemon.history.media import index
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping, Sequence

SERIES = 24  # most series of a run
STEPS = 12  # most steps of a series
ROWS = 50  # most rows of a table
SIZE = 4_000_000  # most bytes of a run's media


def read(connection: sqlite3.Connection, run: str, size: int = SIZE) -> list[dict[str, Any]]:
    """Return the series of a run: ``kind``, ``key``, ``rank``, ``count``, and ``items`` with ``step`` and ``data``."""
    history = index.history_of(connection)
    series: dict[tuple[str, str, int], list[index.MediaFile]] = {}
    for item in index.read(history, run):
        series.setdefault((item.kind, item.key, item.rank), []).append(item)
    found = []
    for (kind, key, rank), items in list(series.items())[:SERIES]:
        drawn = []
        for item in _spread(items):
            if item.bytes > size:
                continue
            with suppress(OSError, ValueError):
                data = media_lines.shown(kind, index.content(history, run, item))
                drawn.append({"step": item.step, "data": data, "width": item.width, "height": item.height})
                size -= item.bytes
        if drawn:
            found.append({"kind": kind, "key": key, "rank": rank, "count": len(items), "items": drawn})
    return found


def _spread(items: Sequence[index.MediaFile]) -> list[index.MediaFile]:
    """Return at most `STEPS` items at equal distances."""
    if len(items) <= STEPS:
        return list(items)
    return [items[round(place * (len(items) - 1) / (STEPS - 1))] for place in range(STEPS)]


def section(reports: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> Iterator[str]:
    """Yield the HTML of all series; what runs wrote is escaped, and images are data of one fixed type."""
    parts = [
        _series(label if len(reports) > 1 else "", series)
        for label, report in zip(labels, reports, strict=True)
        for series in report.get("media", ())
    ]
    if parts:
        yield f'<h2>Media</h2>\n<div class="media">{"".join(parts)}</div>'


def _series(label: str, series: Mapping[str, Any]) -> str:
    rank = f", rank {series['rank']}" if series["rank"] else ""
    name = escape(shown(" ".join(filter(None, [label, f"{series['key']}{rank}"]))))
    left_out = series["count"] - len(series["items"])
    more = (
        f'<p class="quiet">{left_out} more steps are left out; trackside export has them.</p>' if left_out > 0 else ""
    )
    items = "".join(_item(series["kind"], name, item) for item in series["items"])
    return f'<section class="series" aria-label="{name}"><h3>{name}</h3>{items}{more}</section>'


def _item(kind: str, name: str, item: Mapping[str, Any]) -> str:
    step = "" if item["step"] is None else f"step {int(item['step'])}"
    if kind == "image":
        size = f'width="{int(item["width"])}" height="{int(item["height"])}"'
        body = f'<img {size} alt="{name} {step}" src="data:image/png;base64,{escape(item["data"])}">'
    elif kind == "text":
        lines = "\n".join(map(shown, item["data"].splitlines()))
        body = f"<pre>{escape(lines)}</pre>"
    elif kind == "histogram":
        body = _histogram(name, item["data"])
    else:
        body = _table(item["data"])
    return f"<figure>{body}<figcaption>{step}</figcaption></figure>"


def _histogram(name: str, data: Mapping[str, Any]) -> str:
    counts, edges = data["counts"], data["edges"]
    most, width = max(counts) or 1, 100 / len(counts)
    bars = "".join(
        f'<rect class="c0" x="{place * width:.2f}" y="{40 - 40 * count / most:.2f}" width="{width:.2f}" height="{40 * count / most:.2f}"/>'
        for place, count in enumerate(counts)
    )
    ends = f"{edges[0]:.4g} to {edges[-1]:.4g}, at most {most:,} in a bin"
    return f'<svg class="histogram" viewBox="0 0 100 40" preserveAspectRatio="none" role="img" aria-label="{name}: {ends}">{bars}</svg><p class="quiet">{ends}</p>'


def _table(table: Mapping[str, Any]) -> str:
    head = "".join(f'<th scope="col">{escape(shown(str(name)))}</th>' for name in table["columns"])
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table["rows"][:ROWS])
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(value: Any) -> str:
    text = f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)
    return f"<td>{escape(shown(text))}</td>"
