"""The answers of all ranks, bounded and without control characters, merged: what holds up each process group."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from trackside.limits import FLIGHT_ENTRIES, FLIGHT_GROUPS
from trackside.wire import Flight, FlightEntry
from trackside_daemon.captures.hang.places import children_text, cleaned, innermost

OLDEST = 1e9  # seconds; a greater age is none

GroupKey = tuple[str, str]
"""Backend and name of a process group, or of its sends and receives."""


class CommunicationCall(NamedTuple):
    """A collective, a send or a receive; see `trackside.wire.FlightEntry`."""

    sequence: int
    operation: str
    shape: str
    elements: int
    state: str
    age: float

    @property
    def finished(self) -> bool:
        """True if the call has ended on this rank."""
        return self.state == "completed"


class RankCalls(NamedTuple):
    """The newest calls of a rank in a process group, by sequence number."""

    title: str  # name for people
    ranks: frozenset[int]  # its global ranks; empty if unknown
    p2p: bool  # the calls are sends and receives
    calls: Mapping[int, CommunicationCall]

    @property
    def last(self) -> int:
        """Greatest sequence number."""
        return max(self.calls, default=0)

    def pending(self) -> list[CommunicationCall]:
        """Return the calls that have not ended, in order."""
        return [call for _, call in sorted(self.calls.items()) if not call.finished]


class RankDump(NamedTuple):
    """Present activity of a rank."""

    groups: Mapping[GroupKey, RankCalls]  # its process groups
    # Innermost call of the main thread in the user's code, as ``FILE:LINE in FUNCTION``; empty if unknown.
    place: str = ""
    inner: str = ""  # innermost call of the main thread at all, if that is another one
    children: str = ""  # what the processes below it do that can hold it up, in words
    busy: bool = False  # its main thread was running, not waiting, when the daemon looked last

    @property
    def whereabouts(self) -> str:
        """The place with those of the processes that the rank may wait for; empty if unknown."""
        inner = f" ({self.inner})" if self.inner else ""
        return self.place and f"{self.place}{inner}{self.children and f': its {self.children}'}"

    def progress(self) -> object:
        """Return a value that changes with each call that begins or ends."""
        return {key: (group.last, len(group.pending())) for key, group in self.groups.items()}

    def pending(self) -> list[CommunicationCall]:
        """Return the calls of all groups that have not ended."""
        return [call for group in self.groups.values() for call in group.pending()]


def rank_dump(body: Flight) -> RankDump:
    """Return a client's answer as the verdict needs it."""
    groups: dict[GroupKey, RankCalls] = {}
    for group in body.groups[:FLIGHT_GROUPS]:
        title = cleaned(group.description if group.description not in ("", "undefined") else f"group {group.name}")
        for p2p in (False, True):
            calls = {entry.sequence: _call(entry) for entry in group.entries[-FLIGHT_ENTRIES:] if entry.p2p is p2p}
            if calls:
                key = cleaned(group.backend), f"{cleaned(group.name)}{' p2p' if p2p else ''}"
                groups[key] = RankCalls(title, frozenset(group.ranks), p2p, calls)
    main: Sequence[str] = next(iter(body.threads.values()), ())
    return RankDump(groups, *innermost(main), children_text(body.children, main))


def _call(entry: FlightEntry) -> CommunicationCall:
    operation, shape, state = map(cleaned, (entry.operation, entry.shape, entry.state))
    age = entry.age if 0 <= entry.age < OLDEST else 0.0
    return CommunicationCall(entry.sequence, operation, shape, entry.elements, state, age)


Kind = Literal[
    "other_operation", "other_shape", "ended", "never_arrived", "silent", "unseen", "crossed", "not_finished", "outside"
]
# From the kind that explains most: a rank that died because of a mismatch is a consequence.
KINDS: tuple[Kind, ...] = get_args(Kind)

WORLD = "default_pg"  # PyTorch's name of the group with all ranks

# Collectives for which every rank has an input of the same size; the tensors of all_gather may differ.
_EQUAL = re.compile("all_?reduce|reduce|broadcast|_all_?gather_base|_?reduce_scatter(_base)?")


class Absent(NamedTuple):
    """Ranks without a dump."""

    ended: frozenset[int] = frozenset()  # their run has ended: the process died, or finished earlier than the others
    silent: frozenset[int] = frozenset()  # they are connected and did not answer
    unseen: frozenset[int] = frozenset()  # they are not connected to this daemon
    # How ranks ended, or why they do not answer, as the end of a sentence, where that is known.
    reasons: Mapping[int, str] = {}


class WaitCase(NamedTuple):
    """Cause for which a process group waits."""

    kind: Kind
    ranks: frozenset[int]  # ranks that hold it up; empty if unknown
    waiting: frozenset[int]  # ranks that only wait
    title: str  # name of the group
    call: CommunicationCall  # the call that does not end, as the others have made it
    # The calls of *ranks* in its place. With *call* among them, nothing shows which of them is right.
    others: tuple[CommunicationCall, ...] = ()


