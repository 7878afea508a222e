"""The tables of a report, for HTML and Markdown alike."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from trackside_daemon.diagnosis.costs import JOULES_PER_KWH
from trackside_daemon.diagnosis.report import benchmarks, measured
from trackside_daemon.diagnosis.report.changes import changes
from trackside_daemon.diagnosis.report.configuration import config, result, setting
from trackside_daemon.history.read import layer_ranking
from trackside_daemon.model.configuration import flat
from trackside_daemon.model.text import byte_size, duration, number, percent, shown
from trackside_daemon.model.time_ledger import ACCOUNTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    Contents = Mapping[str, Any]

CELL = 300  # most letters of a cell
ROWS = 500  # most rows of a table
COLORS = 8  # of charts and accounts


class Bar(NamedTuple):
    """A cell with a bar.

    Attributes:
        text: Its text.
        parts: Begin and end of each part, from 0 to 1, and its severity, which selects its color.
    """

    text: str
    parts: Sequence[tuple[float, float, str]]


class Lines(NamedTuple):
    """A cell of several lines."""

    lines: Sequence[str]

    @property
    def text(self) -> str:
        """The lines in one."""
        return " / ".join(self.lines)


Cell: TypeAlias = "str | Bar | Lines"


class Table(NamedTuple):
    """A table with its title; the first cell of each row is its heading."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def names(reports: Sequence[Contents]) -> list[str]:
    """Return a name for each run; those of equal names have their ids too."""
    plain = [shown(report["run"]["name"]) for report in reports]
    return [
        f"{name} ({shown(report['run']['id'])})" if plain.count(name) > 1 else name
        for name, report in zip(plain, reports, strict=True)
    ]


def findings(reports: Sequence[Contents]) -> Iterator[Table]:
    """Yield the summary, and where the time, the energy and the money went."""
    labels = names(reports)
    yield _columns("Summary", labels, map(_summary, reports))
    stated = _columns("Results", labels, [_results(report["run"]) for report in reports])
    yield from [stated] if stated.rows else []
    accounts = list(dict.fromkeys(name for report in reports for name in report["diagnosis"]["ledger"]))
    yield _columns("Where the time went", labels, [_ledger(report, accounts) for report in reports])
    yield from _listed(
        "Causes, and what to try", ("Cause", "Expected gain", "Evidence", "Try", "Check"), _labeled(reports, _causes)
    )
    yield from _measured(reports, "For the next run", "Against the baseline")
    costs = _columns("Energy and costs", labels, [_costs(report["diagnosis"]) for report in reports])
    yield from [costs] if costs.rows else []


def details(reports: Sequence[Contents]) -> Iterator[Table]:
    """Yield the values, the alerts and events, and the configuration."""
    labels = names(reports)
    values = [_values(report["run"]) for report in reports]
    if len(reports) > 1:
        last = [{key: value for key, value, *_ in rows} for rows in values]
        yield _columns("Last values of the lowest rank", labels, last)
    else:
        yield from _listed(
            "Values of the lowest rank", ("Key", "Last", "Lowest", "Highest", "Mean", "Samples"), values[0]
        )
    yield from _measured(reports, "Trends", "Resources")
    yield from _listed("Alerts and events over the time of the run", ("What", "When"), _labeled(reports, _lanes))
    yield from _listed("Alerts", ("Alert", "Severity", "After", "Lasted", "Summary"), _labeled(reports, _alerts))
    yield from _listed(
        "Layers that stand out", [*map(str.capitalize, layer_ranking.HEADER)], _labeled(reports, _layers)
    )
    yield from _listed("Benchmarks", benchmarks.HEADER, _labeled(reports, _benchmarks))
    yield from _listed("Captures", ("Capture", "After", "Summary"), _labeled(reports, _captures))
    yield from _listed("Events", ("Event", "After", "Rank", "Step", "Fields"), _labeled(reports, _events))
    for report in reports:
        yield from _changed(report)
    yield from _measured(reports, "What is not known")
    whole = _columns("Configuration", labels, [_config(report["run"]) for report in reports])
    differing = [row for row in whole.rows if len(set(row[1:])) > 1]
    yield from _listed("What differs in the configuration", whole.header, differing if len(reports) > 1 else [])
    yield from [whole] if whole.rows else []


_MEASURED: Mapping[str, tuple[Sequence[str], Callable[[Contents], Iterator[Sequence[str]]]]] = {
    "For the next run": (("What", "Evidence", "Try"), measured.suggestions),
    "Against the baseline": (("Quantity", "This run", "Baseline", "Difference"), measured.effects),
    "Trends": (("Key", "Per 1,000 steps", "95 % interval", "R²", "p"), measured.trends),
    "Resources": (("Quantity", "Of", "Ranks", *map(str.capitalize, measured.STATISTICS)), measured.resources),
    "What is not known": (("What", "Why"), measured.unknown),
}


