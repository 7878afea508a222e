"""A bar for each GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.model.text import cut, shown
from trackside_daemon.terminal.formatting import bar, cell, large, percent, real, told
from trackside_daemon.terminal.styled_lines import Line, fitted, wide

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Gpu = Mapping[str, Any]

NARROW, MIDDLE, WIDE = 19, 39, 78
"""Columns of a GPU: with use alone; with memory, power and heat; and with its name and ranks."""


def rows_wanted(gpus: Sequence[Gpu], width: int) -> int:
    """Lines that they take when there is room."""
    return -(-len(gpus) // max(1, width // MIDDLE)) if len(gpus) > 2 else len(gpus)


def barred(gpus: Sequence[Gpu], width: int, height: int) -> list[Line]:
    """So many lines, with as much of each GPU as there is room for."""
    columns, size = _grid(len(gpus), width, height)
    cells = [_one(gpu, size) for gpu in gpus]
    if len(cells) > columns * height:
        kept = max(0, columns * height - 1)
        hidden = [gpu for gpu in gpus[kept:] if not gpu.get("up", True)]
        said = f"+{len(cells) - kept} more{f', {len(hidden)} not up' if hidden else ''}"
        cells = [*cells[:kept], fitted([(said, "critical" if hidden else "dim")], size)]
    lines = []
    for row in range(height):
        line: Line = []
        for one in cells[row::height]:
            line += [*one, ("  ", "")]
        lines.append(fitted(line, width))
    return lines


def _grid(count: int, width: int, height: int) -> tuple[int, int]:
    """The columns, and how wide each is."""
    for size in (WIDE, MIDDLE, NARROW):
        columns = max(1, (width + 2) // (size + 2))
        if columns * height >= count or size == NARROW:
            needed = max(1, min(columns, -(-count // max(1, height))))
            return needed, min(WIDE + 40, (width + 2) // needed - 2)
    raise AssertionError


def _one(gpu: Gpu, size: int) -> Line:
    number = cell(told(gpu, "gpu", "?"), 2, right=True)
    if not gpu.get("up", True):
        return fitted([(f"{number} ", ""), ("NOT UP ", "critical"), (told(gpu, "name"), "dim")], size)
    line: Line = [(cell(percent(gpu.get("utilization_ratio")), 5, right=True), "")]
    limits = gpu.get("limited")
    reasons = ",".join(shown(one) for one in limits) if isinstance(limits, list) else ""
    roomy = size >= WIDE - 2
    if roomy or (size >= MIDDLE - 2 and not reasons):
        memory = f"{large(gpu.get('memory_used_bytes'), 1024)}/{large(gpu.get('memory_bytes'), 1024)}"
        line.append((f" {cell(memory, 11, right=True)}", ""))
    line += _measured(gpu, power=size >= MIDDLE - 2)
    if roomy:
        name = "" if reasons else told(gpu, "name")  # it gives way to them
        line += [(f" {text}", ink) for text, ink in ((name, "dim"), (_ranks(gpu), "")) if text]
    if reasons:
        line.append((f" {cut(f'!{reasons}', max(4, size - 8 - wide(line)))}", "warning"))
    length = max(4, min(24 if roomy else 12, size - 3 - wide(line)))
    return fitted([(f"{number} ", ""), (bar(gpu.get("utilization_ratio"), length), "good"), *line], size)


def _measured(gpu: Gpu, *, power: bool) -> Line:
    """Power, where there is room, and heat; of what was not measured blanks, so that the columns stay."""
    watts, heat = real(gpu.get("power_watts")), real(gpu.get("temperature_celsius"))
    line: Line = [(" " * 6 if watts is None else f"{watts:5.0f}W", "")] if power else []
    return [*line, (" " * 5 if heat is None else f"{heat:4.0f}C", "")]


def _ranks(gpu: Gpu) -> str:
    """Who trains on it."""
    ranks = gpu.get("ranks")
    known = [one for one in ranks if isinstance(one, dict)] if isinstance(ranks, list) else []
    return ",".join(f"{told(one, 'name') or told(one, 'run')}:{told(one, 'rank')}" for one in known)
