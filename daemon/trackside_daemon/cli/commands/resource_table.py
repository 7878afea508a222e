"""The table of `trackside show --resources`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.cli.output import table
from trackside_daemon.model.text import measured, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

COLUMNS = ("mean", "std", "min", "max", "p50", "p95")


def resource_lines(diagnosis: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each quantity of a GPU, a process or the host, then what the next run may need."""
    rows = [list(_row(row)) for row in diagnosis["resources"]]
    if not rows:
        yield "no GPU, host or process was read in the time of this run"
        return
    yield from table(["QUANTITY", "OF", "RANKS", *(name.upper() for name in COLUMNS)], rows, right="<<<>>>>>>")
    for suggestion in diagnosis["suggestions"]:
        yield f"next time: {shown(suggestion['summary'])}: {shown(suggestion['advice'])}"


def _row(row: Mapping[str, Any]) -> Iterator[str]:
    yield row["quantity"].replace("_", " ")
    yield shown(row["of"]) or ("all" if row["ranks"] else "host")
    yield ",".join(map(str, row["ranks"])) if len(row["ranks"]) < 9 else f"{len(row['ranks'])} ranks"
    yield from (measured(row[name], row["unit"]) for name in COLUMNS)
