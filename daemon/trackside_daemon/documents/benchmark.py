"""The results of `trackside benchmark`: their tables and remarks."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trackside.benchmark.results import failure, sentence
from trackside_daemon.documents.elements import Document, Table, listing
from trackside_daemon.model.text import byte_size, number

Contents = Mapping[str, Any]


UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
TIMES = {"latency_seconds": "", "ttft_seconds": "TTFT ", "tpot_seconds": "TPOT "}
FACTS = {
    "load_seconds": "loads in",
    "first_call_seconds": "first call",
    "parameters": "parameters",
    "weights_bytes": "weights",
    "memory_bytes": "peak host memory",
    "device_memory_bytes": "peak device memory",
}
AGREEMENT = {"largest_difference": "largest difference", "cosine": "cosine", "top1": "top-1", "kl": "KL"}


def document(contents: Contents) -> Document:
    """Return latency and throughput, sizes, the agreement of the variants, and remarks."""
    return Document(
        "Benchmark",
        [
            _latencies(contents),
            _selected("sizes", contents, FACTS, lambda name, variant: _fact(name, variant.get(name))),
            _selected("agreement", contents, AGREEMENT, lambda name, one: _interval(one["agreement"].get(name))),
            listing("remarks", remarks(contents)),
        ],
    )


def remarks(contents: Contents) -> Iterator[str]:
    """Yield what the results show, and what is wrong with them."""
    yield from map(sentence, contents["comparisons"])
    for variant in contents["variants"]:
        for load in variant["loads"]:
            requests = load.get("requests", {})
            if lost := [f"{count} {kind}" for kind, count in requests.items() if count and kind != "completed"]:
                place = f"{variant['name']} {load['load']}".strip()
                yield f"{place}: {sum(requests.values())} requests, of them {', '.join(lost)}"
    yield from map(failure, contents["failures"])
    yield from contents.get("notes", ())
    if contents.get("unfit"):
        yield f"unfit: {contents['unfit']}; ratios of variants hold, times are those of a disturbed machine"
    if contents.get("ended"):
        yield f"ended early: {contents['ended']}; the results are those of what was measured until then"


def _latencies(contents: Contents) -> Table:
    found = [(variant["name"], load) for variant in contents["variants"] for load in variant["loads"]]
    loads = list(dict.fromkeys(load["load"] for _, load in found))
    columns = [(name, part) for name in TIMES if any(name in load for _, load in found) for part in ("p50", "p99")]
    header = ["load", "variant", *(f"{TIMES[name]}{part}" for name, part in columns), "throughput", "samples"]
    rows = [
        (
            load["load"] or "-",
            variant,
            *(_time(load[name][part]) for name, part in columns),
            _throughput(load),
            f"{load['samples']:,}",
        )
        for variant, load in sorted(found, key=lambda pair: loads.index(pair[1]["load"]))
    ]
    return Table("latency and throughput", header, rows, "  " + ">" * (len(columns) + 2), "~")


def _throughput(load: Contents) -> str:
    value = load["throughput"]
    return "-" if value is None else f"{number(value)} {load['throughput_unit']}/s"


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
