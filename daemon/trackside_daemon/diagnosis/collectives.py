"""Read the collectives of a run: bandwidth and time by communicator, operation and size, now, before and of the peers."""

from collections.abc import Mapping
from operator import itemgetter
from statistics import median
from typing import Any

from trackside_daemon.detectors.collectives import Operation
from trackside_daemon.history.read.resources import Resource, Resources
from trackside_daemon.model.families import foreign, gpu

NOW = 0.1  # share of the time that is now
MOST = 50  # rows
ENOUGH = 0.8  # share of the usual bandwidth from which no order is shown


def read_collectives(resources: Resources, run: str, began: float, ended: float) -> list[dict[str, Any]]:
    """Return a row for each operation and size of each communicator on the GPUs of a run, by its name, as JSON.

    ``bandwidth`` is that of the rank that waits least, which is the links', in GB/s; ``peers`` that of the other communicators with
    the same operation, size and number of ranks; ``waits_for`` the node and GPU of the rank for which the others wait. The links
    that lost most come first.
    """
    since = ended - NOW * (ended - began)
    its = resources.of(gpu.RANK_INFO.name, lambda labels: labels.get("run") == run)
    every = {_operation(one): one for name in foreign.BANDWIDTH for one in resources.of(name)}
    own = {
        one.communicator
        for one in every
        if not its or any(foreign.is_gpu(one.gpu, info.labels["gpu"], info.labels["uuid"]) for info in its)
    }
    now = {one: value for one, series in every.items() if one.communicator in own and (value := _last(series, since))}
    before = {one: [value for moment, value in every[one].points if moment < since] for one in now}
    usual = {one: median(values) for one, values in before.items() if values}
    micros = {_operation(one): _last(one, since) for name in foreign.EXEC_TIME for one in resources.of(name)}
    groups: dict[tuple[str, ...], list[Operation]] = {}
    for one in now:
        groups.setdefault((one.communicator, one.ranks, one.operation, one.size), []).append(one)
    links = {key: max(now[one] for one in members) for key, members in groups.items()}
    rows = []
    for key, members in groups.items():
        peers = [value for other, value in links.items() if other[1:] == key[1:] and other != key]
        seconds = [time / 1e6 for one in members if (time := micros.get(one))]
        row: dict[str, Any] = {
            **dict(zip(("communicator", "ranks", "operation", "size"), key, strict=True)),
            "bandwidth": links[key],
            "usual": max((usual[one] for one in members if one in usual), default=None),
            "peers": median(peers) if peers else None,
            "seconds": median(seconds) if seconds else None,
            "waits_for": _last_rank({one: now[one] for one in members}),
        }
        share = row["bandwidth"] / (row["usual"] or row["peers"] or row["bandwidth"])
        rows.append(((min(ENOUGH, share), not row["waits_for"]), row))
    return [row for _, row in sorted(rows, key=itemgetter(0))[:MOST]]


def _last_rank(now: Mapping[Operation, float]) -> str:
    """Return the node and GPU of the rank for which the others wait; empty if they do not."""
    one = max(now, key=now.__getitem__)
    others = [value for other, value in now.items() if other != one]
    return f"{one.host} {one.gpu}".strip() if others and 2 * median(others) < now[one] else ""


def _operation(series: Resource) -> Operation:
    return Operation(**foreign.operation(series.labels))


def _last(series: Resource, since: float) -> float | None:
    """Return the median of the values since a time; None without one."""
    values = [value for moment, value in series.points if moment >= since and value > 0]
    return median(values) if values else None
