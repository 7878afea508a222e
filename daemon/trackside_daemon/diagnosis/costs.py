"""The energy and the costs of a run, ended or live, by the counters of its machine and the configured prices."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.causes.gpus import IDLE
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.reader import UnknownRunError
from trackside_daemon.history.read.resources import Resources
from trackside_daemon.history.read.series import Window
from trackside_daemon.model.families import gpu, host
from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.families import training as families
from trackside_daemon.model.metric import Batch, Sample

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from trackside_daemon.causes.facts import Facts
    from trackside_daemon.diagnosis.measures import Measures
    from trackside_daemon.diagnosis.settings import CostSection
    from trackside_daemon.history.read.resources import Resource
    from trackside_daemon.model.rank_process import RankProcess
    from trackside_daemon.model.state import State


JOULES_PER_KWH = 3.6e6


def energy(facts: Facts) -> dict[str, Any]:
    """Return the joules of the run's GPUs and of its machine's CPU packages in its time; None for what has no counter.

    ``gpus`` has the difference of each counter by the GPU's index, None for a GPU without one, and ``gpu_joules`` is None
    if one is missing. ``gpu_idle_joules`` is the part in samples with a utilization below 1 %. The counters are
    nvmlDeviceGetTotalEnergyConsumption and powercap intel-rapl energy_uj.
    """
    counters = {one.labels.get("gpu", "?"): one for one in facts.gpus(gpu_families.ENERGY)}
    uses = {one.labels.get("gpu", "?"): one for one in facts.gpus(gpu_families.UTILIZATION)}
    gpus = {gpu: counters[gpu].increase if gpu in counters else None for gpu in sorted({*counters, *uses})}
    known = [joules for joules in gpus.values() if joules is not None]
    whole = bool(known) and len(known) == len(gpus)
    packages = [series.increase for series in facts.of(host.CPU_ENERGY)]
    return {
        "gpus": gpus,
        "gpu_joules": sum(known) if whole else None,
        "gpu_idle_joules": sum(_idle_joules(counters[gpu], use) for gpu, use in uses.items())
        if whole and uses
        else None,
        "cpu_joules": sum(packages) if packages else None,
    }


def _idle_joules(counter: Resource, use: Resource) -> float:
    """Return the increases of a counter until the samples in which the GPU did nothing."""
    idle = {moment for moment, value in use.points if value < IDLE}
    return sum(max(0.0, after - before) for (_, before), (moment, after) in pairwise(counter.points) if moment in idle)


def total_joules(joules: Mapping[str, Any]) -> float | None:
    """Return the joules of all that has a counter; None if nothing has, or if a GPU has none."""
    if any(value is None for value in joules["gpus"].values()):
        return None
    measured = [value for value in (joules["gpu_joules"], joules["cpu_joules"]) if value is not None]
    return sum(measured) if measured else None


def costs(
    facts: Facts, joules: Mapping[str, Any], ledger: Mapping[str, float], measures: Measures, prices: CostSection
) -> dict[str, Any]:
    """Return the costs of a run by the configured prices; None for what has no price or was not measured.

    Args:
        facts: The run; each of its ranks has a GPU for the run's whole time, or more if more were seen with a rank.
        joules: Its `energy`.
        ledger: Seconds by account.
        measures: Its steps and tokens.
        prices: The configured prices.

    Returns:
        ``currency``, ``source``, ``gpu_hours``, ``gpu_hour`` (the price), ``gpu_cost``, ``energy_kwh`` (with PUE),
        ``energy_cost``, ``cost`` (the sum of those that are known), ``carbon_kg``, ``wasted_hours`` (wall hours outside of compute), and ``per``: the total ``cost`` and
        ``energy_kwh`` by ``1000_steps``, ``million_tokens`` and ``wasted_hour``.
    """
    gpus = max(facts.ranks, len(facts.gpu_ranks()))
    hours = facts.wall * gpus / 3600
    names = _gpu_names(facts)
    price = prices.price([*names, *places(facts.run)]) if names else None
    whole = total_joules(joules)
    kwh = None if whole is None else whole * prices.pue / JOULES_PER_KWH
    grams = prices.carbon_grams_per_kwh
    gpu_cost = None if price is None else hours * price
    energy_cost = None if kwh is None or prices.kwh is None else kwh * prices.kwh
    known = [cost for cost in (gpu_cost, energy_cost) if cost is not None]
    tokens = measures.steps * measures.tokens / 1e6 if measures.tokens else 0.0
    units = {"1000_steps": measures.steps / 1000, "million_tokens": tokens, "wasted_hour": facts.wall / 3600}
    return {
        "currency": prices.currency,
        "source": prices.source,
        "gpu_hours": hours,
        "gpu_hour": price,
        "gpu_cost": gpu_cost,
        "energy_kwh": kwh,
        "energy_cost": energy_cost,
        "cost": sum(known) if known else None,
        "carbon_kg": None if kwh is None or grams is None else kwh * grams / 1000,
        "wasted_hours": sum(seconds for account, seconds in ledger.items() if account != "compute") / 3600,
        "per": {
            unit: {"cost": sum(known) / amount if known else None, "energy_kwh": None if kwh is None else kwh / amount}
            for unit, amount in units.items()
            if amount
        },
    }


def _gpu_names(facts: Facts) -> list[str]:
    """Return the names of the run's GPUs, or of those of its machine by its last attempt that has them."""
    infos = [one.labels["name"] for one in facts.gpus(gpu_families.INFO) if one.labels.get("name")]
    hardware = [(attempt.get("hardware") or {}).get("gpus") for attempt in reversed(facts.run["attempt_list"])]
    return infos or next((gpus for gpus in hardware if gpus), [])


