"""Measured rounds, and the results as JSON: percentiles, throughput, facts, agreement and comparisons, with intervals."""

from __future__ import annotations

import re
from itertools import pairwise
from math import isfinite, sqrt
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any

from trackside.benchmark.distributions import t_quantile
from trackside.benchmark.effects import FIRST_LOOK, Effect, paired, pooled
from trackside.benchmark.quantiles import Interval, at_share, needed, percentile
from trackside.benchmark.rounds import LATENCY, PERCENTILES, Load, Round, settled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SHARES = (0.01, 0.05, *(part / 10 for part in range(1, 10)), 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999)
"""Shares of samples at which the curve of a distribution is drawn, where there are enough."""

RATE = "tokens_per_second"  # of an endpoint, measured in each round
FACTS = ("_bytes", "load_seconds", "call_seconds")  # ends of the names of facts
OUTCOMES = ("completed", "error", "timeout", "cut")  # of its requests
LEAST_PROCESSES = 3  # from which the noise of a mean is what differs between processes
PARTS = 16  # consecutive parts of the samples whose means show it otherwise

Contents = dict[str, Any]


class Measured:
    """All that processes have measured; each begins with `begin`.

    Args:
        names: Names of the variants, the reference first.

    Attributes:
        facts: Facts of each variant alone.
        agreement: How the outputs of each variant agree with the reference.
        failures: Variant, load (None for all), and reason.
        notes: What else is to be known.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.facts: dict[str, dict[str, float]] = {}
        self.agreement: dict[str, dict[str, Any]] = {}
        self.failures: list[tuple[str, Load | None, str]] = []
        self.notes: list[str] = []
        self._processes: list[dict[Load, list[Round]]] = []

    def begin(self) -> None:
        """Begin the measurements of one more process."""
        self._processes.append({})

    def round(self, load: Load, values: Round) -> None:
        """See `trackside.benchmark.rounds.Report`."""
        self._processes[-1].setdefault(load, []).append(values)

    def failed(self, name: str, load: Load | None, reason: str) -> None:
        """See `trackside.benchmark.rounds.Report`; the same failure of several processes counts once."""
        if (name, load, reason) not in self.failures:
            self.failures.append((name, load, reason))

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
    """Return ``variants`` and ``comparisons``, as docs/benchmark.md describes them."""
    reference = measured.names[0]
    return {
        "variants": [_variant(measured, name) for name in measured.names],
        "comparisons": [
            comparison
            for load in measured.loads
            for name in measured.names[1:]
            for comparison in _comparisons(measured, load, name, reference)
        ],
        "failures": [
            {"variant": name, "load": "" if load is None else str(load), "reason": why}
            for name, load, why in measured.failures
        ],
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
    measures = [measure for measure in rounds[0][0][name] if measure.endswith("_seconds")]
    series = {
        measure: [[one for values in part for one in values[name][measure]] for part in rounds] for measure in measures
    }
    ordered = sorted(one for part in series[LATENCY] for one in part)
    mean = _mean(series[LATENCY])
    found: Contents = {"load": str(load), "key": load.key, **_fields(load), "samples": len(ordered)}
    for measure, each in series.items():
        found[measure] = {f"p{share * 100:g}": percentile(each, share)._asdict() for share in PERCENTILES}
        found[measure]["mean"] = _mean(each)._asdict()
    if RATE in rounds[0][0][name]:
        found |= _rates(rounds, name)
        found["requests"] = measured.counts(load, name)
    else:
        rate = _inverse(mean, load.items)
        found |= _throughput(rate, "tokens" if load.length else "items" if load.batch else "calls")
    found["curve"] = [_point(series[LATENCY], ordered, share) for share in SHARES if len(ordered) >= needed(share)]
    return found


def _point(series: Sequence[Sequence[float]], ordered: Sequence[float], share: float) -> list[float | None]:
    """Return a share of samples, the value there, and the ends of its interval."""
    found = percentile(series, share)
    values = (at_share(ordered, share), found.low, found.high)
    return [share, *(None if value is None else float(f"{value:.5g}") for value in values)]


def _inverse(interval: Interval, dividend: float) -> Interval:
    value, high, low = (
        None if one is None else dividend / one for one in (interval.value, interval.low, interval.high)
    )
    return Interval(value, low, high)


def _fields(load: Load) -> Contents:
    return {name: getattr(load, name) for name in ("batch", "length", "concurrency", "rate") if getattr(load, name)}


def _rates(rounds: Sequence[Sequence[Round]], name: str) -> Contents:
    found: Contents = {}
    for measure in ("requests_per_second", "goodput_per_second"):
        found[measure] = _mean([[values[name][measure][0] for values in part] for part in rounds])._asdict()
    return {**_throughput(_mean([[values[name][RATE][0] for values in part] for part in rounds]), "tokens"), **found}


def _throughput(rate: Interval, unit: str) -> Contents:
    """Return a throughput in units per second."""
    ends = [rate.low, rate.high] if rate.low is not None else None
    return {"throughput": rate.value, "throughput_interval": ends, "throughput_unit": unit}


def _mean(series: Sequence[Sequence[float]]) -> Interval:
    """Return a mean over processes, or in fewer than three of them over consecutive parts of the samples."""
    samples = [one for part in series for one in part]
    if not samples:
        return Interval(None, None, None, "no samples")
    means = [fmean(part) for part in series]
    if len(series) < LEAST_PROCESSES:
        count = min(PARTS, len(samples))
        edges = [len(samples) * number // count for number in range(count + 1)]
        means = [fmean(samples[begin:end]) for begin, end in pairwise(edges)]
    center = fmean(samples)
    if len(means) < LEAST_PROCESSES:
        return Interval(center, None, None, f"{len(samples)} samples")
    half = t_quantile(0.975, len(means) - 1) * stdev(means) / sqrt(len(means))
    return Interval(center, max(center / 1e3, center - half), center + half)


def _comparisons(measured: Measured, load: Load, name: str, reference: str) -> Iterator[Contents]:
    rounds = measured.rounds(load, reference, name)
    if not rounds:
        return
    for measure in rounds[0][0][name]:
        if measure.endswith("_seconds") or measure == RATE:
            usable = [
                [one for one in part if all(one[each].get(measure, [0])[:1] > [0] for each in (name, reference))]
                for part in rounds
            ]
            sides = [[[median(one[each][measure]) for one in part] for part in usable] for each in (name, reference)]
            effects = [paired(one, other) for one, other in zip(*sides, strict=True) if one]
            if effects:
                yield _comparison(name, reference, load, measure, pooled(_whole(effects)))


def _whole(effects: Sequence[Effect]) -> Sequence[Effect]:
    """Return the effects with intervals, or if there is none, all."""
    return [effect for effect in effects if isfinite(effect.noise)] or effects


def _comparison(name: str, reference: str, load: Load, measure: str, effect: Effect) -> Contents:
    known = isfinite(effect.noise)
    less = measure.endswith("_seconds")
    faster = (effect.ratio, effect.low, effect.high)
    faster = (1 / effect.ratio, 1 / effect.high, 1 / effect.low if effect.low else 0.0) if less else faster
    verdict = "no difference shown" if not effect.is_different else "faster" if faster[0] > 1 else "slower"
    return {
        "variant": name,
        "reference": reference,
        "load": str(load),
        "key": load.key,
        "measure": measure,
        "ratio": effect.ratio,
        "low": effect.low if known else None,
        "high": effect.high if known else None,
        "rounds": effect.rounds,
        "times_faster": {"value": faster[0], "low": faster[1] if known else None, "high": faster[2] if known else None},
        "verdict": verdict if known else "unknown",
        "reason": "" if known else f"{effect.rounds} rounds, at least {FIRST_LOOK} of a process are needed",
    }


def sentence(comparison: Mapping[str, Any]) -> str:
    """Return a comparison as a sentence, such as ``int8 is 1.42 to 1.51 times faster than fp32 (batch=8)``."""
    names, load = (
        (comparison["variant"], comparison["reference"]),
        f" ({comparison['load']})" if comparison["load"] else "",
    )
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
    rates = (rate for rate in ("requests_per_second", "goodput_per_second") if rate in load)
    return found | {f"{place}{rate}": load[rate]["value"] for rate in rates}


def _begin(variant: str, load: str = "") -> str:
    """Return the beginning of keys that conditions of `trackside compare` can have without quotes."""
    return "/".join(["model", re.sub(r"[^A-Za-z0-9_.]", "_", variant), *filter(None, [load]), ""])
