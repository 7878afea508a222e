"""Captures: bounded recordings of a run on demand, as records and as JSON.

Times are Unix seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec.structs import asdict

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
