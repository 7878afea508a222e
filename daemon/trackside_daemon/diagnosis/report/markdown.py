"""Render a report's tables as Markdown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trackside_daemon.diagnosis.report.tables import details, findings, names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackside_daemon.diagnosis.report.tables import Cell

_SPECIAL = re.compile(r"[\\`*_{}\[\]()<>#|~&!]")


def markdown(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return a report without its curves as Markdown; what runs wrote is escaped."""
    lines = [f"# {escaped(', '.join(names(reports)))}"]
    for table in (*findings(reports), *details(reports)):
        lines += ["", f"## {table.title}", "", _row(table.header), _row(["---"] * len(table.header), raw=True)]
        lines += map(_row, table.rows)
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[Cell], *, raw: bool = False) -> str:
    texts = [cell if isinstance(cell, str) else cell.text for cell in cells]
    return f"| {' | '.join(texts if raw else map(escaped, texts))} |"


def escaped(text: str) -> str:
    """Return a text without its meaning for Markdown."""
    return _SPECIAL.sub(r"\\\g<0>", text)
