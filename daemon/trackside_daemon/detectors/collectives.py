"""Detect slow collectives, and whether a link is slow or a rank is late, from the bandwidth that each rank measures.

The last rank to arrive waits for nobody, so the highest bandwidth of an operation's ranks is that of the links. If it has fallen,
a link is slow: that of the node all of whose operations are slow. If only the others' has fallen, they wait for this rank.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import exp, log
from statistics import median
from typing import Literal, NamedTuple

from trackside_daemon.model.robust import middle_and_spread
from trackside_daemon.model.text import number, percent

EVERY = 30.0  # seconds between two evaluations: the Inspector writes no faster
LATEST = 5  # values of which the median counts, so that a single slow one is nothing
BEFORE = 8  # values that a past has at least
PAST = 120  # values that are remembered, of an hour
PEERS = 3  # least other groups of the same shape that stand for a past
SCALES = 4.0  # robust standard deviations by which a slow operation is slower
MOST_SLOWER = 10.0  # times slower that always are slow
# An operation whose value stays the same for so many times the last interval, or so many seconds, no longer counts.
IDLE_GAPS, IDLE = 3.5, 600.0
CONFIRM, END = 3, 3  # evaluations with a verdict until it is reported, and without it until it is over
COVERED = 0.8  # share of the slow groups in which a node with a slow link is, and of its groups that are slow
MOST_PASTS = 40_000
MOST = 64  # most verdicts of a kind: whoever sends the numbers may invent hosts


class Operation(NamedTuple):
    """An operation of a communicator as one rank measures it, with messages of a range of sizes."""

    host: str
    gpu: str
    communicator: str
    ranks: str
    operation: str
    size: str
    algorithm: str


class SlowCollective(NamedTuple):
    """A verdict.

    Attributes:
        kind: ``link``, or ``rank`` for one that is late.
        host: The node, or several with a comma if no operation tells them apart.
        gpu: The GPU of the late rank, or the slowest on the link.
        communicator: The communicator that shows it most.
        operation: An operation of it, with its size.
        value: Bandwidth now in GB/s; of a late rank, that of those who wait.
        usual: Bandwidth before.
        whole: The ranks of all its operations are known.
        own: The operations stay within the node.
    """

    kind: Literal["link", "rank"]
    host: str
    gpu: str
    communicator: str
    operation: str
    value: float
    usual: float
    whole: bool
    own: bool

    @property
    def subject(self) -> tuple[str, ...]:
        """The fields that stay the same in the next evaluation; a link's slowest GPU may change."""
        return (self.kind, self.host) if self.kind == "link" else (self.kind, self.host, self.gpu)

    @property
    def text(self) -> str:
        """The verdict in one sentence."""
        speed = f"{self.operation} runs at {number(self.value)} GB/s, {percent(self.value / self.usual)} of {number(self.usual)}"
        if self.kind == "rank":
            gpu = self.gpu if self.gpu.upper().startswith("GPU") else f"GPU {self.gpu}"
            return f"the rank on {gpu} of {self.host} is late, and its peers wait: {speed}"
        link = "a link within the node" if self.own else "the network link"
        doubt = "" if self.whole else ", or of a rank elsewhere whose numbers this daemon does not get"
        return f"{link} of {self.host} is slow{doubt}: {speed}, as are all its operations there"


Peers = dict[tuple[str, ...], dict[str, list[float]]]
"""The bandwidths of the ranks of each communicator, by its number of ranks, operation, size and algorithm."""


class _Past:
    """The bandwidths of a series: the latest, and those before that were not slow."""

    __slots__ = ("changed", "gap", "last", "latest", "usual")

    def __init__(self) -> None:
        self.latest: deque[float] = deque(maxlen=LATEST)
        self.usual: deque[float] = deque(maxlen=PAST)
        self.last, self.changed, self.gap = -1.0, 0.0, EVERY

    def add(self, now: float, value: float) -> None:
        if value != self.last:
            self.gap = max(EVERY, now - self.changed) if self.latest else EVERY
            self.last, self.changed = value, now
            self.latest.append(value)

    def is_idle(self, now: float) -> bool:
        """Return whether the operation has ended, as those of a training before a restart, or runs seldom."""
        return now - self.changed > min(IDLE_GAPS * self.gap, IDLE)


class _Level(NamedTuple):
    """A bandwidth now and usually; both are medians."""

    now: float
    usual: float
    is_slow: bool


