"""The arguments of the tools; their JSON schemas are made of these classes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from trackside_daemon.model.capture import KindName  # noqa: TC001  msgspec needs it at run time

MOST_POINTS = 200
MOST_KEYS = 20
LONGEST_WAIT = 3600.0

Text = Annotated[str, Meta(max_length=1000)]
RunName = Annotated[
    Text, Meta(description="A run: its id, the beginning of its id, or its name, which means its newest run.")
]
Keys = Annotated[list[Text], Meta(max_length=MOST_KEYS, description="Keys that the training pushed, such as loss.")]


class RunsArguments(Struct, forbid_unknown_fields=True):
    """Arguments of ``runs``."""

    name: Annotated[Text, Meta(description="Only runs with this in their names.")] = ""
    tag: Annotated[Text, Meta(description="Only runs with this tag.")] = ""
    state: Annotated[
        Literal["", "starting", "running", "stalled", "finished", "stopped", "failed", "lost"],
        Meta(description="Only runs in this state."),
    ] = ""
    limit: Annotated[int, Meta(ge=1, le=100, description="Number of runs, the newest first.")] = 20


class WhyArguments(Struct, forbid_unknown_fields=True):
    """Arguments of ``why``."""

    run: RunName


class CompareArguments(Struct, forbid_unknown_fields=True):
    """Arguments of ``compare``."""

    runs: Annotated[list[RunName], Meta(min_length=1, max_length=16, description="Runs to compare with the baseline.")]
    baseline: Annotated[
        list[Text],
        Meta(
            max_length=16,
            description="Runs, or a tag. Without it: the pinned run of the name, else the last finished one.",
        ),
    ] = []
    keys: Keys = []


class SeriesArguments(Struct, forbid_unknown_fields=True):
    """Arguments of ``series``."""

    run: RunName
    keys: Annotated[Keys, Meta(description="Keys; without any, the answer lists the keys with their last values.")] = []
    rank: Annotated[int | None, Meta(description="A rank; without it, the lowest.")] = None
    attempt: Annotated[int | None, Meta(description="An attempt; without it, all.")] = None
    first_step: Annotated[int | None, Meta(description="The first step.")] = None
    last_step: Annotated[int | None, Meta(description="The last step.")] = None
    points: Annotated[
        int,
        Meta(ge=1, le=MOST_POINTS, description="Points of all series together; each keeps the minimum and maximum."),
    ] = MOST_POINTS


class WaitArguments(Struct, forbid_unknown_fields=True):
    """Arguments of ``wait``."""

    run: RunName
    until: Annotated[
        list[Literal["alert", "end"]], Meta(description="An alert of the run, its end, or whichever comes first.")
    ] = msgspec.field(default_factory=lambda: ["alert", "end"])
    step: Annotated[int | None, Meta(description="Also return when the run reaches this step.")] = None
    since: Annotated[
        float | None,
        Meta(description="Alerts count from this Unix time on, by default from now; use `now` of the last answer."),
    ] = None
    timeout_seconds: Annotated[float, Meta(ge=0, le=LONGEST_WAIT, description="Longest wait.")] = 60.0


class CaptureArguments(Struct, forbid_unknown_fields=True):
    """Arguments of ``capture``."""

    run: RunName
    kind: Annotated[KindName, Meta(description="What to record.")] = "profile"
    steps: Annotated[int, Meta(ge=1, le=100, description="Steps to record, of a profile or of layers.")] = 10
    stacks: Annotated[bool, Meta(description="Also record Python functions.")] = False


def schema(arguments: type[Struct]) -> dict[str, Any]:
    """Return the JSON schema of some arguments."""
    _, components = msgspec.json.schema_components([arguments])
    found = components[arguments.__name__]
    return {key: value for key, value in found.items() if key not in {"title", "description"}}
