"""Read the collectives of a run: bandwidth and time by communicator, operation and size, now, before and of the peers."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from trackside_daemon.detectors.collectives import Operation
from trackside_daemon.history.read.resources import Resource, Resources
from trackside_daemon.model.families import foreign, gpu

NOW = 0.1  # share of the time that is now
MOST = 50  # rows, those that lost most of their bandwidth first


class _Rank(NamedTuple):
    """The numbers of a rank: GB/s now and before, and the seconds that an operation takes now; None where it is unknown."""

    one: Operation
    now: float
    usual: float | None
    seconds: float | None


def read_collectives(resources: Resources, run: str, began: float, ended: float) -> list[dict[str, Any]]:
    """Return a row for each operation and size of each communicator on the GPUs of a run, by its name, as JSON.

    Bandwidths are medians over the ranks, in GB/s. ``peers`` is that of the other communicators with the same operation, size and
    number of ranks; ``slowest`` the rank that lost most, by its node and GPU.
    """
    since = ended - NOW * (ended - began)
    its = resources.of(gpu.RANK_INFO.name, lambda labels: labels.get("run") == run)
    times = {_operation(one): _last(one, since) for name in foreign.EXEC_TIME for one in resources.of(name)}
    groups: dict[tuple[str, ...], list[_Rank]] = {}
    for series in (one for name in foreign.BANDWIDTH for one in resources.of(name)):
        one, now = _operation(series), _last(series, since)
        is_its = any(foreign.is_gpu(one.gpu, info.labels["gpu"], info.labels["uuid"]) for info in its)
        if now is not None and (is_its or not its):
            before = [value for moment, value in series.points if moment < since]
            micros = times.get(one)
            rank = _Rank(one, now, median(before) if before else None, None if micros is None else micros / 1e6)
            groups.setdefault((one.communicator, one.ranks, one.operation, one.size), []).append(rank)
    now_of = {key: median(rank.now for rank in ranks) for key, ranks in groups.items()}
    rows = [_row(key, ranks, now_of) for key, ranks in groups.items()]
    return sorted(rows, key=lambda row: row["bandwidth"] / (row["usual"] or row["peers"] or row["bandwidth"]))[:MOST]


def _row(key: tuple[str, ...], ranks: Sequence[_Rank], now_of: Mapping[tuple[str, ...], float]) -> dict[str, Any]:
    before = [rank.usual for rank in ranks if rank.usual]
    peers = [now for other, now in now_of.items() if other[1:] == key[1:] and other != key]
    seconds = [rank.seconds for rank in ranks if rank.seconds is not None]
    slowest = min(ranks, key=lambda rank: rank.now / (rank.usual or rank.now))
    return {
        **dict(zip(("communicator", "ranks", "operation", "size"), key, strict=True)),
        "bandwidth": now_of[key],
        "usual": median(before) if before else None,
        "peers": median(peers) if peers else None,
        "seconds": median(seconds) if seconds else None,
        "slowest": f"{slowest.one.host} {slowest.one.gpu}".strip(),
    }


def _operation(series: Resource) -> Operation:
    return Operation(**foreign.operation(series.labels))


def _last(series: Resource, since: float) -> float | None:
    """Return the median of the values since a time; None without one."""
    values = [value for moment, value in series.points if moment >= since and value > 0]
    return median(values) if values else None
