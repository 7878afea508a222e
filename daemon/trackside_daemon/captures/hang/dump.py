"""The answer of a rank, bounded and without control characters: everything in it is written by the training."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside.limits import FLIGHT_ENTRIES, FLIGHT_GROUPS
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackside.wire import Flight, FlightEntry

OLDEST = 1e9  # seconds; a greater age is none
CHARACTERS = 100  # most characters of a name, a shape or a line in a verdict

# Parts of paths that no user's training has: the standard library, installed packages and the import system.
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen ")

GroupKey = tuple[str, str]
"""Backend and name of a process group, or of its sends and receives."""


class Call(NamedTuple):
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


class Group(NamedTuple):
    """The newest calls of a rank in a process group, by sequence number.

    Attributes:
        title: Name for people.
        ranks: Its global ranks; empty if unknown.
        p2p: The calls are sends and receives.
    """

    title: str
    ranks: frozenset[int]
    p2p: bool
    calls: Mapping[int, Call]

    @property
    def last(self) -> int:
        """Greatest sequence number."""
        return max(self.calls, default=0)

    def pending(self) -> list[Call]:
        """Return the calls that have not ended, in order."""
        return [call for _, call in sorted(self.calls.items()) if not call.finished]


class RankDump(NamedTuple):
    """Present activity of a rank.

    Attributes:
        groups: Its process groups.
        place: Innermost call of the main thread in the user's code, as ``FILE:LINE in FUNCTION``; empty if unknown.
        inner: Innermost call of the main thread at all, if that is another one.
    """

    groups: Mapping[GroupKey, Group]
    place: str = ""
    inner: str = ""

    def progress(self) -> object:
        """Return a value that changes with each call that begins or ends."""
        return {key: (group.last, len(group.pending())) for key, group in self.groups.items()}

    def pending(self) -> list[Call]:
        """Return the calls of all groups that have not ended."""
        return [call for group in self.groups.values() for call in group.pending()]


def rank_dump(body: Flight) -> RankDump:
    """Return a client's answer as the verdict needs it."""
    groups: dict[GroupKey, Group] = {}
    for group in body.groups[:FLIGHT_GROUPS]:
        title = cleaned(group.description if group.description not in ("", "undefined") else f"group {group.name}")
        for p2p in (False, True):
            calls = {entry.sequence: _call(entry) for entry in group.entries[-FLIGHT_ENTRIES:] if entry.p2p is p2p}
            if calls:
                key = cleaned(group.backend), f"{cleaned(group.name)}{' p2p' if p2p else ''}"
                groups[key] = Group(title, frozenset(group.ranks), p2p, calls)
    place, inner = _place(next(iter(body.threads.values()), ()))
    return RankDump(groups, place, inner)


def cleaned(text: str) -> str:
    """Return a text from outside for one line of a verdict."""
    return shown(text[-CHARACTERS:])


def _call(entry: FlightEntry) -> Call:
    operation, shape, state = map(cleaned, (entry.operation, entry.shape, entry.state))
    age = entry.age if 0 <= entry.age < OLDEST else 0.0
    return Call(entry.sequence, operation, shape, entry.elements, state, age)


def _place(frames: Sequence[str]) -> tuple[str, str]:
    """Return the innermost call of a stack in the user's code, and the innermost one if that is another."""
    own = next((frame for frame in reversed(frames) if not any(part in frame for part in _LIBRARIES)), "")
    inner = frames[-1] if frames else ""
    return _short(own or inner), _short(inner) if own and inner != own else ""


def _short(frame: str) -> str:
    """Return ``/a/b/train.py:3 main`` as ``train.py:3 in main``."""
    place, _, function = frame.rpartition(" ")
    return cleaned(f"{place.rpartition('/')[2]} in {function}" if place else frame)
