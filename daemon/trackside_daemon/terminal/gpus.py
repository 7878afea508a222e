"""Pane of the GPUs, with a bar of utilization for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.model.text import cut, shown
from trackside_daemon.terminal.formatting import bar, pad, percent, text_field, to_float, with_prefix
from trackside_daemon.terminal.histories import clock
from trackside_daemon.terminal.styled_lines import Line, fit, line_width

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Gpu = Mapping[str, Any]

NARROW = 19  # columns of a GPU with its utilization and temperature
MIDDLE = 39  # columns of a GPU also with memory and power
WIDE = 78  # columns of a GPU also with its clock, name and ranks


def gpu_rows(gpus: Sequence[Gpu], width: int) -> int:
    """Return the number of lines that the GPUs need."""
    return -(-len(gpus) // max(1, width // MIDDLE)) if len(gpus) > 2 else len(gpus)


def render_gpus(gpus: Sequence[Gpu], width: int, height: int) -> list[Line]:
    """Return *height* lines with as much about each GPU as fits."""
    columns, size = _grid(len(gpus), width, height)
    cells = [_gpu(gpu, size) for gpu in gpus]
    if len(cells) > columns * height:
        visible = max(0, columns * height - 1)
        down = sum(not gpu.get("up", True) for gpu in gpus[visible:])
        note = f"+{len(cells) - visible} more{f', {down} down' if down else ''}"
        cells = [*cells[:visible], fit([(note, "critical" if down else "dim")], size)]
    lines = []
    for row in range(height):
        line: Line = []
        for cell in cells[row::height]:
            line += [*cell, ("  ", "")]
        lines.append(fit(line, width))
    return lines


def _grid(count: int, width: int, height: int) -> tuple[int, int]:
    """Return the number of columns of GPUs, and the width of each."""
    for size in (WIDE, MIDDLE, NARROW):
        columns = max(1, (width + 2) // (size + 2))
        if columns * height >= count or size == NARROW:
            needed = max(1, min(columns, -(-count // max(1, height))))
            return needed, min(WIDE + 40, (width + 2) // needed - 2)
    raise AssertionError


def _gpu(gpu: Gpu, size: int) -> Line:
    number = pad(text_field(gpu, "gpu", "?"), 2, right=True)
    if not gpu.get("up", True):
        return fit([(f"{number} ", ""), ("DOWN ", "critical"), (text_field(gpu, "name"), "dim")], size)
    line: Line = [(pad(percent(gpu.get("utilization_ratio")), 5, right=True), "")]
    limits = gpu.get("limited")
    reasons = ",".join(shown(reason) for reason in limits) if isinstance(limits, list) else ""
    is_wide = size >= WIDE - 2
    if is_wide or (size >= MIDDLE - 2 and not reasons):
        memory = f"{with_prefix(gpu.get('memory_used_bytes'), 1024)}/{with_prefix(gpu.get('memory_bytes'), 1024)}"
        line.append((f" {pad(memory, 11, right=True)}", ""))
    line += _power_and_temperature(gpu, power=size >= MIDDLE - 2)
    if is_wide:
        line.append((f" {pad(clock(gpu), 7, right=True)}", ""))
        name = "" if reasons else text_field(gpu, "name")  # the reasons need the room
        line += [(f" {text}", style) for text, style in ((name, "dim"), (_ranks(gpu), "")) if text]
    if reasons:
        line.append((f" {cut(f'!{reasons}', max(4, size - 8 - line_width(line)))}", "warning"))
    length = max(4, min(24 if is_wide else 12, size - 3 - line_width(line)))
    return fit([(f"{number} ", ""), (bar(gpu.get("utilization_ratio"), length), "good"), *line], size)


def _power_and_temperature(gpu: Gpu, *, power: bool) -> Line:
    """Return both, with blanks for a missing value, so that the columns stay aligned."""
    watts = to_float(gpu.get("power_watts"))
    celsius = to_float(gpu.get("temperature_celsius"))
    line: Line = [(" " * 6 if watts is None else f"{watts:5.0f}W", "")] if power else []
    return [*line, (" " * 5 if celsius is None else f"{celsius:4.0f}C", "")]


def _ranks(gpu: Gpu) -> str:
    """Return the ranks that train on the GPU, as RUN:RANK."""
    values = gpu.get("ranks")
    ranks = [rank for rank in values if isinstance(rank, dict)] if isinstance(values, list) else []
    return ",".join(
        f"{text_field(rank, 'name') or text_field(rank, 'run')}:{text_field(rank, 'rank')}" for rank in ranks
    )
