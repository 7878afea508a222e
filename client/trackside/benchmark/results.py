"""Results, from measured rounds: percentiles, throughput, facts, agreement and comparisons, with intervals.

As JSON, as sentences, as numbers by key, and as a part of a run: pushed numbers, results, and an event for each variant under each load.

**Percentiles.** The p99 of 71 samples is the slowest of them, and twelve equal measurements differ by a quarter in it. A
percentile therefore has a number only from the count of samples on at which both ends of its interval lie among them: 368 for
p99. The ends are fractional order statistics (Hutson 1999), which cover a percentile with 95 % where those of whole ranks
cover more. What differs between processes widens the interval: noise in bursts, and where code and data lie in memory.

**Ratios of two paired variants.** Each round measures all variants in random order, so that without an effect the logarithm of
their ratio is as likely positive as negative, whatever the machine does meanwhile: the interval of its median is that of the
sign test. Two copies of one function differ all the same, by where they lie in memory and caches (Mytkowicz 2009), which no
repetition in the same process averages out: `PLACEMENT` widens each interval.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, exp, floor, inf, isfinite, log, sqrt
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

import msgspec

from trackside.benchmark.messages import (
    LATENCY,
    OUTCOMES,
    PERCENTILES,
    REQUESTS,
    TOKENS,
    Failure,
    Load,
    ProcessAnswer,
    Round,
)
from trackside.benchmark.rounds import settled
from trackside.distributions import TAIL, beta_probability, root, t_quantile

LEAST_PARTS = 3  # from which a mean has an interval
PLACEMENT = 0.003  # in 25 processes, copies of a function of 50 us differed by up to 0.19 %
MOST_BETWEEN = log(3)  # wider intervals between processes show nothing


class Interval(NamedTuple):
    """A value with the ends of its 95 % interval; None for what the samples do not show, for a *reason*."""

    value: float | None
    low: float | None
    high: float | None
    reason: str = ""


class VariantRatio(NamedTuple):
    """The ratio of two variants."""

    shift: float  # its logarithm
    noise: float  # half the width of the 95 % interval of the logarithm; *inf* for none
    rounds: int  # paired rounds

    def ratio(self) -> Interval:
        """Return the ratio with its interval."""
        if not isfinite(self.noise):
            return Interval(exp(self.shift), None, None, f"{self.rounds} of {needed(0.5)} rounds of a process")
        return Interval(exp(self.shift), exp(self.shift - self.noise), exp(self.shift + self.noise))


def mean(center: float, parts: Sequence[float], few: str, least: float = -inf, most: float = inf) -> Interval:
    """Return a mean with the interval that independent parts of it show, within bounds; *few* is why it has none."""
    if len(parts) < LEAST_PARTS:
        return Interval(center, None, None, few)
    half = _half_width(parts)
    return Interval(center, max(least, center - half), min(most, center + half))


def _half_width(values: Sequence[float]) -> float:
    """Return half the width of the interval of the mean of independent values; 0 for a single one."""
    count = len(values)
    return t_quantile(1 - TAIL, count - 1) * stdev(values) / sqrt(count) if count > 1 else 0.0


def needed(share: float) -> int:
    """Return the number of independent samples from which a percentile has an interval."""
    return ceil(log(TAIL) / log(max(share, 1 - share)))


def percentile(series: Sequence[Sequence[float]], share: float) -> Interval:
    """Return a percentile of positive samples; the interval contains what differs between several processes.

    Args:
        series: Samples of one process each.
        share: Share of samples below the percentile, such as 0.99.
    """
    samples = sorted(value for values in series for value in values)
    if len(samples) < needed(share):
        return Interval(None, None, None, f"{len(samples)} of {needed(share)} samples")
    value, (low, high) = _quantile(samples, share), _ends(samples, share)
    own = [log(_quantile(sorted(values), share)) for values in series if values]
    between = _half_width(own)
    if between > MOST_BETWEEN:
        return Interval(value, None, None, f"{len(own)} processes differ too much")
    return Interval(value, min(low, value * exp(-between)), max(high, value * exp(between)))


def _quantile(samples: Sequence[float], share: float) -> float:
    """Return a quantile of sorted samples, interpolated."""
    return _at_rank(samples, 1 + share * (len(samples) - 1))


def _ends(samples: Sequence[float], share: float) -> tuple[float, float]:
    """Return the ends of the interval of a quantile, of as many sorted samples as are `needed`."""
    count = len(samples)

    def end(probability: float) -> float:
        # The fractional rank whose order statistic is below the quantile with this probability.
        rank = root(lambda rank: probability - beta_probability(share, rank, count + 1 - rank), 1e-9, count + 1 - 1e-9)
        return _at_rank(samples, rank)

    return end(1 - TAIL), end(TAIL)


def _at_rank(samples: Sequence[float], rank: float) -> float:
    rank = min(max(rank, 1.0), float(len(samples)))
    below = floor(rank)
    above = min(below + 1, len(samples))
    return samples[below - 1] + (rank - below) * (samples[above - 1] - samples[below - 1])


def paired(values: Sequence[float], others: Sequence[float]) -> VariantRatio:
    """Return the ratio of positive values of the same rounds of one process."""
    shifts = sorted(log(one / other) for one, other in zip(values, others, strict=True))
    center = median(shifts)
    if len(shifts) < needed(0.5):
        return VariantRatio(center, inf, len(shifts))
    low, high = _ends(shifts, 0.5)
    return VariantRatio(center, max(high - center, center - low) + PLACEMENT, len(shifts))


def pooled(effects: Sequence[VariantRatio]) -> VariantRatio:
    """Return the effect over several processes: both what differs between them and the noise within each count."""
    effects = [effect for effect in effects if isfinite(effect.noise)] or effects
    shifts = [effect.shift for effect in effects]
    within = sqrt(fmean(effect.noise**2 for effect in effects) / len(effects))
    return VariantRatio(fmean(shifts), max(within, _half_width(shifts)), sum(effect.rounds for effect in effects))


HEADLINES = ("latency_p50_seconds", "latency_p99_seconds", "ttft_p50_seconds", "tpot_p50_seconds", "throughput")
FACTS = ("_bytes", "load_seconds", "call_seconds")  # ends of the names of facts

Contents = dict[str, Any]


class Measurements:
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

    def add(self, finding: ProcessAnswer) -> None:
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


def results(measured: Measurements) -> Contents:
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


def _variant(measured: Measurements, name: str) -> Contents:
    loads = [one for load in measured.loads if (one := _load(measured, load, name))]
    facts = measured.facts.get(name, {})
    first = loads[0] if loads else {}
    return {"name": name, **first, **facts, "agreement": measured.agreement.get(name, {}), "loads": loads}


def _load(measured: Measurements, load: Load, name: str) -> Contents | None:
    rounds = measured.rounds(load, name)
    if not rounds:
        return None
    series = {
        measure: [[one for values in part for one in values[name][measure]] for part in rounds]
        for measure in rounds[0][0][name]
    }
    samples = sum(map(len, series[LATENCY]))
    found: Contents = {"load": str(load), "key": load.key, **msgspec.to_builtins(load), "samples": samples}
    for measure, each in series.items():
        if measure.endswith("_seconds"):
            found[measure] = {f"p{share * 100:g}": percentile(each, share)._asdict() for share in PERCENTILES}
            found[measure]["mean"] = _mean(each)._asdict()
    if TOKENS in series:
        found |= _throughput(_mean(series[TOKENS]), "tokens")
        found[REQUESTS] = _mean(series[REQUESTS])._asdict()
        found["requests"] = measured.counts(load, name)
    else:
        value, low, high, reason = _mean(series[LATENCY])
        value, low, high = (one and load.items / one for one in (value, high, low))
        rate = Interval(value, low, high, reason)
        found |= _throughput(rate, "tokens" if load.length else "items" if load.batch else "calls")
    return found


def _throughput(rate: Interval, unit: str) -> Contents:
    """Return a throughput in units per second."""
    ends = [rate.low, rate.high] if rate.low is not None else None
    return {"throughput": rate.value, "throughput_interval": ends, "throughput_unit": unit}


def _mean(series: Sequence[Sequence[float]]) -> Interval:
    """Return a mean with what differs between processes."""
    means = [fmean(part) for part in series if part]
    if not means:
        return Interval(None, None, None, "no samples")
    center = fmean(one for part in series for one in part)
    return mean(center, means, f"{len(means)} of {LEAST_PARTS} processes", least=center / 1e3)


def _comparisons(measured: Measurements, load: Load, name: str, reference: str) -> Iterator[Contents]:
    rounds = measured.rounds(load, reference, name)
    for measure in rounds[0][0][name] if rounds else ():
        if measure.endswith("_seconds"):
            effects = []
            for part in rounds:
                pairs = [[median(one[each][measure] or [0.0]) for each in (reference, name)] for one in part]
                if usable := [pair for pair in pairs if min(pair) > 0]:
                    effects.append(paired(*zip(*usable, strict=True)))
            if effects:
                found = {"variant": name, "reference": reference, "load": str(load), "key": load.key}
                yield {**found, "measure": measure, **_compared(pooled(effects))}


def _compared(effect: VariantRatio) -> Contents:
    value, low, high, reason = effect.ratio()
    verdict = "no difference shown"
    if low is None or high is None:
        verdict = "unknown"
    elif low > 1 or high < 1:
        verdict = "faster" if low > 1 else "slower"
    faster = {"value": value, "low": low, "high": high}
    return {"rounds": effect.rounds, "times_faster": faster, "verdict": verdict, "reason": reason}


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
            place = _begin(variant["name"], load["key"])
            found[f"{place}throughput"] = load["throughput"]
            if REQUESTS in load:
                found[f"{place}{REQUESTS}"] = load[REQUESTS]["value"]
            for measure, parts in load.items():
                if measure.endswith("_seconds"):
                    name = f"{place}{measure.removesuffix('_seconds')}"
                    found |= {f"{name}_{part}_seconds": interval["value"] for part, interval in parts.items()}
        facts = ((fact, value) for fact, value in variant.items() if fact == "parameters" or fact.endswith(FACTS))
        found |= {f"{begin}{fact}": value for fact, value in facts}
        found |= {f"{begin}{measure}": interval["value"] for measure, interval in variant["agreement"].items()}
    for one in contents["comparisons"]:
        if one["measure"] == LATENCY:
            place, faster = _begin(one["variant"], one["key"]), one["times_faster"]
            found |= {f"{place}speedup": faster["value"]}
            found |= {f"{place}speedup_{end}": faster[end] for end in ("low", "high")}
    return {key: value for key, value in found.items() if value is not None}


def _begin(variant: str, load: str = "") -> str:
    """Return the beginning of keys that conditions of `trackside compare` can have without quotes."""
    return "/".join(["model", re.sub(r"[^A-Za-z0-9_.]", "_", variant), *filter(None, [load]), ""])


def publish(run: Any, contents: Mapping[str, Any]) -> None:
    """Push all numbers of `results`, and add the most important ones and the sentences to the results of the run.

    Args:
        run: The `trackside.Run`.
        contents: The results, maybe with ``unfit`` and ``ended``.
    """
    numbers = flat(contents)
    run.push(numbers, step=0)
    for variant in contents["variants"]:
        for load in variant["loads"]:
            place = variant["name"], load["load"]
            against = [one for one in contents["comparisons"] if (one["variant"], one["load"]) == place]
            faster = {one["measure"]: one["times_faster"] for one in against}
            run.event("benchmark", variant=variant["name"], times_faster=faster, **load)
    ends = {key: key.rpartition("/")[2] for key in numbers}
    headlines = {key: numbers[key] for key, end in ends.items() if end in HEADLINES or key.count("/") == 2}
    sentences = {
        " ".join(filter(None, (one["variant"], one["key"], one["measure"]))): sentence(one)
        for one in contents["comparisons"]
        if one["verdict"] in {"faster", "slower"}
    }
    failures = "; ".join(map(failure, contents["failures"]))
    marks = {"unfit": contents.get("unfit"), "ended": contents.get("ended"), "failures": failures}
    run.summary({**headlines, **sentences, **{mark: text or None for mark, text in marks.items()}})


def failure(one: Mapping[str, Any]) -> str:
    """Return why a variant could not be measured, in one line."""
    return " ".join(filter(None, (one["variant"], one["load"]))) + f" failed: {one['reason']}"
