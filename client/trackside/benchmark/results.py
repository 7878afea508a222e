"""Results, from measured rounds: percentiles, throughput, facts, agreement and comparisons, with intervals.

As JSON, as sentences, as numbers by key, and as a part of a run: pushed numbers, results, and events with curves.
"""

from __future__ import annotations

import re
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from trackside.benchmark.intervals import (
    LEAST_PARTS,
    Interval,
    at_share,
    mean,
    needed,
    paired,
    percentile,
    pooled,
    split,
)
from trackside.benchmark.messages import LATENCY, OUTCOMES, PERCENTILES, RATES, TOKENS, Failure, Finding, Load, Round
from trackside.benchmark.rounds import settled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trackside.benchmark.intervals import Effect

MEASURED, VARIANT = "benchmark", "benchmark_variant"
"""Kinds of events: a variant under a load, and what it has without one."""

REGRESSION = "model_regression"
"""The kind of the event that raises the alert ModelRegression; its fields are those of `trackside.Run.alert`."""

HEADLINES = ("latency_p50_seconds", "latency_p99_seconds", "ttft_p50_seconds", "tpot_p50_seconds", "throughput")
DIGITS = 6  # of the numbers of events

SHARES = (0.01, 0.05, *(part / 10 for part in range(1, 10)), 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999)
"""Shares of samples at which the curve of a distribution is drawn, where there are enough."""

FACTS = ("_bytes", "load_seconds", "call_seconds")  # ends of the names of facts
PARTS = 16  # consecutive parts of the samples, whose means show the noise if there are too few processes

Contents = dict[str, Any]


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


