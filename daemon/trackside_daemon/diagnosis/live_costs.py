"""Count the energy and the costs of live runs, from the counters of their ranks' GPUs and the configured prices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.diagnosis.costs import JOULES_PER_KWH, places
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.reader import UnknownRunError
from trackside_daemon.history.read.resources import Resources
from trackside_daemon.history.read.series import Window
from trackside_daemon.model.families import gpu
from trackside_daemon.model.families import training as families
from trackside_daemon.model.metric import Batch, Sample

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from trackside_daemon.diagnosis.settings import CostSection
    from trackside_daemon.model.rank_process import RankProcess
    from trackside_daemon.model.state import State

SOURCE = "training:costs"
FIRST = 30.0  # seconds after a run's begin in which its first stored counters count


class Begin(NamedTuple):
    """The begin of a run.

    Attributes:
        started: In Unix seconds.
        places: Its host and tags, which may have a price.
        joules: The counters of GPUs, by UUID, that were stored then.
    """

    started: float
    places: Sequence[str] = ()
    joules: Mapping[str, float] = {}


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
    """A rank of a run.

    Attributes:
        begin: The begin of its run.
        began: When that was, by the monotonic clock.
        last: The last counter of each of its GPUs.
        complete: All of its GPUs have a counter.
        joules: Its energy so far.
        cost: Its costs so far; None without a price.
        ended: When it was last alive, by the monotonic clock.
    """

    begin: Begin
    began: float
    last: dict[str, float] = field(default_factory=dict)
    complete: bool = False
    joules: float = 0.0
    cost: float | None = None
    ended: float = 0.0


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
