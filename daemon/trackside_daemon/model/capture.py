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


class ProfileOptions(msgspec.Struct, frozen=True):
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
    """The answer of one rank.

    Attributes:
        seconds: Time from the question to the answer.
        body: The decoded message; None for a kind without a body.
    """

    rank: int
    seconds: float
    body: Any
