"""The report in Markdown: the limits first, then the details of each part."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bench.gpu_report.result import Figure, Result, Table

VERDICTS = {True: "met", False: "**MISSED**", None: "-"}
REHEARSAL = """
**This is a rehearsal.** No GPU was used: the driver and `nvidia-smi` are fakes that read one scenario, and all tensors are on
the CPU. Every time, every share of a core, every size in memory and every description of a GPU below means nothing, and has no
verdict. Only this counts: each part ran to its end, and the comparisons with the fake `nvidia-smi` agree.
"""


class Outcome(NamedTuple):
    """The outcome of a part.

    Attributes:
        title: Its title.
        result: Its result, empty if it failed.
        failure: Why it failed; empty if it did not.
        lines: The last lines of its output.
        seconds: Its duration.
    """

    title: str
    result: Result
    failure: str
    lines: list[str]
    seconds: float


def failures(outcomes: list[Outcome]) -> list[str]:
    """Return a line for each part that failed and each limit that is missed."""
    lines = []
    for outcome in outcomes:
        if outcome.failure:
            lines.append(f"{outcome.title}: FAILED: {outcome.failure}")
        missed = [figure for figure in outcome.result.figures if figure.met is False]
        lines += [
            f"{outcome.title}: MISSED: {figure.name}: {figure.measured}, limit {figure.limit}" for figure in missed
        ]
    return lines


def render(outcomes: list[Outcome], seconds: float, *, rehearse: bool) -> str:
    """Return the report."""
    lines = ["# GPU report", ""]
    lines.append(f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, {seconds:.0f} s in all.")
    if rehearse:
        lines.append(REHEARSAL)
    lines += ["", "## Limits", "", "| part | figure | measured | limit | |", "|---|---|---:|---:|---|"]
    for outcome in outcomes:
        if outcome.failure:
            lines.append(_row([outcome.title, f"failed: {outcome.failure}", "-", "-", "**FAILED**"]))
        lines += [_row([outcome.title, *_cells(figure)]) for figure in outcome.result.figures]
    for outcome in outcomes:
        lines += _details(outcome)
    return "\n".join(lines) + "\n"


def _cells(figure: Figure) -> list[str]:
    return [figure.name, figure.measured, figure.limit or "-", VERDICTS[figure.met]]


def _details(outcome: Outcome) -> list[str]:
    lines = ["", f"## {outcome.title}", "", f"{outcome.seconds:.0f} s."]
    for note in outcome.result.notes:
        lines += ["", note]
    for table in outcome.result.tables:
        lines += ["", *_table(table)]
    if outcome.failure:
        lines += ["", f"Failed: {outcome.failure}. The last lines of its output:", "", "```", *outcome.lines, "```"]
    return lines


def _table(table: Table) -> list[str]:
    return [_row(table.columns), "|" + "---|" * len(table.columns), *map(_row, table.rows)]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
