"""Render a report as one HTML file that loads nothing and runs no script but its own."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trackside_daemon
from trackside_daemon.diagnosis.report import media
from trackside_daemon.diagnosis.report.benchmarks import charted
from trackside_daemon.diagnosis.report.lines import charts
from trackside_daemon.diagnosis.report.tables import Bar, Lines, details, findings, names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackside_daemon.diagnosis.report.tables import Cell, Table

_FOLDER = Path(__file__).parent
_STATIC = Path(trackside_daemon.__file__).parent / "web" / "static"
_UPLOT = _STATIC / "uplot"
_MODULES = (_STATIC / "format.js", _STATIC / "charts" / "benchmark_charts.js")
LEAST_BAR = 0.4  # width in percent that shows also what took no time


def page(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return the HTML of a report about runs; what they wrote is escaped."""
    drawn = charts(reports)
    title = ", ".join(names(reports))
    style = (_UPLOT / "uPlot.min.css").read_text() + (_FOLDER / "report.css").read_text()
    license_ = (_UPLOT / "LICENSE").read_text().strip()
    # Without its first comment, whose link no report should have; the license has all that it needs.
    library = (_UPLOT / "uPlot.iife.min.js").read_text().partition("*/")[2]
    own = "".join(file.read_text() for file in (*_MODULES, _FOLDER / "report.js"))
    # Modules of the dashboard as parts of a script.
    script = f"/* uPlot: {license_} */{library}\n{re.sub(r'^(import .*|export )', '', own, flags=re.MULTILINE)}"
    measured = charted(reports, names(reports))
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script, style)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}: trackside report</title>\n<style>{style}</style>\n</head>\n<body>\n<main>",
        f"<h1>{escape(title)}</h1>",
        *map(_table, findings(reports)),
        _curves(drawn, sum(report["left_out"] for report in reports)),
        '<h2>Latency and throughput</h2>\n<div id="benchmarks" class="charts"></div>' if measured else "",
        *media.section(reports, names(reports)),
        *map(_table, details(reports)),
        f'<p class="quiet">Written by trackside {trackside_daemon.__version__}. Times lost are upper limits.</p>\n</main>',
        f'<script type="application/json" id="data">{_data(reports, drawn, measured)}</script>',
        f"<script>{script}</script>\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


def _policy(script: str, style: str) -> str:
    """Return a Content-Security-Policy that permits one script and one style by their hashes, and images in the file."""
    hashes = [b64encode(sha256(text.encode()).digest()).decode() for text in (script, style)]
    return f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; img-src data:; base-uri 'none'; form-action 'none'"


def _data(reports: Sequence[Mapping[str, Any]], drawn: Sequence[Mapping[str, Any]], measured: Sequence[Any]) -> str:
    """Return the charts' data as JSON in which no text can end the element."""
    data = {
        "axes": [report["axes"] for report in reports],
        "charts": drawn,
        "benchmarks": measured,
        "marks": [
            [[round(alert["started"] - report["run"]["started"], 2), alert["severity"]] for alert in report["alerts"]]
            for report in reports
        ],
    }
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _curves(drawn: Sequence[Mapping[str, Any]], left_out: int) -> str:
    if not drawn:
        return ""
    more = (
        f" {left_out} more keys do not fit into this file; <code>trackside export</code> has them." if left_out else ""
    )
    return (
        '<h2>Curves</h2>\n<div class="tools" hidden>'
        '<label>Over <select id="by"><option value="step">step</option><option value="time">time</option></select></label>'
        '<label id="search" hidden>Keys <input id="filter" type="search"></label></div>'
        f'<p class="quiet">The lowest rank. Drag to zoom, double-click to reset. Dashed lines are alerts, crosses NaN or infinite values.{more}</p>\n'
        '<div id="charts" class="charts"><noscript>The curves need JavaScript.</noscript></div>'
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' if text else "<td></td>" for text in table.header)
    rows = "".join(
        f'<tr><th scope="row">{escape(str(first))}</th>{"".join(map(_cell, rest))}</tr>\n'
        for first, *rest in table.rows
    )
    name = escape(table.title)
    return (
        f'<h2>{name}</h2>\n<div class="scroll" tabindex="0" role="region" aria-label="{name}"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    if isinstance(cell, Lines):
        return f"<td>{'<br>'.join(map(escape, cell.lines))}</td>"
    if not isinstance(cell, Bar):
        return f"<td>{escape(cell)}</td>"
    parts = "".join(
        f'<rect class="{escape(kind)}" x="{min(100 - LEAST_BAR, 100 * begin):.2f}" width="{max(LEAST_BAR, 100 * (end - begin)):.2f}" height="10"/>'
        for begin, end, kind in cell.parts
    )
    bar = f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">{parts}</svg>'
    return f"<td>{bar} {escape(cell.text)}</td>"
