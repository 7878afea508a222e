"""The text of a summary for people, in at most 40 lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.captures.summary.bottleneck import milliseconds
from trackside_daemon.captures.summary.parts import PARTS
from trackside_daemon.model.text import counted, cut, duration, percent, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

LINES = 40
RANKS, OPERATORS, FUNCTIONS = 8, 12, 5  # lines of each table
WIDTH = 44  # columns of a name


def text(summary: Mapping[str, Any]) -> list[str]:
    """Return what limits the steps, where their time goes by rank, and the largest operators and functions of one rank."""
    ranks = summary["ranks"]
    lines = [f"rank {rank}: {reason}" for rank, reason in summary["failed"].items()][:RANKS]
    if not ranks:
        return [shown(line) for line in lines]
    found = summary["bottleneck"]
    rank = found.get("last", found["rank"])
    profile = ranks[str(rank)]
    lines += [f"bottleneck: {found['text']}", "", "ms a step" + _columns({part: part for part in ("total", *PARTS)})]
    lines += [_parts(rank, profile["parts"]) for rank, profile in [*ranks.items()][:RANKS]]
    count = len(profile["steps"])
    what = counted(count, "step") if profile["marked"] else "the whole recording, since no optimizer stepped"
    lines += ["", f"rank {rank}, {what}: operators by their own time"]
    lines += [_operator(row) for row in profile["operators"][:OPERATORS]]
    if profile["functions"]:
        lines += ["", f"rank {rank}: Python functions by their own time"]
        lines += [_function(row) for row in profile["functions"][:FUNCTIONS]]
    return [shown(line) for line in lines[:LINES]]


def _parts(rank: str, parts: Mapping[str, float]) -> str:
    named = {"total": parts["seconds"], **{part: parts[part] for part in PARTS}}
    return f"rank {rank:<4}" + _columns({part: milliseconds(seconds) for part, seconds in named.items()})


def _columns(cells: Mapping[str, str]) -> str:
    """Return cells below the names of their columns, which together are narrower than a terminal."""
    return "".join(f"{cell:>{max(5, len(name)) + 2}}" for name, cell in cells.items())


def _operator(row: Mapping[str, Any]) -> str:
    times = " ".join(f"{name} {duration(row[name]):>7}" for name in ("cpu", "gpu") if row[name])
    place = "  ".join(part for part in (row["source"], cut(row["shapes"], WIDTH)) if part)
    return f"  {percent(row['share']):>7}  {times}  {row['count']:>6.4g} x  {cut(row['name'], WIDTH)}  {place}".rstrip()


def _function(row: Mapping[str, Any]) -> str:
    times = f"  {percent(row['share']):>7}  {duration(row['seconds']):>7}"
    return f"{times}  {cut(row['name'], WIDTH)}  {cut(row['inner'], WIDTH)}".rstrip()
