"""Results of a benchmark as text, for the terminal and for Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside.benchmark.results import sentence
from trackside_daemon.cli.output import table
from trackside_daemon.model.text import byte_size, number

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


def lines(contents: Contents) -> Iterator[str]:
    """Yield the results as text."""
    for header, rows in tables(contents):
        if rows:
            yield from table(header, rows, right="  " + ">" * len(header))
            yield ""
    yield from remarks(contents)


def markdown(contents: Contents) -> Iterator[str]:
    """Yield the results as Markdown."""
    for header, rows in tables(contents):
        if rows:
            yield f"| {' | '.join(header)} |"
            yield f"|{'---|' * len(header)}"
            yield from (f"| {' | '.join(row)} |" for row in rows)
            yield ""
    yield from (f"- {remark}" for remark in remarks(contents))


def tables(contents: Contents) -> Iterator[tuple[Sequence[str], Sequence[Sequence[str]]]]:
    """Yield header and rows of latency and throughput, of sizes, and of the agreement."""
    yield _latency(contents)
    yield _selected(contents, FACTS, lambda name, variant: _fact(name, variant.get(name)))
    yield _selected(contents, AGREEMENT, lambda name, variant: _interval(variant["agreement"].get(name)))


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


def _latency(contents: Contents) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
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
    return header, rows


def _throughput(load: Contents) -> str:
    value = load["throughput"]
    text = "-" if value is None else f"{number(value)} {load['throughput_unit']}/s"
    if "goodput_per_second" in load:
        text += f", {load['goodput_per_second']['value']:.3g} good requests/s"
    return text


def _selected(
    contents: Contents, names: Mapping[str, str], cell: Callable[[str, Contents], str]
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    rows = [[variant["name"], *(cell(name, variant) for name in names)] for variant in contents["variants"]]
    used = [0, *(place for place in range(1, len(names) + 1) if any(row[place] != "-" for row in rows))]
    header = ["variant", *names.values()]
    kept = [[row[place] for place in used] for row in rows if len(used) > 1 and set(row[1:]) != {"-"}]
    return [header[place] for place in used], kept


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
