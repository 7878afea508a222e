"""The list of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.model.text import duration
from trackside_daemon.terminal.formatting import NONE, brief, cell, large, percent, real, sparkline, told
from trackside_daemon.terminal.styled_lines import SEVERITIES, Line, fitted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INK = {"running": "good", "starting": "info", "stopped": "warning", "finished": "dim"}
"""Of states; the others are critical."""

MARK = "> "
_COLUMNS = (
    ("STATE", 8, False, 0),
    ("STEP", 8, True, 0),
    ("DONE", 4, True, 90),
    ("LEFT", 7, True, 0),
    ("LOSS", 9, True, 0),
    ("RATE", 8, True, 0),
    ("RANKS", 5, True, 100),
    ("TRY", 3, True, 110),
    ("LOSS OF LATE", 24, False, 120),
    ("ALERTS", 13, False, 0),
)
"""Name, columns, whether aligned to the right, and the width of a frame from which on it is there."""


def listed(runs: Sequence[Mapping[str, Any]], chosen: int, width: int, height: int) -> list[Line]:
    """So many lines: the names of the columns, and the runs around the chosen one."""
    columns = [one for one in _COLUMNS if width >= one[3]]
    room = max(6, width - len(MARK) - sum(wide + 1 for _, wide, _, _ in columns))
    names = [" " * len(MARK) + cell(_counted(runs, height), room)]
    names += [cell(name, wide, right=right) for name, wide, right, _ in columns]
    lines: list[Line] = [[(" ".join(names), "title")]]
    first = first_shown(len(runs), chosen, height)
    for number, run in enumerate(runs[first : first + height - 1], first):
        said = _cells(run)
        line: Line = [(MARK if number == chosen else " " * len(MARK), "")]
        line.append((cell(told(run, "name", NONE), room), "chosen" if number == chosen else ""))
        for name, wide, right, _ in columns:
            text, ink = said[name]
            line += [(" ", ""), (cell(text, wide, right=right), ink)]
        lines.append(line)
    return [fitted(line, width) for line in (lines + [[]] * height)[:height]]


def first_shown(count: int, chosen: int, height: int) -> int:
    """The number of the run in the first line, so that the chosen one is in sight."""
    rows = max(1, height - 1)
    return max(0, min(chosen - rows // 2, count - rows))


def _counted(runs: Sequence[Mapping[str, Any]], height: int) -> str:
    return f"RUN ({len(runs)})" if len(runs) >= height else "RUN"


def _cells(run: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The text and the ink of each column."""
    state = told(run, "state", NONE)
    loss = brief(run.get("loss"))
    return {
        "STATE": (state, INK.get(state, "" if state == NONE else "critical")),
        "STEP": (brief(run.get("step")), ""),
        "DONE": (percent(run.get("progress_ratio")), ""),
        "LEFT": (duration(real(run.get("remaining_seconds"))), ""),
        "LOSS": (loss, "critical" if loss in {"nan", "inf", "-inf"} else ""),
        "RATE": (_rate(run), ""),
        "RANKS": (brief(run.get("world_size")), ""),
        "TRY": (brief(run.get("attempt")), ""),
        "LOSS OF LATE": (sparkline(run.get("sparkline"), 24), "good"),
        "ALERTS": _alerts(run.get("alerts")),
    }


def _rate(run: Mapping[str, Any]) -> str:
    """Tokens a second, or samples, or steps."""
    for name, unit in (("tokens_per_second", "tok"), ("samples_per_second", "smp")):
        if real(run.get(name)) is not None:
            return f"{large(run[name])}{unit}"
    seconds = real(run.get("step_seconds"))
    return f"{large(1 / seconds)}step" if seconds else NONE


def _alerts(counts: object) -> tuple[str, str]:
    """How many of the worst, in words, and how many more."""
    found = [(one, int(real(counts.get(one)) or 0)) for one in SEVERITIES] if isinstance(counts, dict) else []
    found = [(severity, count) for severity, count in found if count]
    if not found:
        return NONE, "dim"
    worst, count = found[0]
    more = sum(other for _, other in found[1:])
    return f"{count} {worst}{f' +{more}' if more else ''}", worst
