"""The gate of a comparison: it fails if a condition holds for a group of runs."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

from trackside_daemon.cli.compare.expression import Condition, NotANumberError, Value
from trackside_daemon.cli.errors import CommandError
from trackside_daemon.model.text import number, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.documents.groups import Comparison, Group


def failures(condition: Condition, comparison: Comparison) -> Iterator[str]:
    """Yield a line for each group, except the baseline, for which the condition holds, or has a value that is NaN.

    Raises:
        CommandError: A group or the baseline lacks a value, or the baseline's is NaN.
    """
    for each in comparison.groups:
        if each is comparison.baseline:
            continue

        def read(value: Value, each: Group = each) -> float:
            return _number(value, comparison, each)

        numbers = {value: read(value) for value in condition.values}
        try:
            failed = condition.holds(read)
        except NotANumberError:
            failed = True
        if failed:
            texts = (f"{_text(value)} {number(found)}" for value, found in numbers.items())
            yield f"{shown(each.name)}: {', '.join(texts)}"


def _number(value: Value, comparison: Comparison, each: Group) -> float:
    baseline, is_ratio = comparison.baseline, value.function.startswith("ratio")
    side = baseline if value.baseline else each
    if side is None or (is_ratio and baseline is None):
        raise CommandError(f"--fail-if: {_text(value)} needs a baseline: --baseline RUN, or several runs")
    effect = comparison.effect(each, value.key) or {}
    known = effect.get(_FIELDS.get((value.function, value.baseline), ""))
    if known is not None:
        return float(known)
    nonfinite = effect.get("nonfinite")
    if nonfinite == "baseline" and baseline is not None and (is_ratio or value.baseline):
        raise CommandError(
            f"--fail-if: {shown(value.key)}: values of the baseline {shown(baseline.name)} are NaN or infinite in the last "
            "tenth of the common steps; give another with --baseline RUN"
        )
    if is_ratio or (nonfinite == "value" and not value.baseline and value.function == "mean"):
        return nan
    statistics = comparison.statistics(side, value.key)
    if statistics is None:
        raise CommandError(
            f"--fail-if: {shown(value.key)}: {shown(side.name)} has no such number"
            + (
                "; write spaces around / to divide"
                if "/" in value.key
                else f"; trackside show {shown(side.runs[0]['id'])}"
            )
        )
    return float(getattr(statistics, value.function))


# Fields of an `Effect`, which compares curves at equal steps, by function and by whether the baseline's value is meant.
_FIELDS = {
    ("mean", False): "value",
    ("mean", True): "baseline",
    ("ratio", False): "ratio",
    ("ratio_low", False): "low",
    ("ratio_high", False): "high",
}


def _text(value: Value) -> str:
    inner = f"baseline({value.key})" if value.baseline else value.key
    return inner if value.function == "mean" else f"{value.function}({inner})"