def find_cases(dumps: Mapping[int, RankDump], absent: Absent) -> list[WaitCase]:
    """Return what holds up each group in which a rank waits, the case that explains most first."""
    keys = dict.fromkeys(key for dump in dumps.values() for key in dump.groups)
    cases = [case for key in keys if (case := _case(key, dumps, absent)) is not None]
    return sorted(cases, key=lambda case: (KINDS.index(case.kind), -case.call.age))


def _case(key: GroupKey, dumps: Mapping[int, RankDump], absent: Absent) -> WaitCase | None:
    groups = {rank: dump.groups[key] for rank, dump in dumps.items() if key in dump.groups}
    pending = {rank: calls[0] for rank, group in groups.items() if (calls := group.pending())}
    if not pending:
        return None
    blocked = frozenset(rank for rank, dump in dumps.items() if dump.pending())
    group = next(iter(groups.values()))
    if group.p2p:
        return _peer_case(group, pending, blocked, absent)
    sequence = min(call.sequence for call in pending.values())
    made = {rank: group.calls[sequence] for rank, group in groups.items() if sequence in group.calls}
    mismatches: tuple[tuple[Kind, Callable[[CommunicationCall], object]], ...] = (
        ("other_operation", lambda call: call.operation),
        ("other_shape", lambda call: call.elements if _EQUAL.fullmatch(call.operation) else None),
    )
    for kind, feature in mismatches:
        usual, odd = _odd(made, groups, feature)
        if odd:
            others = tuple(made[rank] for rank in sorted(odd))
            return WaitCase(kind, odd, frozenset(pending) - odd, group.title, usual, others)
    members = _members(groups, dumps, absent)
    missing = frozenset(rank for rank in members & dumps.keys() if rank not in groups or groups[rank].last < sequence)
    kind, ranks = _missing(missing, blocked, members, absent)
    if kind == "not_finished":
        begun = {rank for rank, call in made.items() if call.state == "started"}
        ranks = frozenset(pending) - begun if begun else frozenset()
    return WaitCase(kind, ranks, frozenset(pending) - ranks, group.title, next(iter(made.values())))


def _odd(
    made: Mapping[int, CommunicationCall],
    groups: Mapping[int, RankCalls],
    feature: Callable[[CommunicationCall], object],
) -> tuple[CommunicationCall, frozenset[int]]:
    """Return the usual one of the calls that should be the same, and the ranks whose call differs from it.

    These are all ranks if no call is more usual than another.
    """
    counts = Counter(map(feature, made.values()))
    # With as many ranks on both sides, what the ranks have called most often before is the usual one.
    before = Counter(feature(call) for group in groups.values() for call in group.calls.values())
    first, *others = sorted(counts, key=lambda one: (counts[one], before[one]), reverse=True)
    usual = next(call for call in made.values() if feature(call) == first)
    if others and (counts[first], before[first]) == (counts[others[0]], before[others[0]]):
        return usual, frozenset(made)
    return usual, frozenset(rank for rank, call in made.items() if feature(call) != first)


def _members(groups: Mapping[int, RankCalls], dumps: Mapping[int, RankDump], absent: Absent) -> frozenset[int]:
    """Return the ranks of a group; those that have called anything in it, if that is all that is known."""
    known = frozenset[int]().union(*(group.ranks for group in groups.values()))
    everybody = frozenset(dumps).union(*absent)
    if known or next(iter(groups.values())).title != WORLD:
        return (known or frozenset(groups)) & everybody
    return everybody


def _missing(
    missing: frozenset[int], blocked: frozenset[int], members: frozenset[int], absent: Absent
) -> tuple[Kind, frozenset[int]]:
    """Return who has not arrived, and why; ranks that wait in another group are no cause."""
    if ended := absent.ended & members:
        return "ended", ended
    if late := missing - blocked:
        return "never_arrived", late
    if silent := absent.silent & members:
        return "silent", silent
    if missing:
        return "crossed", frozenset()
    if unseen := absent.unseen & members:
        return "unseen", unseen
    return "not_finished", frozenset()


def _peer_case(
    group: RankCalls, pending: Mapping[int, CommunicationCall], blocked: frozenset[int], absent: Absent
) -> WaitCase | None:
    """Return the case of a send or receive, whose operation names the two as ``1<-0``, by their numbers in the group."""
    order = sorted(group.ranks)
    for rank, call in pending.items():
        numbers = [int(number) for number in re.findall(r"\d{1,9}", call.operation)]
        peers = frozenset(order[number] if number < len(order) else number for number in numbers) - {rank}
        kind, ranks = _missing(peers - frozenset().union(*absent), blocked, peers, absent)
        if ranks:
            return WaitCase(kind, ranks, frozenset(pending) - ranks, group.title, call)
    return None