def places(run: Mapping[str, Any]) -> list[str]:
    """Return the run's host and tags, which may have a price too."""
    hosts = [str(attempt["host"]) for attempt in run["attempt_list"] if attempt.get("host")]
    return [*hosts[-1:], *map(str, run["tags"])]


SOURCE = "training:costs"
FIRST = 30.0  # seconds after a run's begin in which its first stored counters count


class Begin(NamedTuple):
    """The begin of a run."""

    started: float  # in Unix seconds
    places: Sequence[str] = ()  # its host and tags, which may have a price
    joules: Mapping[str, float] = {}  # the counters of GPUs, by UUID, that were stored then


def read_begin(connection: sqlite3.Connection, uid: str) -> Begin | None:
    """Return the begin of a run, by its id; None if the history does not have it yet.

    Raises:
        ValueError: A block is damaged.
    """
    try:
        run = reader.head(connection, uid)
    except UnknownRunError:
        return None
    window = Window("time", float(run["started"]), float(run["started"]) + FIRST)
    counters = Resources(connection, window, 2).of(gpu.ENERGY.name)
    joules = {one.labels["uuid"]: one.points[0][1] for one in counters}
    return Begin(float(run["started"]), places(run), joules)


@dataclass
class _Rank:
    """A rank of a run."""

    begin: Begin  # the begin of its run
    began: float  # when that was, by the monotonic clock
    last: dict[str, float] = field(default_factory=dict)  # the last counter of each of its GPUs
    complete: bool = False  # all of its GPUs have a counter
    joules: float = 0.0  # its energy so far
    cost: float | None = None  # its costs so far; None without a price
    ended: float = 0.0  # when it was last alive, by the monotonic clock


class LiveCosts:
    """Counts on each tick.

    Args:
        state: The newest values.
        ranks: Returns the training processes of this machine.
        begin: Returns the begin of a run, by its id; None while it is not known.
        prices: The configured prices.

    Attributes:
        prices: The same.
        linger: Seconds for which the counters of an ended rank stay.
    """

    def __init__(
        self,
        state: State,
        ranks: Callable[[], Sequence[RankProcess]],
        begin: Callable[[str], Begin | None],
        prices: CostSection,
        linger: float = 60.0,
    ) -> None:
        self.prices = prices
        self.linger = linger
        self._state = state
        self._ranks = ranks
        self._begin = begin
        self._counted: dict[tuple[str, str, int], _Rank] = {}

    def batch(self, now: float, wall: float) -> Batch:
        """Return the counters of all ranks.

        Args:
            now: Seconds of the monotonic clock.
            wall: Unix seconds.
        """
        infos, counters, gpus = self._state.values(now, gpu.RANK_INFO, gpu.ENERGY, gpu.INFO)
        by_uuid = {labels[1]: float(value) for labels, value in counters.items() if isinstance(value, int | float)}
        on_gpu: dict[tuple[str, str], set[str]] = {}
        for _, uuid, run, rank in infos:
            on_gpu.setdefault((run, rank), set()).add(uuid)
        sharing = {uuid: sum(uuid in uuids for uuids in on_gpu.values()) for _, uuid, *_ in infos}
        names = {labels[1]: labels[2] for labels in gpus}
        for process in self._ranks():
            uuids = on_gpu.get((process.run, str(process.rank)), set())
            if uuids and (counted := self._rank(process, now, wall)) is not None:
                counted.ended = now
                _count(counted, {uuid: by_uuid.get(uuid) for uuid in uuids}, sharing)
                self._charge(
                    counted, now, [names.get(uuid, "") for uuid in uuids], sum(1 / sharing[uuid] for uuid in uuids)
                )
        self._counted = {key: one for key, one in self._counted.items() if now - one.ended <= self.linger}
        return Batch(SOURCE, list(self._samples()), complete=True)

    def _rank(self, process: RankProcess, now: float, wall: float) -> _Rank | None:
        key = (process.run_id, process.run, process.rank)
        counted = self._counted.get(key)
        if counted is None and (begin := self._begin(process.run_id)) is not None:
            # Another run of the same name has its series from now on.
            for other in [other for other in self._counted if other[1:] == key[1:]]:
                del self._counted[other]
            # The clock may be set later, which costs nothing.
            counted = self._counted[key] = _Rank(begin, now - (wall - begin.started), dict(begin.joules))
        return counted

    def _charge(self, counted: _Rank, now: float, names: Collection[str], gpus: float) -> None:
        price, kwh = self.prices.price([*sorted(names), *counted.begin.places]), self.prices.kwh
        if price is None and (kwh is None or not counted.complete):
            return
        cost = gpus * max(0.0, now - counted.began) / 3600 * (price or 0.0)
        cost += counted.joules * self.prices.pue / JOULES_PER_KWH * (kwh or 0.0)
        counted.cost = max(cost, counted.cost or 0.0)  # a counter never falls, also when a price does

    def _samples(self) -> Iterator[Sample]:
        for (_, run, rank), counted in self._counted.items():
            labels = (run, str(rank))
            if counted.complete:
                yield Sample(families.ENERGY, labels, counted.joules)
            if counted.cost is not None:
                yield Sample(families.COST, (*labels, self.prices.currency), counted.cost)


def _count(counted: _Rank, counters: Mapping[str, float | None], sharing: Mapping[str, int]) -> None:
    """Add what the counters of a rank's GPUs have grown by."""
    counted.complete = None not in counters.values()
    for uuid, joules in counters.items():
        before = counted.last.get(uuid, joules)
        if joules is not None and before is not None:
            counted.joules += max(0.0, joules - before) / sharing[uuid]
            counted.last[uuid] = joules
