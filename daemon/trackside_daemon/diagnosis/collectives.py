"""Read the collectives of a run: bandwidth and time by communicator, operation and size, now, before and of the peers."""

from collections.abc import Mapping
from statistics import median
from typing import Any, NamedTuple

from trackside_daemon.detectors.collectives import Operation
from trackside_daemon.history.read.resources import Resource, Resources
from trackside_daemon.model.families import foreign, gpu

NOW = 0.1  # share of the time that is now
MOST = 50  # rows
ENOUGH = 0.8  # share of the usual bandwidth from which no order is shown


class _Rank(NamedTuple):
    """The numbers of a rank: GB/s now and before, and the seconds that an operation takes now; None where it is unknown."""

    now: float
    usual: float | None
    seconds: float | None


def read_collectives(resources: Resources, run: str, began: float, ended: float) -> list[dict[str, Any]]:
    """Return a row for each operation and size of each communicator on the GPUs of a run, by its name, as JSON.

    ``bandwidth`` is that of the rank that waits least, which is the links', in GB/s; ``peers`` that of the other communicators with
    the same operation, size and number of ranks; ``waits_for`` the node and GPU of the rank for which the others wait. The links
    that lost most come first.
    """
    since = ended - NOW * (ended - began)
    its = resources.of(gpu.RANK_INFO.name, lambda labels: labels.get("run") == run)
    times = {_operation(one): _last(one, since) for name in foreign.EXEC_TIME for one in resources.of(name)}
    every = {_operation(one): one for name in foreign.BANDWIDTH for one in resources.of(name)}
    own = {
        one.communicator
        for one in every
        if not its or any(foreign.is_gpu(one.gpu, info.labels["gpu"], info.labels["uuid"]) for info in its)
    }
    groups: dict[tuple[str, ...], dict[Operation, _Rank]] = {}
    for one, series in every.items():
        now = _last(series, since)
        if now is not None and one.communicator in own:
            before = [value for moment, value in series.points if moment < since]
            micros = times.get(one)
            rank = _Rank(now, median(before) if before else None, None if micros is None else micros / 1e6)
            groups.setdefault((one.communicator, one.ranks, one.operation, one.size), {})[one] = rank
    links = {key: max(rank.now for rank in ranks.values()) for key, ranks in groups.items()}
    rows = [_row(key, ranks, links) for key, ranks in groups.items()]
    return sorted(rows, key=lambda row: (min(ENOUGH, row["bandwidth"] / _usual(row)), not row["waits_for"]))[:MOST]


def _row(
    key: tuple[str, ...], ranks: Mapping[Operation, _Rank], links: Mapping[tuple[str, ...], float]
) -> dict[str, Any]:
    peers = [now for other, now in links.items() if other[1:] == key[1:] and other != key]
    seconds = [rank.seconds for rank in ranks.values() if rank.seconds is not None]
    last = max(ranks, key=lambda one: ranks[one].now)
    others = [rank.now for one, rank in ranks.items() if one != last]
    return {
        **dict(zip(("communicator", "ranks", "operation", "size"), key, strict=True)),
        "bandwidth": links[key],
        "usual": max((rank.usual for rank in ranks.values() if rank.usual), default=None),
        "peers": median(peers) if peers else None,
        "seconds": median(seconds) if seconds else None,
        "waits_for": f"{last.host} {last.gpu}".strip() if others and 2 * median(others) < links[key] else "",
    }


def _usual(row: Mapping[str, Any]) -> float:
    return float(row["usual"] or row["peers"] or row["bandwidth"])


def _operation(series: Resource) -> Operation:
    return Operation(**foreign.operation(series.labels))


def _last(series: Resource, since: float) -> float | None:
    """Return the median of the values since a time; None without one."""
    values = [value for moment, value in series.points if moment >= since and value > 0]
    return median(values) if values else None
