"""Pane of the runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.model.text import duration
from trackside_daemon.terminal.formatting import (
    ABSENT,
    percent,
    short_number,
    sparkline,
    text_field,
    to_float,
    with_prefix,
)
from trackside_daemon.terminal.styled_lines import SEVERITIES, Line, Piece
from trackside_daemon.terminal.table import Column, render_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Styles by state; all other states are critical.
STATE_STYLES = {"running": "good", "starting": "info", "stopped": "warning", "finished": "dim"}

_COLUMNS = (
    Column("RUN", 0, right=False),
    Column("STATE", 8, right=False),
    Column("STEP", 8),
    Column("DONE", 5, min_frame=90),
    Column("LEFT", 11),
    Column("LOSS", 9),
    Column("RATE", 8),
    Column("RANKS", 5, min_frame=100),
    Column("ATTEMPT", 7, min_frame=110),
    Column("RECENT LOSS", 24, right=False, min_frame=120),
    Column("ALERTS", 13, right=False),
)


def render_runs(runs: Sequence[Mapping[str, Any]], selected: int, width: int, height: int) -> list[Line]:
    """Return *height* lines: the names of the columns, and the runs around the selected one."""
    return render_table(_COLUMNS, runs, _cells, selected, (width, height), titles={"RUN": _title(runs, height)})


def _title(runs: Sequence[Mapping[str, Any]], height: int) -> str:
    return f"RUN ({len(runs)})" if len(runs) >= height else "RUN"


def _cells(run: Mapping[str, Any]) -> dict[str, Piece]:
    """Return the text and style of each column."""
    state = text_field(run, "state", ABSENT)
    loss = short_number(run.get("loss"))
    return {
        "RUN": (text_field(run, "name", ABSENT), ""),
        "STATE": (state, STATE_STYLES.get(state, "" if state == ABSENT else "critical")),
        "STEP": (short_number(run.get("step")), ""),
        "DONE": (percent(run.get("progress_ratio")), ""),
        "LEFT": (duration(to_float(run.get("remaining_seconds"))), ""),
        "LOSS": (loss, "critical" if loss in {"nan", "inf", "-inf"} else ""),
        "RATE": (_rate(run), ""),
        "RANKS": (short_number(run.get("world_size")), ""),
        "ATTEMPT": (short_number(run.get("attempt")), ""),
        "RECENT LOSS": (sparkline(run.get("sparkline"), 24), "good"),
        "ALERTS": _alerts(run.get("alerts")),
    }


def _rate(run: Mapping[str, Any]) -> str:
    """Return tokens, samples or steps per second, whichever the run has first."""
    for name, unit in (("tokens_per_second", "tok"), ("samples_per_second", "smp")):
        if to_float(run.get(name)) is not None:
            return f"{with_prefix(run[name])}{unit}"
    seconds = to_float(run.get("step_seconds"))
    return f"{with_prefix(1 / seconds)}step" if seconds else ABSENT


def _alerts(counts: object) -> Piece:
    """Return the number of alerts of the highest severity, and of all others."""
    if not isinstance(counts, dict):
        return ABSENT, "dim"
    numbers = {severity: int(to_float(counts.get(severity)) or 0) for severity in SEVERITIES}
    firing = [(severity, number) for severity, number in numbers.items() if number]
    if not firing:
        return ABSENT, "dim"
    highest, number = firing[0]
    others = sum(other for _, other in firing[1:])
    return f"{number} {highest}{f' +{others}' if others else ''}", highest
