"""A report about runs: what is known of each, where its time went, its curves, and how they differ."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from trackside_daemon.documents import diagnosis, run
from trackside_daemon.documents.diagnosis import labelled
from trackside_daemon.documents.elements import CELL, Bar, Cell, Curves, Document, Lines, MediaSeries, Table, columns
from trackside_daemon.history.read import layers
from trackside_daemon.model.configuration import changes, config, setting
from trackside_daemon.model.text import cut, duration, number, shown

Contents = Mapping[str, Any]


COLUMNS = ("axis", "last", "low", "high", "nonfinite", "ends")


def document(reports: Sequence[Contents]) -> Document:
    """Return a report about runs, see `diagnosis.report`."""
    labels = names(reports)
    media = [
        one for label, report in zip(labels, reports, strict=True) for one in _media(report, label * (len(labels) > 1))
    ]
    summary, *found = findings(reports)
    return Document(
        ", ".join(labels),
        [
            summary,
            _curves(reports),
            *found,
            *([MediaSeries(media)] if media else []),
            *_details(reports),
            diagnosis.LIMITS,
        ],
    )


def names(reports: Sequence[Contents]) -> list[str]:
    """Return a name for each run; those of equal names have their ids too."""
    plain = [report["run"]["name"] for report in reports]
    return [
        f"{name} ({report['run']['id']})" if plain.count(name) > 1 else name
        for name, report in zip(plain, reports, strict=True)
    ]


def charts(reports: Sequence[Contents]) -> list[dict[str, Any]]:
    """Return a chart per key of all runs: ``key`` and ``lines``, each with its ``label``, ``run`` (its place), and columns."""
    by_key: dict[str, list[dict[str, Any]]] = {}
    for place, (label, report) in enumerate(zip(names(reports), reports, strict=True)):
        several = len({entry["attempt"] for entry in report["charts"]}) > 1
        for entry in report["charts"]:
            name = shown(f"{label}, attempt {entry['attempt']}" if several else label)
            line = {column: entry[column] for column in COLUMNS if column in entry}
            by_key.setdefault(entry["key"], []).append({"label": cut(name, CELL), "run": place, **line})
    return [{"key": cut(shown(key), CELL), "lines": lines} for key, lines in by_key.items()]


def findings(reports: Sequence[Contents]) -> Iterator[Table]:
    """Yield the summary, and where the time, the energy and the money went."""
    labels = names(reports)
    yield columns("summary", labels, map(_summary, reports))
    yield columns("results", labels, [run.results(report["run"]) for report in reports])
    yield from diagnosis.where(labels, [report["diagnosis"] for report in reports])


def _details(reports: Sequence[Contents]) -> Iterator[Table]:
    """Yield the values, the alerts and events, and the configuration."""
    labels = names(reports)

    def listed(title: str, header: Sequence[str], rows: Callable[[Contents], Iterable[Sequence[Cell]]]) -> Table:
        return labelled(title, header, labels, map(rows, reports))

    if len(reports) > 1:
        last = [{one["key"]: number(one["final"]) for one in run.metrics(report["run"])} for report in reports]
        yield columns("last values of the lowest rank", labels, last)
    else:
        yield Table("values of the lowest rank", *run.values(reports[0]["run"]))
    yield from diagnosis.more(labels, [report["diagnosis"] for report in reports])
    yield listed("alerts and events over the time of the run", ("what", "when"), _lanes)
    yield listed("alerts", run.ALERTS, lambda report: run.alerts(report["run"], report["alerts"]))
    yield listed("layers that stand out", layers.HEADER, lambda report: map(layers.row, report["layers"]))
    yield listed("captures", ("capture", "after", "summary"), _captures)
    yield listed("events", run.EVENT, lambda report: run.happened(report["run"], report["events"]))
    for report in reports:
        yield from _changed(report)
    whole = columns("configuration", labels, [_config(report["run"]) for report in reports])
    differing = [row for row in whole.rows if len(set(row[1:])) > 1]
    yield Table("what differs in the configuration", whole.header, differing if len(reports) > 1 else [])
    yield whole


def _summary(report: Contents) -> dict[str, Cell]:
    entries = {
        **run.about(report["run"], report["diagnosis"]["wall_seconds"]),
        "ranks": str(report["diagnosis"]["ranks"]),
        "loss": number(report["run"]["loss"]),
    }
    return {name: value for name, value in entries.items() if value}


def _curves(reports: Sequence[Contents]) -> Curves:
    return Curves(
        [report["axes"] for report in reports],
        charts(reports),
        [
            [[round(alert["started"] - report["run"]["started"], 2), alert["severity"]] for alert in report["alerts"]]
            for report in reports
        ],
        sum(report["left_out"] for report in reports),
    )


def _media(report: Contents, label: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for series in report.get("media", ()):
        rank = f", rank {series['rank']}" if series["rank"] else ""
        yield " ".join(filter(None, [label, f"{series['key']}{rank}"])), series


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
    return ((name, Bar(f"{len(parts)} times" if len(parts) > 1 else "once", parts)) for name, parts in lanes.items())


def _captures(report: Contents) -> Iterator[Sequence[Cell]]:
    for capture in report["captures"]:
        after = duration(capture["asked"] - report["run"]["started"])
        yield capture["kind"].replace("_", " "), after, Lines(capture["text"])


def _changed(report: Contents) -> Iterator[Table]:
    """Yield what changed since the run's baseline, and from each attempt to the next."""
    header, about, since = ("what", "before", "now"), report["run"], report["since"]
    if since is not None:
        yield Table(f"what changed in {about['name']} since run {since['id']}", header, since["changes"])
    for before, now in pairwise(about["attempt_list"]):
        yield Table(f"what changed in attempt {now['attempt']} of {about['name']}", header, changes(before, now))


def _config(about: Contents) -> dict[str, Cell]:
    return {key: setting(value) for key, value in config(about).items()}