class _Group(NamedTuple):
    """The ranks of one operation, each with its bandwidth, and the bandwidth of the rank that waits least, which is the links'."""

    members: Mapping[Operation, _Level]
    links: _Level
    hosts: frozenset[str]

    @property
    def first(self) -> Operation:
        """The rank that waits least."""
        return max(self.members, key=lambda one: self.members[one].now)

    @property
    def slow(self) -> list[Operation]:
        """The slow ranks."""
        return [one for one, level in self.members.items() if level.is_slow]

    @property
    def whole(self) -> bool:
        """All its ranks are known."""
        size = self.first.ranks
        return size.isdecimal() and len(self.members) >= int(size)


class SlowCollectives:
    """The verdicts on all operations that are known; it reads no clock.

    Args:
        slower: How many times slower than usual is slow.
    """

    def __init__(self, slower: float) -> None:
        self._slower = slower
        self._past: dict[Operation, _Past] = {}
        self._shapes: dict[tuple[str, ...], deque[float]] = {}
        self._seen: Counter[tuple[str, ...]] = Counter()
        self._missed: Counter[tuple[str, ...]] = Counter()
        self._reported: dict[tuple[str, ...], SlowCollective] = {}

    def update(self, now: float, bandwidths: Mapping[Operation, float]) -> list[SlowCollective]:
        """Return the verdicts that hold, from the newest bandwidth in GB/s of each operation at *now*, in seconds."""
        known = {one: value for one, value in bandwidths.items() if value > 0}
        for one, value in known.items():
            self._past.setdefault(one, _Past()).add(now, value)
        groups = list(_grouped(one for one in known if not self._past[one].is_idle(now)))
        for members, links in groups:
            self._past.setdefault(links, _Past()).add(now, max(known[one] for one in members))
        self._past = {
            one: past for one, past in self._past.items() if one in known or (not one.gpu and not past.is_idle(now))
        }
        peers = self._peers()
        levels = {one: self._level(one, peers) for one, past in self._past.items() if len(past.latest) == LATEST}
        judged = [
            _Group({one: levels[one] for one in members}, levels[links], frozenset(one.host for one in members))
            for members, links in groups
            if links in levels and all(one in levels for one in members)
        ]
        self._learn(judged, groups)
        return self._confirmed([*islice(self._links(judged), MOST), *islice(self._late(judged), MOST)])

    def _confirmed(self, verdicts: Iterable[SlowCollective]) -> list[SlowCollective]:
        """Return the verdicts that hold for some evaluations, and those that held and are missing for fewer."""
        found = {one.subject: one for one in verdicts}
        for subject in [*self._seen]:
            self._missed[subject] = 0 if subject in found else self._missed[subject] + 1
            if self._missed[subject] >= (END if subject in self._reported else 1):
                del self._seen[subject], self._missed[subject]
                self._reported.pop(subject, None)
        # What waits for a slow link may still look late when the link is well again.
        has_link = any(kind == "link" for kind, *_ in (*self._seen, *found))
        self._seen.update(subject for subject in found if subject[0] == "link" or not has_link)
        for subject, one in found.items():
            if self._seen[subject] >= CONFIRM:
                self._reported.setdefault(subject, one)
        return [*self._reported.values()]

    def _level(self, one: Operation, peers: Peers) -> _Level:
        now = median(self._past[one].latest)
        before = self._before(one, peers)
        if not before:
            return _Level(now, now, is_slow=False)
        middle, spread = middle_and_spread([log(value) for value in before])
        # Small messages take now this time, now that.
        slower = max(self._slower, exp(min(SCALES * spread, log(MOST_SLOWER))))
        return _Level(now, exp(middle), exp(middle) > slower * now)

    def _before(self, one: Operation, peers: Peers) -> Sequence[float]:
        """Return the usual bandwidths: its own, also before a restart, or those of the peers of the same shape."""
        for past in (self._past[one].usual, self._shapes.get(_shape(one), ())):
            if len(past) >= BEFORE:
                return past
        others = peers.get(_kind(one), {})
        own = others.get(one.communicator, [])
        found = (value for values in others.values() if values is not own for value in values)
        return [*islice(found, PAST)] if len(others) > PEERS else ()

    def _peers(self) -> Peers:
        found: Peers = {}
        for one, past in self._past.items():
            found.setdefault(_kind(one), {}).setdefault(one.communicator, []).append(median(past.latest))
        return found

    def _learn(self, judged: Iterable[_Group], groups: Iterable[tuple[list[Operation], Operation]]) -> None:
        """Remember the bandwidths of operations without a slow rank: a fault that lasts does not become usual."""
        bad = {one for group in judged if group.slow or group.links.is_slow for one in group.members}
        for members, links in groups:
            if bad.isdisjoint(members):
                for one in (*members, links):
                    self._keep(one, self._past.get(one))

    def _keep(self, one: Operation, past: _Past | None) -> None:
        if past is None or (past.usual and past.usual[-1] == past.last):
            return
        past.usual.append(past.last)
        if len(self._shapes) < MOST_PASTS or _shape(one) in self._shapes:
            self._shapes.setdefault(_shape(one), deque(maxlen=PAST)).append(past.last)

    def _links(self, groups: Sequence[_Group]) -> Iterator[SlowCollective]:
        """Yield the nodes all of whose communicators within the node, or to others, are slow."""
        inner = [group for group in groups if len(group.hosts) == 1 and group.whole]
        found = False
        for host in _slow_hosts(inner):
            found = True
            yield _link([group for group in inner if group.hosts == {host} and group.links.is_slow], host, own=True)
        outer = [group for group in groups if len(group.hosts) > 1 or not group.whole]
        hosts = {} if found else _slow_hosts(outer)
        if hosts:
            slow_groups = [group for group in outer if group.links.is_slow]
            every = len({group.first.communicator for group in slow_groups})
            most = max(hosts.values())
            named = [host for host, count in hosts.items() if count == most]
            if most >= COVERED * every:
                yield _link(slow_groups, ", ".join(sorted(named)[:4]), own=False)

    def _late(self, groups: Sequence[_Group]) -> Iterator[SlowCollective]:
        """Yield the ranks for which their peers wait, and that wait for no other."""
        shown: dict[tuple[str, str], list[_Group]] = {}
        waits = {(one.host, one.gpu) for group in groups for one in group.slow}
        for group in groups:
            first, slow = group.first, group.slow
            if slow and not group.links.is_slow and 2 * len(slow) >= len(group.members) and first not in slow:
                shown.setdefault((first.host, first.gpu), []).append(group)
        for (host, gpu), its in shown.items():
            if (host, gpu) not in waits:
                worst, slowest = _worst(its)
                yield _verdict("rank", host, gpu, worst, slowest)


