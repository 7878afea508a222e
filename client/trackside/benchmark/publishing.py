"""Results as a part of a run: numbers by key, sentences, and events with intervals and curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from trackside.benchmark.results import flat, sentence

if TYPE_CHECKING:
    from collections.abc import Mapping

MEASURED, VARIANT = "benchmark", "benchmark_variant"
"""Kinds of events: a variant under a load, and what it has without one."""

REGRESSION = "model_regression"
"""The kind of the event that raises the alert ModelRegression; its fields are those of `trackside.Run.alert`."""

HEADLINES = ("latency_p50_seconds", "latency_p99_seconds", "ttft_p50_seconds", "tpot_p50_seconds", "throughput")
DIGITS = 6


class Receiver(Protocol):
    """The part of a `trackside.Run` that keeps results."""

    def push(self, values: Mapping[str, Any], /, *, step: int) -> None:
        """See `trackside.Run.push`."""
        ...

    def event(self, kind: str, /, **fields: Any) -> None:
        """See `trackside.Run.event`."""
        ...

    def summary(self, values: Mapping[str, Any], /) -> None:
        """See `trackside.Run.summary`."""
        ...


def publish(run: Receiver, contents: Mapping[str, Any], step: int = 0) -> None:
    """Push all numbers of results at a step, and add the most important ones and the sentences to the run's results.

    Args:
        run: The run.
        contents: See `trackside.benchmark.results.results`; ``unfit`` and ``ended`` may be added to it.
        step: The step.
    """
    numbers = flat(contents)
    run.push(numbers, step=step)
    for variant in contents["variants"]:
        about = {
            key: value for key, value in variant.items() if key not in {"loads", "name"} and not _is_load(key, variant)
        }
        run.event(VARIANT, variant=variant["name"], **_rounded(about))
        for load in variant["loads"]:
            against = [
                one
                for one in contents["comparisons"]
                if (one["variant"], one["load"]) == (variant["name"], load["load"])
            ]
            faster = {one["measure"]: one["times_faster"] for one in against}
            run.event(MEASURED, variant=variant["name"], **_rounded({**load, "times_faster": faster}))
    per_load = {key: value for key, value in numbers.items() if key.rpartition("/")[2] in HEADLINES}
    facts = {key: value for key, value in numbers.items() if key.count("/") == 2 and key not in per_load}
    run.summary({**per_load, **facts})
    for comparison in contents["comparisons"]:
        if comparison["verdict"] in {"faster", "slower"}:
            key = f"{comparison['variant']} {comparison['key']} {comparison['measure']}".replace("  ", " ")
            run.summary({key: sentence(comparison)})
    marks = {mark: contents.get(mark) or None for mark in ("unfit", "ended")}
    failures = [
        " ".join(filter(None, (one["variant"], one["load"]))) + f": {one['reason']}" for one in contents["failures"]
    ]
    run.summary({**marks, "failures": "; ".join(failures) or None})


def _is_load(key: str, variant: Mapping[str, Any]) -> bool:
    """Return whether a key of a variant repeats that of its first load."""
    return bool(variant["loads"]) and key in variant["loads"][0]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value
