"""Captures: bounded recordings of a run on demand, as records and as JSON; and requests for them, with their limits.

Times are Unix seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec.structs import asdict

from trackside.limits import CAPTURE_RANKS, PROFILE_SECONDS, PROFILE_STEPS

KindName = Literal["profile", "stacks", "flight_recorder", "memory", "layers", "modules"]
State = Literal["asked", "recording", "written", "summarised", "failed"]
Trigger = Literal["person", "api", "alert", "plan"]
KINDS, STATES, TRIGGERS = get_args(KindName), get_args(State), get_args(Trigger)
FINAL = frozenset(("summarised", "failed"))  # the states that a capture never leaves


class AlertLink(msgspec.Struct, frozen=True):
    """The alert that caused a capture; the three fields identify it."""

    alert: str
    started: float
    labels: Mapping[str, str] = {}


class CaptureFile(NamedTuple):
    """A file of a capture."""

    rank: int  # the rank that recorded it
    name: str  # its name in the capture's directory
    bytes: int  # its size on disk, compressed
    kind: str


class ProfileOptions(msgspec.Struct, frozen=True):
    """Options of a profile."""

    steps: int | None = 10  # number of optimizer steps; None to record for *seconds*
    seconds: float | None = None  # duration; None to record *steps*
    shapes: bool = False  # record the shapes of operators' inputs
    stacks: bool = False  # record Python functions
    memory: bool = False  # record allocations


PROFILE = ProfileOptions()


@dataclass(frozen=True, slots=True)
class Capture:
    """A capture. A record with the same id replaces the earlier one."""

    id: str  # 12 hexadecimal digits
    run: str  # the id of the run
    attempt: int  # the attempt of the run when it was asked for
    kind: str  # one of `KINDS`
    trigger: str  # one of `TRIGGERS`
    asked: float  # when it was asked for
    ranks: tuple[int, ...] = ()  # the ranks to record; empty for all
    options: ProfileOptions = PROFILE  # what to record
    state: str = "asked"  # one of `STATES`
    reason: str = ""  # why it failed, in one line; otherwise what some ranks lack, or empty
    cause: AlertLink | None = None  # the alert that caused it; None for the other triggers
    step: int | None = None  # the step of the run when it was asked for; None if unknown
    ended: float | None = None  # when it reached a final state; None before
    files: tuple[CaptureFile, ...] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)  # its summary, as JSON; empty before it is summarised


class CaptureJson(msgspec.Struct):
    """A capture as `as_json` returns it; unknown fields are ignored."""

    id: str
    kind: KindName
    trigger: Trigger
    asked: float
    attempt: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    ranks: tuple[int, ...] = ()
    options: ProfileOptions = PROFILE
    state: State = "asked"
    reason: str = ""
    cause: AlertLink | None = None
    step: int | None = None
    ended: float | None = None
    files: list[Any] = []
    summary: dict[str, Any] = {}

    def record(self, run: str, id_: str) -> Capture:
        """Return the capture as one of a run, with another id and without files."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return Capture(**{**fields, "id": id_, "run": run, "files": ()})


def as_json(capture: Capture) -> dict[str, Any]:
    """Return a capture with names for all its fields, as the API has it."""
    return {
        **{name: getattr(capture, name) for name in capture.__slots__},
        "options": asdict(capture.options),
        "cause": None if capture.cause is None else asdict(capture.cause),
        "files": [file._asdict() for file in capture.files],
    }


class RankAnswer(NamedTuple):
    """The answer of one rank."""

    rank: int
    seconds: float  # time from the question to the answer
    body: Any  # the decoded message; None for a kind without a body


RANGES = {"steps": (1, PROFILE_STEPS), "seconds": (0.01, PROFILE_SECONDS)}


class KindOptions(NamedTuple):
    """The options of a kind of captures."""

    steps: int = 0  # the usual number of steps; 0 if it records a moment
    others: tuple[str, ...] = ()  # the other options


OPTIONS_BY_KIND: dict[str, KindOptions] = {
    **dict.fromkeys(KINDS, KindOptions()),
    "profile": KindOptions(10, ("seconds", "shapes", "stacks", "memory")),
    "layers": KindOptions(100),
    "modules": KindOptions(10),
}


class OptionError(ValueError):
    """Options that a capture cannot have; the message is one line."""

    def __init__(self, names: Sequence[str], reason: str) -> None:
        self._names, self._reason = names, reason
        super().__init__(self.text())

    def text(self, prefix: str = "") -> str:
        """Return the message, with a prefix of each option's name."""
        return f"{', '.join(f'{prefix}{name}' for name in self._names)}: {self._reason}"


class CaptureBody(msgspec.Struct, forbid_unknown_fields=True):
    """A request for a capture, by a person, an agent or another program; see `Capture` and `ProfileOptions`."""

    kind: KindName = "profile"
    trigger: Literal["person", "api"] = "api"
    ranks: Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=CAPTURE_RANKS)] = []
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
        takes = OPTIONS_BY_KIND[self.kind]
        given = {name: getattr(self, name) for name in ProfileOptions.__struct_fields__}
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
