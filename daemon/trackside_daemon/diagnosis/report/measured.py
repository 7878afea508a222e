"""The tables of what a diagnosis measured: resources, trends, the difference from the baseline, advice, and what is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.model.text import number, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Contents = Mapping[str, Any]

STATISTICS = ("mean", "std", "min", "max", "p50", "p95")
_SCALES = {
    "bytes": (2**30, "GiB"),
    "bytes per second": (2**20, "MiB/s"),
    "hertz": (1e9, "GHz"),
    "watts": (1.0, "W"),
    "ratio": (0.01, "%"),
}


def effects(report: Contents) -> Iterator[Sequence[str]]:
    """Yield the rows of what differs from the baseline: quantity, value, the baseline's value, and the ratio."""
    for effect in report["diagnosis"]["comparison"]["effects"]:
        if effect["ratio"] is not None:
            ends = [f"{end - 1:+.1%}" for end in (effect["low"], effect["high"]) if end is not None]
            ratio = f"{effect['ratio'] - 1:+.1%}" + (f" ({ends[0]} to {ends[1]})" if ends else "")
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
        scale, unit = _SCALES.get(row["unit"], (1.0, row["unit"]))
        ranks = ", ".join(map(str, row["ranks"]))
        values = (f"{row[name] / scale:.3g}" for name in STATISTICS)
        yield f"{row['quantity'].replace('_', ' ')} ({unit})", shown(row["of"]) or "all", ranks or "-", *values
