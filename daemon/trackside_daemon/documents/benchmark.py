"""The results of `trackside benchmark`: their tables and remarks, and what a report shows of those that a run has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from trackside.benchmark.results import MEASURED, sentence
from trackside_daemon.documents.diagnosis import labelled
from trackside_daemon.documents.elements import Document, Table, listing
from trackside_daemon.model.text import byte_size, number, shown

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

Amount = Annotated[float, msgspec.Meta(ge=0, le=1e300)]  # a finite one: JSON has no others
Point = tuple[Amount, Amount, Amount | None, Amount | None]  # share of samples, value, and the ends of its interval

CHARTED = ("curve", "throughput", "throughput_unit", "throughput_interval", "batch", "length", "concurrency", "rate")


def document(contents: Contents) -> Document:
    """Return latency and throughput, sizes, the agreement of the variants, and remarks."""
    loads = [(variant["name"], load) for variant in contents["variants"] for load in variant["loads"]]
    return Document(
        "Benchmark",
        [
            latencies("latency and throughput", [""], [loads]),
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
                place = f"{variant['name']} {load['load']}".strip()
                yield f"{place}: {sum(requests.values())} requests, of them {', '.join(lost)}"
    for failure in contents["failures"]:
        yield f"{failure['variant']} {failure['load']}".strip() + f" failed: {failure['reason']}"
    yield from contents.get("notes", ())
    if contents.get("unfit"):
        yield f"unfit: {contents['unfit']}; ratios of variants hold, times are those of a disturbed machine"
    if contents.get("ended"):
        yield f"ended early: {contents['ended']}; the results are those of what was measured until then"


def latencies(title: str, labels: Sequence[str], parts: Sequence[Sequence[tuple[str, Contents]]]) -> Table:
    """Return a table of variants under loads, of each run."""
    times = [name for name in TIMES if any(load.get(name) for part in parts for _, load in part)]
    columns = [(name, quantile) for name in times for quantile in ("p50", "p99")]
    effects = any(load.get("times_faster") for part in parts for _, load in part)
    header = ["load", "variant", *(f"{TIMES[name]}{quantile}" for name, quantile in columns), "throughput", "samples"]
    header += ["against the first variant"] if effects else []

    def rows(part: Sequence[tuple[str, Contents]]) -> Iterator[Sequence[str]]:
        order = list(dict.fromkeys(load["load"] for _, load in part))
        for variant, load in sorted(part, key=lambda pair: order.index(pair[1]["load"])):
            measured = (_time(load.get(name, {}).get(quantile)) for name, quantile in columns)
            row = (load["load"] or "-", variant, *measured, _throughput(load), f"{load['samples']:,}")
            yield (*row, _effect(load)) if effects else row

    return labelled(title, header, labels, map(rows, parts), "  " + ">" * (len(columns) + 2))


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


class Interval(msgspec.Struct):
    """A value with its interval, or why it has none."""

    value: Amount | None = None
    low: Amount | None = None
    high: Amount | None = None
    reason: str = ""


class Measured(msgspec.Struct):
    """The fields of an event; other events of this kind are those of the training code."""

    variant: str
    load: str
    latency_seconds: dict[str, Interval]
    curve: list[Point]
    throughput: Amount | None = None
    throughput_unit: str = ""
    throughput_interval: tuple[Amount, Amount] | None = None
    batch: Amount = 0.0
    length: Amount = 0.0
    concurrency: Amount = 0.0
    rate: Amount = 0.0
    samples: int = 0
    ttft_seconds: dict[str, Interval] = {}
    tpot_seconds: dict[str, Interval] = {}
    itl_seconds: dict[str, Interval] = {}
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


def measurements(report: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return what `measured` does as variants with loads."""
    return [(one.variant, msgspec.to_builtins(one)) for one in measured(report)]


def _effect(load: Contents) -> str:
    faster = load["times_faster"].get("latency_seconds", {})
    low, high = faster.get("low"), faster.get("high")
    return "-" if low is None or high is None else f"{low:.3g} to {high:.3g} times as fast"
