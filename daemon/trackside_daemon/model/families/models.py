"""The families of what `trackside benchmark` measures, and the keys that it pushes them under."""

from __future__ import annotations

from trackside_daemon.model.families.training import RANK
from trackside_daemon.model.metric import Metric, define

_VARIANT = (*RANK, "variant")
_LOAD = (*_VARIANT, "load")


def _gauge(name: str, text: str, labels: tuple[str, ...] = _VARIANT) -> Metric:
    return define(f"trackside_model_{name}", f"{text}, as trackside benchmark measured it.", *labels)


_TIMES = {
    "latency": "Duration of a call or a request",
    "ttft": "Time to first token",
    "tpot": "Time per output token after the first",
}
_AGREEMENT = _gauge("agreement", "Agreement of the outputs with those of the first variant", (*_VARIANT, "measure"))
_SPEEDUP = _gauge("speedup_ratio", "How many times as fast as the first variant", (*_LOAD, "bound"))
_PERCENTILES = {"p50": "50", "p90": "90", "p99": "99"}

SERIES: dict[str, tuple[Metric, tuple[str, ...]]] = {
    "throughput": (_gauge("throughput_per_second", "Inputs, tokens or calls per second", _LOAD), ()),
    "requests_per_second": (_gauge("requests_per_second", "Completed requests per second", _LOAD), ()),
    "parameters": (_gauge("parameters", "Number of parameters"), ()),
    "weights_bytes": (_gauge("weights_bytes", "Weights in memory"), ()),
    "memory_bytes": (_gauge("memory_bytes", "Peak host memory of loading and one call"), ()),
    "device_memory_bytes": (_gauge("device_memory_bytes", "Peak device memory"), ()),
    "load_seconds": (_gauge("load_seconds", "Time to load"), ()),
    "first_call_seconds": (_gauge("first_call_seconds", "Duration of the first call"), ()),
    "speedup": (_SPEEDUP, ("value",)),
    "speedup_low": (_SPEEDUP, ("low",)),
    "speedup_high": (_SPEEDUP, ("high",)),
    **{name: (_AGREEMENT, (name,)) for name in ("largest_difference", "cosine", "top1", "kl")},
}
"""By the last part of a key: the family, and the values of its labels after variant and load."""

for _name, _text in _TIMES.items():
    _percentile = _gauge(f"{_name}_seconds", _text, (*_LOAD, "percentile"))
    _mean = _gauge(f"{_name}_mean_seconds", f"Mean: {_text[0].lower()}{_text[1:]}", _LOAD)
    SERIES |= {f"{_name}_{part}_seconds": (_percentile, (value,)) for part, value in _PERCENTILES.items()}
    SERIES[f"{_name}_mean_seconds"] = (_mean, ())

FAMILIES = list(dict.fromkeys(metric for metric, _ in SERIES.values()))
BEGIN = "model/"


def series(key: str, rank: tuple[str, ...]) -> tuple[Metric, tuple[str, ...]] | None:
    """Return the series of a key ``model/VARIANT/MEASURE`` or ``model/VARIANT/LOAD/MEASURE``; None for other keys."""
    if not key.startswith(BEGIN):
        return None
    variant, _, rest = key.removeprefix(BEGIN).partition("/")
    load, _, measure = rest.rpartition("/")
    if not variant or measure not in SERIES:
        return None
    metric, more = SERIES[measure]
    return metric, (*rank, variant, *((load,) if "load" in metric.labels else ()), *more)
