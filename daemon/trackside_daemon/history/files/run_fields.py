"""The fields of a run, its attempts, events and alerts, as a file must have them to be imported."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from trackside_daemon.history.files.items import INT64

_Number = Annotated[int, msgspec.Meta(ge=0, le=INT64 - 1)]
_Step = Annotated[int, msgspec.Meta(ge=-INT64, le=INT64 - 1)]
_Seconds = Annotated[float, msgspec.Meta(gt=-1e11, lt=1e11)]
"""A range that the tables can hold and dates can show."""


class AttemptFields(msgspec.Struct):
    """An attempt of a run."""

    attempt: _Number
    state: Literal["starting", "running", "stalled", "finished", "stopped", "failed", "lost"]
    started: float
    cause: str = ""
    ended: _Seconds | None = None
    config: Any = None
    rank: _Number = 0


class RunFields(msgspec.Struct):
    """A run."""

    id: str
    name: str
    attempt_list: list[dict[str, Any]]
    tags: tuple[str, ...] = ()
    pinned: bool = False
    summary: dict[str, Any] = {}


NO_RUN = RunFields("", "", [])


class EventFields(msgspec.Struct):
    """An event."""

    attempt: _Number
    time: _Seconds
    kind: str
    rank: _Number | None = None
    step: _Step | None = None
    fields: dict[str, Any] = {}


class AlertFields(msgspec.Struct):
    """An alert."""

    alert: str
    severity: Literal["info", "warning", "critical"]
    started: _Seconds
    ended: _Seconds | None = None
    summary: str = ""
    description: str = ""
    labels: dict[str, str] = {}
    evidence: dict[str, Any] = {}
