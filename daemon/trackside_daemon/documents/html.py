"""Write a document as one HTML file that loads nothing and runs no script but its own; what runs wrote is escaped."""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

import trackside_daemon
from trackside_daemon.documents.elements import (
    Bar,
    Cell,
    Code,
    Curves,
    Document,
    MediaSeries,
    Table,
    bounded,
    bounded_lines,
)
from trackside_daemon.model.text import shown

_FOLDER = Path(__file__).parent
_STATIC = Path(trackside_daemon.__file__).parent / "web" / "static"
_UPLOT = _STATIC / "uplot"
LEAST_BAR = 0.4  # width in percent that shows also what took no time
MEDIA_ROWS = 50  # most rows of a table that a run pushed


def write(document: Document) -> str:
    """Return the document as HTML, with a script only if it has curves."""
    style = (_UPLOT / "uPlot.min.css").read_text() + (_FOLDER / "report.css").read_text()
    drawn = [one for one in document.elements if isinstance(one, Curves) and one.charts]
    script = _script() if drawn else ""
    title = escape(shown(document.title))
    scripts = "".join(
        f'<script type="application/json" id="data">{_data(one)}</script>\n<script>{script}</script>' for one in drawn
    )
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script, style)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}: trackside report</title>\n<style>{style}</style>\n</head>\n<body>\n<main>",
        f"<h1>{title}</h1>",
        *(
            _table(bounded(one), title)
            if isinstance(one, Table)
            else _media(one)
            if isinstance(one, MediaSeries)
            else _curves(one)
            for one in document.drawn
        ),
        f'<p class="quiet">Written by trackside {trackside_daemon.__version__}.</p>\n</main>',
        f"{scripts}\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


def _script() -> str:
    """Return the script that draws curves: uPlot, the formats of the dashboard, and the report's own."""
    license_ = (_UPLOT / "LICENSE").read_text().strip()
    # Without its first comment, whose link no report should have; the license has all that it needs.
    library = (_UPLOT / "uPlot.iife.min.js").read_text().partition("*/")[2]
    own = (_STATIC / "format.js").read_text() + (_FOLDER / "report.js").read_text()
    return f"/* uPlot: {license_} */{library}\n{re.sub('^export ', '', own, flags=re.MULTILINE)}"


def _policy(script: str, style: str) -> str:
    """Return a Content-Security-Policy that permits one script and one style by their hashes, and images in the file."""
    hashes = [b64encode(sha256(text.encode()).digest()).decode() for text in (script, style)]
    return f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; img-src data:; base-uri 'none'; form-action 'none'"


def _data(curves: Curves) -> str:
    """Return the charts' data as JSON in which no text can end the element."""
    fields = ("axes", "charts", "marks")
    data = {field: getattr(curves, field) for field in fields}
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _curves(curves: Curves) -> str:
    if not curves.charts:
        return ""
    more = (
        f" {curves.left_out} more keys do not fit into this file; <code>trackside export</code> has them."
        if curves.left_out
        else ""
    )
    return (
        '<h2>Curves</h2>\n<div class="tools" hidden>'
        '<label>Over <select id="by"><option value="step">step</option><option value="time">time</option></select></label>'
        '<label id="search" hidden>Keys <input id="filter" type="search"></label></div>'
        f'<p class="quiet">The lowest rank. Drag to zoom, double-click to reset. Dashed lines are alerts, crosses NaN or infinite values.{more}</p>\n'
        '<div id="charts" class="charts"><noscript>The curves need JavaScript.</noscript></div>'
    )


def _table(table: Table, about: str) -> str:
    """Return a table, a list, a paragraph or a block of code; *about* names one without a title."""
    title = escape(table.title)
    head = f"<h2>{title}</h2>\n" if title else ""
    if not table.header and len(table.rows[0]) == 1:
        return head + _lines([row[0] for row in table.rows])
    body = "".join(
        f'<tr><th scope="row">{_text(first)}</th>{"".join(map(_cell, rest))}</tr>\n' for first, *rest in table.rows
    )
    return f'{head}<div class="scroll" tabindex="0" role="region" aria-label="{title or about}">{_grid(table.header, body)}</div>'


def _grid(header: Iterable[str], body: str) -> str:
    """Return a table of a header, whose cells may be empty, and rows."""
    names = list(map(_text, header))
    head = "".join(f'<th scope="col">{name}</th>' if name else "<td></td>" for name in names)
    return f"<table>\n{f'<thead><tr>{head}</tr></thead>' if names else ''}\n<tbody>\n{body}</tbody></table>"


def _lines(cells: Sequence[Cell]) -> str:
    lines = [escape(shown(str(cell))) for cell in cells]
    if isinstance(cells[0], Code):
        return f'<pre class="scroll" tabindex="0">{chr(10).join(lines)}</pre>'
    if len(lines) == 1:
        return f"<p>{lines[0]}</p>"
    items = (f"<li{' class=under' * line.startswith(' ')}>{line.strip()}</li>" for line in lines)
    return f"<ul>{''.join(items)}</ul>"


def _cell(cell: Cell) -> str:
    if not isinstance(cell, Bar):
        return f"<td><code>{_text(cell)}</code></td>" if isinstance(cell, Code) else f"<td>{_text(cell)}</td>"
    parts = "".join(
        f'<rect class="{escape(kind)}" x="{min(100 - LEAST_BAR, 100 * begin):.2f}" width="{max(LEAST_BAR, 100 * (end - begin)):.2f}" height="10"/>'
        for begin, end, kind in cell.parts
    )
    bar = f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">{parts}</svg>'
    return f"<td>{bar} {_text(cell)}</td>"


def _text(cell: Cell) -> str:
    return "<br>".join(map(escape, bounded_lines(cell)))


def _media(media: MediaSeries) -> str:
    """Return all series; what runs wrote is escaped, and images are data of one fixed type."""
    return f'<h2>Media</h2>\n<div class="media">{"".join(_series(*one) for one in media.series)}</div>'


def _series(name: str, series: Mapping[str, Any]) -> str:
    name = escape(shown(name))
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
        rows = "".join(f"<tr>{''.join(map(_pushed, row))}</tr>" for row in item["data"]["rows"][:MEDIA_ROWS])
        body = f'<div class="scroll">{_grid(map(str, item["data"]["columns"]), rows)}</div>'
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


def _pushed(value: Any) -> str:
    """Return the cell of a value in a table that a run pushed."""
    text = f"{value:.5g}" if isinstance(value, float) else "" if value is None else str(value)
    return f"<td>{escape(shown(text))}</td>"
