"""The results of `trackside benchmark`: their tables and remarks, and what a report shows of those that a run has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from trackside.benchmark.publishing import MEASURED
from trackside.benchmark.results import sentence
from trackside_daemon.documents.elements import Document, Table, listing
from trackside_daemon.model.text import byte_size, counted, duration, number, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Contents = Mapping[str, Any]

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
TIMES = {"latency_seconds": "", "ttft_seconds": "TTFT ", "tpot_seconds": "TPOT ", "itl_seconds": "ITL "}
FACTS = {
    "load_seconds": "loads in",
    "first_call_seconds": "first call",
    "parameters": "parameters",
    "weights_bytes": "weights",
    "disk_bytes": "on disk",
    "memory_bytes": "peak host memory",
    "device_memory_bytes": "peak device memory",
}
AGREEMENT = {
    "largest_difference": "largest difference",
    "cosine": "cosine",
    "top1": "top-1",
    "kl": "KL",
    "perplexity": "perplexity ratio",
    "exact_match": "exact match",
}


HEADER = ("Load", "Variant", "Latency: median, p5 to p95", "Throughput", "Against the first variant")
OUTER = (0.05, 0.95)

Amount = Annotated[float, msgspec.Meta(ge=0, le=1e300)]  # a finite one: JSON has no others
Point = tuple[Amount, Amount, Amount | None, Amount | None]  # share of samples, value, and the ends of its interval

CHARTED = ("curve", "throughput", "throughput_unit", "throughput_interval", "batch", "length", "concurrency", "rate")


def document(contents: Contents) -> Document:
    """Return latency and throughput, sizes, the agreement of the variants, and remarks."""
    return Document(
        "Benchmark",
        [
            _latencies(contents),
            _selected("sizes", contents, FACTS, lambda name, variant: _fact(name, variant.get(name))),
            _selected(
                "agreement", contents, AGREEMENT, lambda name, variant: _interval(variant["agreement"].get(name))
            ),
            listing("remarks", remarks(contents)),
        ],
    )


def remarks(contents: Contents) -> Iterator[str]:
    """Yield what the results show, and what is wrong with them."""
    yield from (sentence(one) for one in contents["comparisons"] if one["measure"] != "itl_seconds")
    for variant in contents["variants"]:
        for load in variant["loads"]:
            requests = load.get("requests", {})
            if lost := [f"{count} {kind}" for kind, count in requests.items() if count and kind != "completed"]:
                yield f"{_place(variant, load)}: {sum(requests.values())} requests, of them {', '.join(lost)}"
    for failure in contents["failures"]:
        yield f"{failure['variant']} {failure['load']}".strip() + f" failed: {failure['reason']}"
    yield from contents.get("notes", ())
    if contents.get("unfit"):
        yield f"unfit: {contents['unfit']}; ratios of variants hold, times are those of a disturbed machine"
    if contents.get("ended"):
        yield f"ended early: {contents['ended']}; the results are those of what was measured until then"


def _latencies(contents: Contents) -> Table:
    loads = [(variant, load) for variant in contents["variants"] for load in variant["loads"]]
    order = list(dict.fromkeys(load["load"] for _, load in loads))
    loads.sort(key=lambda pair: order.index(pair[1]["load"]))
    times = [name for name in TIMES if any(name in load for _, load in loads)]
    parts = [(name, part) for name in times for part in ("p50", "p99")]
    header = ["load", "variant", *(f"{TIMES[name]}{part}" for name, part in parts), "throughput", "samples"]
    rows = [
        [
            load["load"] or "-",
            variant["name"],
            *(_time(load.get(name, {}).get(part)) for name, part in parts),
            _throughput(load),
            f"{load['samples']:,}",
        ]
        for variant, load in loads
    ]
    return Table("latency and throughput", header, rows, "  " + ">" * len(parts) + ">>")


def _throughput(load: Contents) -> str:
    value = load["throughput"]
    text = "-" if value is None else f"{number(value)} {load['throughput_unit']}/s"
    if "goodput_per_second" in load:
        text += f", {load['goodput_per_second']['value']:.3g} good requests/s"
    return text


def _selected(title: str, contents: Contents, names: Mapping[str, str], cell: Callable[[str, Contents], str]) -> Table:
    rows = [[variant["name"], *(cell(name, variant) for name in names)] for variant in contents["variants"]]
    used = [0, *(place for place in range(1, len(names) + 1) if any(row[place] != "-" for row in rows))]
    header = ["variant", *names.values()]
    kept = [[row[place] for place in used] for row in rows if len(used) > 1 and set(row[1:]) != {"-"}]
    return Table(title, [header[place] for place in used], kept, "<" + ">" * len(names))


def _fact(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name.endswith("_seconds"):
        return _time({"value": value, "low": None, "high": None})
    return byte_size(value) if name.endswith("_bytes") else number(round(value))


def _interval(interval: Contents | None, scale: float = 1.0, unit: str = "", digits: int = 4) -> str:
    """Return a value with its interval, or why it has none."""
    if interval is None:
        return "-"
    if interval["value"] is None:
        return f"({interval['reason']})"
    value, low, high = (
        "" if interval[part] is None else f"{interval[part] / scale:,.{digits}g}" for part in ("value", "low", "high")
    )
    reason = f"({interval['reason']})" if interval.get("reason") else ""
    return " ".join(filter(None, (value, f"[{low}, {high}]" if low else "", unit, reason)))


def _time(interval: Contents | None) -> str:
    """Return a duration with three digits, its interval and its unit."""
    value = (interval or {}).get("value") or 0.0
    scale, unit = next((one for one in UNITS if value >= one[0]), UNITS[-1])
    return _interval(interval, scale, unit, 3)


def _place(variant: Contents, load: Contents) -> str:
    return f"{variant['name']} {load['load']}".strip()


class Measured(msgspec.Struct):
    """The fields of an event; other events of this kind are those of the training code."""

    variant: str
    load: str
    latency_seconds: dict[str, dict[str, Any]]
    curve: list[Point]
    throughput: Amount | None = None
    throughput_unit: str = ""
    throughput_interval: tuple[Amount, Amount] | None = None
    batch: Amount = 0.0
    length: Amount = 0.0
    concurrency: Amount = 0.0
    rate: Amount = 0.0
    samples: int = 0
    times_faster: dict[str, dict[str, float | None]] = {}


def measured(report: Mapping[str, Any]) -> list[Measured]:
    """Return what benchmarks measured last of each variant under each load, by load."""
    found: dict[tuple[str, str], Measured] = {}
    for event in report["events"]:
        if event["kind"] == MEASURED:
            try:
                one = msgspec.convert(event["fields"], Measured)
            except msgspec.ValidationError:
                continue
            found[one.load, one.variant] = one
    loads = [load for load, _ in found]
    return sorted(found.values(), key=lambda one: loads.index(one.load))


def charted(reports: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the charts show, as ``benchmark_charts.js`` reads it; the variants of several runs have the run's name."""
    return [
        {
            "load": shown(one.load),
            "variant": f"{name}: {shown(one.variant)}" if len(reports) > 1 else shown(one.variant),
            **{field: getattr(one, field) for field in CHARTED},
        }
        for name, report in zip(names, reports, strict=True)
        for one in measured(report)
    ]


def rows(report: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Yield a row for each variant under each load."""
    for one in measured(report):
        speed = "-" if one.throughput is None else f"{number(one.throughput)} {one.throughput_unit}/s"
        yield one.load or "-", one.variant, _latency(one), speed, _effect(one)


def _at(one: Measured, share: float) -> float | None:
    return next((value for place, value, *_ in one.curve if place == share), None)


def _latency(one: Measured) -> str:
    median, low, high = _number(one.latency_seconds.get("p50", {}).get("value")), _at(one, OUTER[0]), _at(one, OUTER[1])
    ends = "" if low is None or high is None else f" ({duration(low)} to {duration(high)})"
    return f"{duration(median)}{ends}, {counted(one.samples, 'sample')}"


def _effect(one: Measured) -> str:
    faster = one.times_faster.get("latency_seconds", {})
    low, high = faster.get("low"), faster.get("high")
    if low is None or high is None:
        return "-"
    return f"{low:.3g} to {high:.3g} times as fast"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