def _measured(reports: Sequence[Contents], *titles: str) -> Iterator[Table]:
    """Yield tables of what the diagnoses measured."""
    for title in titles:
        header, read = _MEASURED[title]
        rows = _labeled(reports, read)
        yield from _listed(title, header, [list(map(_cell, row)) for row in rows])


def _labeled(reports: Sequence[Contents], read: Callable[[Contents], Iterable[Sequence[Cell]]]) -> list[Sequence[Cell]]:
    """Return the rows of all runs; those of several begin with the run's name."""
    if len(reports) == 1:
        return list(read(reports[0]))
    return [(label, *row) for label, report in zip(names(reports), reports, strict=True) for row in read(report)]


def _listed(title: str, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Iterator[Table]:
    """Yield a table if it has rows, with at most `ROWS` of them."""
    if rows:
        more = f" (the first {ROWS} of {len(rows)})" if len(rows) > ROWS else ""
        yield Table(title + more, ("Run", *header) if len(rows[0]) > len(header) else header, rows[:ROWS])


def _columns(title: str, labels: Sequence[str], entries: Iterable[Mapping[str, Cell]]) -> Table:
    """Return a table with a column for each run."""
    columns = list(entries)
    keys = dict.fromkeys(key for cells in columns for key in cells)
    rows = [(key, *(cells.get(key, "-") for cells in columns)) for key in keys]
    return next(_listed(title, ("", *labels), rows), Table(title, (), ()))


def _summary(report: Contents) -> dict[str, Cell]:
    run, diagnosis = report["run"], report["diagnosis"]
    last = run["attempt_list"][-1] if run["attempt_list"] else {}
    commit = last.get("git_commit", "") + (" with changes" if last.get("git_dirty") else "")
    hardware = last.get("hardware") or {}
    facts = {
        "Id": run["id"],
        "User": run.get("user", ""),
        "State": run["state"] + (f" ({run['cause']})" if run["cause"] else ""),
        "Started": time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(run["started"])),
        "Duration": duration(diagnosis["wall_seconds"]),
        "Attempts": str(len(run["attempt_list"])),
        "Ranks": str(diagnosis["ranks"]),
        "Step": number(run["step"]),
        "Loss": number(run["loss"]),
        "Host": last.get("host", ""),
        "GPUs": ", ".join(hardware.get("gpus") or ()),
        "CPUs": number(hardware["cpus"]) if hardware.get("cpus") else "",
        "Memory": byte_size(hardware["memory_bytes"]) if hardware.get("memory_bytes") else "",
        "Software": ", ".join(
            filter(None, [f"Python {last['python']}" if last.get("python") else "", last.get("framework")])
        ),
        "Commit": commit,
        "Command": " ".join(last.get("command") or ()),
        "Tags": ", ".join(run["tags"]),
    }
    return {name: _cell(text) for name, text in facts.items() if text}


def _ledger(report: Contents, accounts: Sequence[str]) -> dict[str, Cell]:
    """Return a bar for each account; *accounts* are those of all runs, so that an account has one color."""
    wall = report["diagnosis"]["wall_seconds"] or 1.0
    entries: dict[str, Cell] = {}
    parts: list[tuple[float, float, str]] = []
    for account, seconds in report["diagnosis"]["ledger"].items():
        begin = parts[-1][1] if parts else 0.0
        parts.append((begin, begin + seconds / wall, f"c{accounts.index(account) % COLORS}"))
        entries[ACCOUNTS[account]] = Bar(f"{percent(seconds / wall)}, {duration(seconds)}", parts[-1:])
    return {"all": Bar(duration(wall), parts), **entries} if parts else entries


def _causes(report: Contents) -> Iterator[Sequence[Cell]]:
    costs = report["diagnosis"]["costs"]
    for cause in report["diagnosis"]["causes"]:
        gain = [] if cause["lost_seconds"] is None else [f"{duration(cause['low'])} to {duration(cause['high'])}"]
        gain += [] if cause["cost"] is None else [f"at most {cause['cost']:,.2f} {costs['currency']}"]
        evidence = Lines([_cell(one["text"]) for one in cause["evidence"]])
        yield (
            _cell(cause["summary"]),
            _cell(", ".join(gain) or "-"),
            evidence,
            _cell(cause["advice"]),
            _cell(cause["check"]),
        )


