"""The tables of what a diagnosis measured: resources, trends, the difference from the baseline, advice, and what is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.model.text import measured, number, percent, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Contents = Mapping[str, Any]

STATISTICS = ("mean", "std", "min", "max", "p50", "p95")


def effects(report: Contents) -> Iterator[Sequence[str]]:
    """Yield the rows of what differs from the baseline: quantity, value, the baseline's value, and the ratio."""
    for effect in report["diagnosis"]["comparison"]["effects"]:
        if effect["ratio"] is not None:
            ends = [percent(end - 1, "+") for end in (effect["low"], effect["high"]) if end is not None]
            ratio = percent(effect["ratio"] - 1, "+") + (f" ({ends[0]} to {ends[1]})" if ends else "")
            name = shown(effect["quantity"]) + (f" ({effect['unit']})" if effect["unit"] else "")
            yield name, number(effect["value"]), number(effect["baseline"]), ratio


def trends(report: Contents) -> Iterator[Sequence[str]]:
    """Yield the rows of the trends: key, change per 1,000 steps, its interval, R² and p."""
    for trend in report["diagnosis"]["trends"]:
        interval = f"{number(trend['low'])} to {number(trend['high'])}"
        yield shown(trend["key"]), number(trend["slope"]), interval, f"{trend['r_squared']:.2f}", number(trend["p"])


def suggestions(report: Contents) -> Iterator[Sequence[str]]:
    """Yield the rows of the advice for the next run."""
    for one in report["diagnosis"]["suggestions"]:
        yield shown(one["summary"]), "; ".join(shown(part["text"]) for part in one["evidence"]), one["advice"]


def unknown(report: Contents) -> Iterator[Sequence[str]]:
    """Yield the rows of what is not known, and why."""
    return ((shown(one["what"]), shown(one["why"])) for one in report["diagnosis"]["unknown"])


def resources(report: Contents) -> Iterator[Sequence[str]]:
    """Yield the rows of the resources: quantity, whose, its ranks, and `STATISTICS`."""
    for row in report["diagnosis"]["resources"]:
        ranks = ", ".join(map(str, row["ranks"]))
        values = (measured(row[name], row["unit"]) for name in STATISTICS)
        yield row["quantity"].replace("_", " "), shown(row["of"]) or "all", ranks or "-", *values