def _grouped(bandwidths: Iterable[Operation]) -> Iterator[tuple[list[Operation], Operation]]:
    """Yield the ranks of each operation, and the name of the series of their links."""
    members: dict[tuple[str, ...], list[Operation]] = {}
    for one in bandwidths:
        members.setdefault(one[2:], []).append(one)
    for group in members.values():
        # Communicators of one name, each within its node.
        several = group[0].ranks.isdecimal() and len(group) > int(group[0].ranks)
        by_host: dict[str, list[Operation]] = {}
        for one in group:
            by_host.setdefault(one.host if several else "", []).append(one)
        for found in by_host.values():
            yield found, found[0]._replace(host=",".join(sorted({one.host for one in found})), gpu="")


def _slow_hosts(groups: Sequence[_Group]) -> dict[str, int]:
    """Return the hosts whose communicators are nearly all slow in at least half of their operations, with the number of these."""
    slow_of: dict[tuple[str, str], list[bool]] = {}
    for group in groups:
        for host in group.hosts:
            slow_of.setdefault((host, group.first.communicator), []).append(group.links.is_slow)
    slow = Counter(host for (host, _), flags in slow_of.items() if 2 * sum(flags) >= len(flags))
    every = Counter(host for host, _ in slow_of)
    return {host: count for host, count in slow.items() if count >= COVERED * every[host]}


def _worst(groups: Iterable[_Group]) -> tuple[_Group, Operation]:
    """Return the operation and the rank of it that has lost most of its bandwidth."""
    found = ((level.now / level.usual, group, one) for group in groups for one, level in group.members.items())
    _, group, one = min(found, key=lambda item: item[0])
    return group, one


def _link(slow: Sequence[_Group], host: str, *, own: bool) -> SlowCollective:
    """Return the verdict on the link of a node, from its slow groups."""
    worst, slowest = _worst(slow)
    there = [one for one in worst.members if one.host == host] or [slowest]
    return _verdict("link", host, min(there, key=lambda one: worst.members[one].now).gpu, worst, slowest, own=own)


def _verdict(
    kind: Literal["link", "rank"], host: str, gpu: str, group: _Group, shown: Operation, *, own: bool = False
) -> SlowCollective:
    operation = " ".join(part for part in (shown.operation, shown.size) if part)
    level = group.members[shown]
    return SlowCollective(kind, host, gpu, shown.communicator, operation, level.now, level.usual, group.whole, own)


def _shape(one: Operation) -> tuple[str, ...]:
    """Return what stays the same of an operation when the training starts again, with communicators of new names."""
    return (one.host, one.gpu, *one[3:])


def _kind(one: Operation) -> tuple[str, ...]:
    """Return what series have in common whose bandwidths can be compared: of links, also the number of nodes."""
    return ("" if one.gpu else str(one.host.count(",")), *one[3:])
