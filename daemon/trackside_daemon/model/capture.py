"""Captures: bounded recordings of a run on demand, as records and as JSON.

Times are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence  # noqa: TC003  msgspec needs it at run time
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec

KindName = Literal["profile", "stacks", "flight_recorder", "memory", "layers"]
State = Literal["asked", "recording", "written", "summarised", "failed"]
Trigger = Literal["person", "api", "alert", "plan"]
KINDS, STATES, TRIGGERS = get_args(KindName), get_args(State), get_args(Trigger)
FINAL = frozenset(("summarised", "failed"))  # the states that a capture never leaves

MOST_STEPS = 1000  # more of them would make a summary too large
MOST_SECONDS = 120.0
RANGES = {"steps": (1, MOST_STEPS), "seconds": (0.01, MOST_SECONDS)}


class AlertLink(NamedTuple):
    """The alert that caused a capture; the three fields identify it."""

    alert: str
    started: float
    labels: Mapping[str, str] = {}


class CaptureFile(NamedTuple):
    """A file of a capture.

    Attributes:
        rank: The rank that recorded it.
        name: Its name in the capture's directory.
        bytes: Its size on disk, compressed.
    """

    rank: int
    name: str
    bytes: int
    kind: str


class ProfileOptions(NamedTuple):
    """Options of a profile.

    Attributes:
        steps: Number of optimizer steps; None to record for *seconds*.
        seconds: Duration; None to record *steps*.
        shapes: Record the shapes of operators' inputs.
        stacks: Record Python functions.
        memory: Record allocations.
    """

    steps: int | None = 10
    seconds: float | None = None
    shapes: bool = False
    stacks: bool = False
    memory: bool = False


PROFILE = ProfileOptions()


class Takes(NamedTuple):
    """The options of a kind of captures.

    Attributes:
        steps: The usual number of steps; 0 if it records a moment.
        others: The other options.
    """

    steps: int = 0
    others: tuple[str, ...] = ()


TAKES: dict[str, Takes] = {
    **dict.fromkeys(KINDS, Takes()),
    "profile": Takes(10, ("seconds", "shapes", "stacks", "memory")),
    "layers": Takes(100),
}


class OptionError(ValueError):
    """Options that a capture cannot have; the message is one line."""

    def __init__(self, names: Sequence[str], reason: str) -> None:
        self._names, self._reason = names, reason
        super().__init__(self.text())

    def text(self, prefix: str = "") -> str:
        """Return the message, with a prefix of each option's name."""
        return f"{', '.join(f'{prefix}{name}' for name in self._names)}: {self._reason}"


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """A request for a capture, by a person, an agent or another program; see `Capture` and `ProfileOptions`."""

    kind: KindName = "profile"
    trigger: Literal["person", "api"] = "api"
    ranks: Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=4096)] = []
    steps: int | None = None
    seconds: float | None = None
    shapes: bool = False
    stacks: bool = False
    memory: bool = False

    def options(self) -> ProfileOptions:
        """Return the options; without steps and seconds, with the usual number of steps of the kind.

        Raises:
            OptionError: The kind does not take one, or a number is out of its range.
        """
        takes, given = TAKES[self.kind], {name: getattr(self, name) for name in ProfileOptions._fields}
        for name, value in given.items():
            if value not in (None, False) and name not in takes.others and not (name == "steps" and takes.steps):
                raise OptionError((name,), f"a capture of kind {self.kind} has none")
        if self.steps is not None and self.seconds is not None:
            raise OptionError(("steps", "seconds"), "give one of them")
        for name, (least, most) in RANGES.items():
            if given[name] is not None and not least <= given[name] <= most:
                raise OptionError((name,), f"{least:g} at least" if given[name] < least else f"{most:g} at most")
        usual = takes.steps or PROFILE.steps
        return ProfileOptions(**given | ({"steps": usual} if self.steps is None and self.seconds is None else {}))


@dataclass(frozen=True, slots=True)
class Capture:
    """A capture. A record with the same id replaces the earlier one.

    Attributes:
        id: 12 hexadecimal digits.
        run: The id of the run.
        attempt: The attempt of the run when it was asked for.
        kind: One of `KINDS`.
        trigger: One of `TRIGGERS`.
        asked: When it was asked for.
        ranks: The ranks to record; empty for all.
        options: What to record.
        state: One of `STATES`.
        reason: Why it failed, in one line; otherwise what some ranks lack, or empty.
        cause: The alert that caused it; None for the other triggers.
        step: The step of the run when it was asked for; None if unknown.
        ended: When it reached a final state; None before.
        files: Its files.
        summary: Its summary, as JSON; empty before it is summarised.
    """

    id: str
    run: str
    attempt: int
    kind: str
    trigger: str
    asked: float
    ranks: tuple[int, ...] = ()
    options: ProfileOptions = PROFILE
    state: str = "asked"
    reason: str = ""
    cause: AlertLink | None = None
    step: int | None = None
    ended: float | None = None
    files: tuple[CaptureFile, ...] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)


class _Link(msgspec.Struct):
    alert: str
    started: float
    labels: dict[str, str] = {}


class _Options(msgspec.Struct):
    steps: int | None = 10
    seconds: float | None = None
    shapes: bool = False
    stacks: bool = False
    memory: bool = False


class CaptureJson(msgspec.Struct):
    """A capture as `as_json` returns it; unknown fields are ignored."""

    id: str
    kind: KindName
    trigger: Trigger
    asked: float
    attempt: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    ranks: tuple[int, ...] = ()
    options: _Options = msgspec.field(default_factory=_Options)
    state: State = "asked"
    reason: str = ""
    cause: _Link | None = None
    step: int | None = None
    ended: float | None = None
    files: list[Any] = []
    summary: dict[str, Any] = {}

    def record(self, run: str, id_: str) -> Capture:
        """Return the capture as one of a run, with another id and without files."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        link = None if self.cause is None else AlertLink(**msgspec.structs.asdict(self.cause))
        options = ProfileOptions(**msgspec.structs.asdict(self.options))
        return Capture(**{**fields, "id": id_, "run": run, "cause": link, "options": options, "files": ()})


def as_json(capture: Capture) -> dict[str, Any]:
    """Return a capture with names for all its fields, as the API has it."""
    return {
        **{name: getattr(capture, name) for name in capture.__slots__},
        "options": capture.options._asdict(),
        "cause": None if capture.cause is None else capture.cause._asdict(),
        "files": [file._asdict() for file in capture.files],
    }