def _costs(diagnosis: Contents) -> dict[str, Cell]:
    """Return what was measured, and what has a price."""
    energy, costs = diagnosis["energy"], diagnosis["costs"]

    def money(value: float) -> str:
        return f"{value:,.2f} {costs['currency']}"

    entries: Sequence[tuple[str, Any, Callable[[Any], str]]] = (
        ("Energy of the GPUs", energy["gpu_joules"], _kwh),
        ("of it while they did nothing", energy["gpu_idle_joules"], _kwh),
        ("Energy of the CPUs", energy["cpu_joules"], _kwh),
        ("CO2", costs["carbon_kg"], "{:.3g} kg".format),
        ("Cost of the GPUs", costs["gpu_cost"], money),
        ("Cost of the energy", costs["energy_cost"], money),
        ("GPU hours", costs["gpu_hours"] if costs["gpu_cost"] is not None else None, "{:.3g}".format),
        ("Source of the prices", costs["gpu_cost"] and (costs["source"] or None), str),
        *((f"Cost per {unit.replace('_', ' ')}", each.get("cost"), money) for unit, each in costs["per"].items()),
    )
    return {name: _cell(form(value)) for name, value, form in entries if value is not None}


def _kwh(joules: float) -> str:
    return f"{joules / JOULES_PER_KWH:.3g} kWh"


def _values(run: Contents) -> list[Sequence[str]]:
    """Return a row for each key of the lowest rank, of its last attempt."""
    lowest = min((metric["rank"] for metric in run["metrics"]), default=0)
    found = {_cell(metric["key"]): metric for metric in run["metrics"] if metric["rank"] == lowest}
    return [
        (key, *(number(metric[name]) for name in ("last", "min", "max", "mean", "count")))
        for key, metric in found.items()
    ]


def _lanes(report: Contents) -> Iterator[tuple[str, Bar]]:
    """Yield a bar with all alerts of a name, then one with the events of a kind."""
    began, wall = float(report["run"]["started"]), float(report["diagnosis"]["wall_seconds"]) or 1.0

    def part(moment: float) -> float:
        return min(1.0, max(0.0, (moment - began) / wall))

    lanes: dict[str, list[tuple[float, float, str]]] = {}
    for alert in report["alerts"]:
        ended = 1.0 if alert["ended"] is None else part(alert["ended"])
        lanes.setdefault(alert["alert"], []).append((part(alert["started"]), ended, alert["severity"]))
    for event in report["events"]:
        lanes.setdefault(event["kind"], []).append((part(event["time"]), part(event["time"]), "info"))
    return (
        (_cell(name), Bar(f"{len(parts)} times" if len(parts) > 1 else "once", parts)) for name, parts in lanes.items()
    )


def _alerts(report: Contents) -> Iterator[Sequence[str]]:
    for alert in report["alerts"]:
        lasted = "fires" if alert["ended"] is None else duration(alert["ended"] - alert["started"])
        after = duration(alert["started"] - report["run"]["started"])
        yield tuple(map(_cell, (alert["alert"], alert["severity"], after, lasted, alert["summary"])))


def _events(report: Contents) -> Iterator[Sequence[str]]:
    for event in report["events"]:
        fields = ", ".join(f"{key} {setting(value)}" for key, value in flat(event["fields"]).items() if value != "")
        after = duration(event["time"] - report["run"]["started"])
        yield tuple(map(_cell, (event["kind"], after, number(event["rank"]), number(event["step"]), fields)))


def _benchmarks(report: Contents) -> Iterator[Sequence[Cell]]:
    for row in benchmarks.rows(report):
        yield tuple(map(_cell, row))


def _layers(report: Contents) -> Iterator[Sequence[Cell]]:
    for layer in report["layers"]:
        yield tuple(map(_cell, layer_ranking.row(layer)))


def _captures(report: Contents) -> Iterator[Sequence[Cell]]:
    for capture in report["captures"]:
        after = duration(capture["asked"] - report["run"]["started"])
        yield _cell(capture["kind"].replace("_", " ")), after, Lines([_cell(line) for line in capture["text"]])


def _changed(report: Contents) -> Iterator[Table]:
    """Yield what changed since the run's baseline, and from each attempt to the next."""
    header, run, since = ("What", "Before", "Now"), report["run"], report["since"]
    if since is not None and since["changes"]:
        rows = [list(map(_cell, row)) for row in since["changes"]]
        yield from _listed(f"What changed in {shown(run['name'])} since run {shown(since['id'])}", header, rows)
    for before, now in pairwise(run["attempt_list"]):
        rows = [list(map(_cell, row)) for row in changes(before, now)]
        yield from _listed(f"What changed in attempt {now['attempt']} of {shown(run['name'])}", header, rows)


def _results(run: Contents) -> dict[str, Cell]:
    return {_cell(key): _cell(result(value)) for key, value in run.get("summary", {}).items()}


def _config(run: Contents) -> dict[str, Cell]:
    return {_cell(key): _cell(setting(value)) for key, value in config(run).items()}


def _cell(text: object) -> str:
    """Return printable text of a bounded length."""
    whole = str(text)
    return shown(whole[:CELL] + ("…" if len(whole) > CELL else ""))
