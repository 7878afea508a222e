"""A curve in braille: each letter has two dots across and four down."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.terminal.formatting import NONE, brief
from trackside_daemon.terminal.styled_lines import Line, fitted, wide

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_EMPTY = 0x2800
LEAST_ROWS = 4
"""A title, an axis, and two rows for the curve."""


class Dot(NamedTuple):
    """A bucket of a curve; all are finite."""

    step: float
    low: float
    high: float
    last: float


class Curve(NamedTuple):
    """What is drawn.

    Attributes:
        title: Its name and newest value.
        dots: In the order in which they came: where steps fall, the pen is lifted.
        marked: The last steps of buckets with a value that was not finite.
        floor: Where it begins at the latest, below; None for at its least value.
    """

    title: str
    dots: Sequence[Dot] = ()
    marked: Sequence[float] = ()
    floor: float | None = None


def plot(curve: Curve, width: int, height: int) -> list[Line]:
    """So many lines: the title, the curve beside its extremes, and the axis of the steps with its marks."""
    rows = height - 2
    steps = [*(dot.step for dot in curve.dots), *curve.marked]
    if not steps:
        return [fitted(line, width) for line in ([(curve.title, "title")], [("nothing yet", "dim")], *([[]] * rows))]
    low, high = _range(curve)
    labels = [brief(high), *([""] * (rows - 2)), brief(low)] if curve.dots else [NONE] * rows
    side = max(map(len, labels))
    columns = max(1, width - side - 1)
    first, last = min(steps), max(steps)
    across = [_part(dot.step, first, last) for dot in curve.dots]
    grid = _drawn(curve.dots, across, (low, high), columns, rows)
    lines: list[Line] = [[(curve.title, "title")]]
    lines += [
        [(f"{label:>{side}} ", "dim"), ("".join(map(_letter, row)), "good")]
        for label, row in zip(labels, grid, strict=True)
    ]
    lines.append([(" " * (side + 1), ""), *_axis(curve.marked, first, last, columns)])
    return [fitted(line, width) for line in lines]


def _range(curve: Curve) -> tuple[float, float]:
    if not curve.dots:
        return 0.0, 1.0
    floor = [] if curve.floor is None else [curve.floor]
    return min([*floor, *(dot.low for dot in curve.dots)]), max(dot.high for dot in curve.dots)


def _part(value: float, low: float, high: float) -> float:
    """How far a value is from *low* to *high*: 0 to 1; halved first, since their difference may be no number."""
    span = high / 2 - low / 2
    return (value / 2 - low / 2) / span if span > 0 else 0.5


def _drawn(
    dots: Sequence[Dot], across: Sequence[float], extent: tuple[float, float], columns: int, rows: int
) -> list[list[int]]:
    """The letters of each row."""
    grid = [[_EMPTY] * columns for _ in range(rows)]

    def down(value: float) -> int:
        return round((1 - _part(value, *extent)) * (4 * rows - 1))

    def fill(x: int, top: int, bottom: int) -> None:
        for y in range(top, bottom + 1):
            grid[y // 4][x // 2] |= _DOTS[x % 2][y % 4]

    before: tuple[int, int, float] | None = None
    for dot, part in zip(dots, across, strict=True):
        x, y = round(part * (2 * columns - 1)), down(dot.last)
        if before is not None and dot.step > before[2]:
            _link(fill, before[:2], (x, y))
        fill(x, down(dot.high), down(dot.low))
        before = x, y, dot.step
    return grid


def _link(fill: Callable[[int, int, int], None], start: tuple[int, int], end: tuple[int, int]) -> None:
    """A line without a gap."""
    (x0, y0), (x1, y1) = start, end
    y = y0
    for x in range(x0 + 1, x1 + 1):
        then = round(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
        fill(x, min(y, then), max(y, then))
        y = then


def _letter(dots: int) -> str:
    """A blank without dots, since some fonts draw rings there."""
    return " " if dots == _EMPTY else chr(dots)


def _axis(marked: Sequence[float], first: float, last: float, columns: int) -> Line:
    """The steps at both ends, and a ``!`` below each value that was not finite."""
    left, right = f"step {first:.0f}", f"{last:.0f}"
    gap = columns - len(left) - len(right)
    line: Line = [(left + " " * gap + right if gap > 0 else right.rjust(columns), "dim")]
    for place in sorted({round(_part(step, first, last) * (columns - 1)) for step in marked}):
        line = _with(line, place)
    return line


def _with(line: Line, place: int) -> Line:
    """A line whose last piece has a mark at a column."""
    *before, (text, ink) = line
    at = place - wide(before)
    return [*before, (text[:at], ink), ("!", "critical"), (text[at + 1 :], ink)]