class Measured:
    """All that processes have measured; each begins with `begin`.

    Args:
        names: Names of the variants, the reference first.

    Attributes:
        facts: Facts of each variant alone.
        agreement: How the outputs of each variant agree with the reference.
        failures: What failed.
        notes: What else is to be known.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.facts: dict[str, dict[str, float]] = {}
        self.agreement: dict[str, dict[str, Any]] = {}
        self.failures: list[Failure] = []
        self.notes: list[str] = []
        self._processes: list[dict[Load, list[Round]]] = []

    def begin(self) -> None:
        """Begin the measurements of one more process."""
        self._processes.append({})

    def add(self, finding: Finding) -> None:
        """Add a finding of the process; the same failure of several processes counts once."""
        self.facts |= finding.facts
        self.agreement |= finding.agreement
        self.notes += filter(None, [finding.note])
        if finding.load is not None:
            self._processes[-1].setdefault(finding.load, []).extend(finding.rounds)
        if finding.failed is not None and finding.failed not in self.failures:
            self.failures.append(finding.failed)

    @property
    def loads(self) -> list[Load]:
        """The loads that were measured."""
        return list(dict.fromkeys(load for process in self._processes for load in process))

    def rounds(self, load: Load, *names: str) -> list[list[Round]]:
        """Return the rounds of each process after the warm-up, in which all these variants have samples."""
        found = (settled(process.get(load, ()), names) for process in self._processes)
        return [rounds for rounds in found if rounds]

    def counts(self, load: Load, name: str) -> dict[str, int]:
        """Return the requests of an endpoint by their outcome, with the warm-up; empty for other targets."""
        rounds = [values[name] for process in self._processes for values in process.get(load, ()) if name in values]
        return {kind: int(sum(one[kind][0] for one in rounds)) for kind in OUTCOMES if rounds and kind in rounds[0]}


def results(measured: Measured) -> Contents:
    """Return ``variants``, ``comparisons``, ``failures`` and ``notes``, as docs/benchmark.md describes them."""
    reference, *others = measured.names
    return {
        "variants": [_variant(measured, name) for name in measured.names],
        "comparisons": [
            one for load in measured.loads for name in others for one in _comparisons(measured, load, name, reference)
        ],
        "failures": [{**msgspec.to_builtins(one), "load": str(one.load or "")} for one in measured.failures],
        "notes": measured.notes,
    }


def _variant(measured: Measured, name: str) -> Contents:
    loads = [one for load in measured.loads if (one := _load(measured, load, name))]
    facts = measured.facts.get(name, {})
    first = {key: value for key, value in loads[0].items() if key != "curve"} if loads else {}
    return {"name": name, **first, **facts, "agreement": measured.agreement.get(name, {}), "loads": loads}


def _load(measured: Measured, load: Load, name: str) -> Contents | None:
    rounds = measured.rounds(load, name)
    if not rounds:
        return None
    series = {
        measure: [[one for values in part for one in values[name][measure]] for part in rounds]
        for measure in rounds[0][0][name]
    }
    ordered = sorted(one for part in series[LATENCY] for one in part)
    found: Contents = {"load": str(load), "key": load.key, **msgspec.to_builtins(load), "samples": len(ordered)}
    for measure, each in series.items():
        if measure.endswith("_seconds"):
            found[measure] = {f"p{share * 100:g}": percentile(each, share)._asdict() for share in PERCENTILES}
            found[measure]["mean"] = _mean(each)._asdict()
    if TOKENS in series:
        found |= _throughput(_mean(series[TOKENS]), "tokens")
        found |= {rate: _mean(series[rate])._asdict() for rate in RATES}
        found["requests"] = measured.counts(load, name)
    else:
        rate = _mean(series[LATENCY]).map(lambda seconds: load.items / seconds)
        found |= _throughput(rate, "tokens" if load.length else "items" if load.batch else "calls")
    found["curve"] = [_point(series[LATENCY], ordered, share) for share in SHARES if len(ordered) >= needed(share)]
    return found


def _point(series: Sequence[Sequence[float]], ordered: Sequence[float], share: float) -> list[float | None]:
    """Return a share of samples, the value there, and the ends of its interval."""
    found = percentile(series, share)
    values = (at_share(ordered, share), found.low, found.high)
    return [share, *(None if value is None else float(f"{value:.5g}") for value in values)]


def _throughput(rate: Interval, unit: str) -> Contents:
    """Return a throughput in units per second."""
    ends = [rate.low, rate.high] if rate.low is not None else None
    return {"throughput": rate.value, "throughput_interval": ends, "throughput_unit": unit}


def _mean(series: Sequence[Sequence[float]]) -> Interval:
    """Return a mean over processes, or if they are too few over consecutive parts of the samples."""
    parts = [part for part in series if part]
    samples = [one for part in parts for one in part]
    if not samples:
        return Interval(None, None, None, "no samples")
    center, parts = fmean(samples), parts if len(parts) >= LEAST_PARTS else split(samples, PARTS)
    return mean(center, [fmean(part) for part in parts], f"{len(samples)} samples", least=center / 1e3)


def _comparisons(measured: Measured, load: Load, name: str, reference: str) -> Iterator[Contents]:
    rounds = measured.rounds(load, reference, name)
    for measure in rounds[0][0][name] if rounds else ():
        if measure.endswith("_seconds") or measure == TOKENS:
            usable = [
                [one for one in part if all(one[each].get(measure, [0])[:1] > [0] for each in (name, reference))]
                for part in rounds
            ]
            sides = [[[median(one[each][measure]) for one in part] for part in usable] for each in (name, reference)]
            effects = [paired(one, other) for one, other in zip(*sides, strict=True) if one]
            if effects:
                found = {"variant": name, "reference": reference, "load": str(load), "key": load.key}
                yield {**found, "measure": measure, **_compared(pooled(effects), is_time=measure != TOKENS)}


def _compared(effect: Effect, *, is_time: bool) -> Contents:
    value, low, high, reason = ratio = effect.ratio()
    faster = ratio.map(lambda one: 1 / one) if is_time else ratio
    verdict = "no difference shown" if not effect.is_different else "faster" if (faster.value or 0) > 1 else "slower"
    return {
        "ratio": value,
        "low": low,
        "high": high,
        "rounds": effect.rounds,
        "times_faster": {"value": faster.value, "low": faster.low, "high": faster.high},
        "verdict": "unknown" if reason else verdict,
        "reason": reason,
    }


def sentence(comparison: Mapping[str, Any]) -> str:
    """Return a comparison as a sentence, such as ``int8 is 1.42 to 1.51 times faster than fp32 (batch=8)``."""
    names = comparison["variant"], comparison["reference"]
    load = f" ({comparison['load']})" if comparison["load"] else ""
    what = "" if comparison["measure"] == LATENCY else f" in {comparison['measure']}"
    if comparison["verdict"] == "unknown":
        return f"{names[0]} and {names[1]}{what}: too few rounds to compare ({comparison['reason']}){load}"
    low, high = (comparison["times_faster"][end] for end in ("low", "high"))
    if comparison["verdict"] == "faster":
        return f"{names[0]} is {low:.4g} to {high:.4g} times faster than {names[1]}{what}{load}"
    if comparison["verdict"] == "slower":
        return f"{names[0]} is {1 / high:.4g} to {1 / low:.4g} times slower than {names[1]}{what}{load}"
    return f"{names[0]} and {names[1]} show no difference{what}: {low:.4g} to {high:.4g} times as fast{load}"


def flat(contents: Mapping[str, Any]) -> dict[str, float]:
    """Return the results as numbers by key, such as ``model/int8_dynamic/batch8/latency_p50_seconds``."""
    found: dict[str, float | None] = {}
    for variant in contents["variants"]:
        begin = _begin(variant["name"])
        for load in variant["loads"]:
            found |= _flat_load(load, _begin(variant["name"], load["key"]))
        facts = ((fact, value) for fact, value in variant.items() if fact == "parameters" or fact.endswith(FACTS))
        found |= {f"{begin}{fact}": value for fact, value in facts}
        found |= {f"{begin}{measure}": interval["value"] for measure, interval in variant["agreement"].items()}
    for one in contents["comparisons"]:
        if one["measure"] == LATENCY:
            place, faster = _begin(one["variant"], one["key"]), one["times_faster"]
            found |= {f"{place}speedup": faster["value"]}
            found |= {f"{place}speedup_{end}": faster[end] for end in ("low", "high")}
    return {key: value for key, value in found.items() if value is not None}


def _flat_load(load: Mapping[str, Any], place: str) -> dict[str, float | None]:
    found: dict[str, float | None] = {f"{place}throughput": load["throughput"]}
    for measure in (one for one in load if one.endswith("_seconds")):
        name = measure.removesuffix("_seconds")
        found |= {f"{place}{name}_{part}_seconds": interval["value"] for part, interval in load[measure].items()}
    return found | {f"{place}{rate}": load[rate]["value"] for rate in RATES if rate in load}


def _begin(variant: str, load: str = "") -> str:
    """Return the beginning of keys that conditions of `trackside compare` can have without quotes."""
    return "/".join(["model", re.sub(r"[^A-Za-z0-9_.]", "_", variant), *filter(None, [load]), ""])


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
        name, loads = variant["name"], variant["loads"]
        repeated = {"name", "loads", *(loads[0] if loads else ())}
        run.event(VARIANT, variant=name, **_rounded({key: variant[key] for key in variant if key not in repeated}))
        for load in loads:
            place = (name, load["load"])
            against = [one for one in contents["comparisons"] if (one["variant"], one["load"]) == place]
            faster = {one["measure"]: one["times_faster"] for one in against}
            run.event(MEASURED, variant=name, **_rounded({**load, "times_faster": faster}))
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


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value
