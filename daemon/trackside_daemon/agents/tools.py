"""The tools that agents may call: their arguments, of whose classes the JSON schemas are made, and their descriptions."""

from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from trackside_daemon.agents.untrusted import NOTE
from trackside_daemon.model.capture import KindName

INSTRUCTIONS = (
    "trackside monitors training runs on this machine. `runs` lists them. `why` names the cause of lost time or trouble of a run "
    "first, with evidence and advice; prefer it to reading curves. `wait` returns when something happens, so do not poll. "
    f"Every answer has at most 8 kB; `left_out` counts what had no room. Times are Unix seconds. {NOTE}"
)

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
    query: Annotated[
        Text, Meta(description="Only runs that this selects: lr=3e-4 bs>=64 tag:sweep failed -debug older:7d.")
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


class Tool(NamedTuple):
    """A tool.

    Attributes:
        arguments: The class of its arguments.
        description: What it does, for the agent.
        acts: Whether it acts on the training, which must be allowed.
    """

    arguments: type[msgspec.Struct]
    description: str
    acts: bool = False

    def listed(self, name: str) -> dict[str, Any]:
        """Return the tool as the protocol lists it."""
        hints = {"readOnlyHint": not self.acts, "destructiveHint": False, "openWorldHint": False}
        return {
            "name": name,
            "description": f"{self.description} {NOTE}",
            "inputSchema": schema(self.arguments),
            "annotations": hints,
        }


TOOLS = {
    "runs": Tool(RunsArguments, "List training runs, the newest first, with state, step and loss."),
    "why": Tool(
        WhyArguments,
        "Explain why a run is slow or broken: `cause` comes first (none if nothing is wrong), with lost seconds, evidence, advice, "
        "and a check for afterwards. `ledger` has the seconds of the run by account.",
    ),
    "compare": Tool(
        CompareArguments,
        "Compare runs with a baseline: step time, throughput, memory, energy, cost, loss and other keys, each with a ratio and the "
        "95 % interval (low, high) of the noise.",
    ),
    "series": Tool(
        SeriesArguments,
        "Return curves of a run in at most 200 points, each with the minimum, maximum and last value of its steps. Without keys, "
        "list the keys with their last values.",
    ),
    "wait": Tool(
        WaitArguments,
        "Wait until the run has an alert, ends or reaches a step, or until the time-out. `reason` is alert, end, step or timeout.",
    ),
    "capture": Tool(
        CaptureArguments,
        "Record a live run for some steps, and return where their time goes. The training is slower meanwhile.",
        acts=True,
    ),
}


def listed(*, actions: bool) -> list[dict[str, Any]]:
    """Return the tools; those that act only if *actions* are allowed."""
    return [tool.listed(name) for name, tool in TOOLS.items() if actions or not tool.acts]


async def call(answers: object, name: str, given: Any, *, actions: bool) -> dict[str, Any]:
    """Call a tool, and return its answer.

    Raises:
        LookupError: There is no such tool, or it is not allowed, or no such run.
        ValueError: The arguments do not fit.
    """
    tool = TOOLS.get(name)
    if tool is None:
        raise LookupError(f"tool {name[:60]!r}: there is none; use one of {', '.join(TOOLS)}")
    if tool.acts and not actions:
        raise LookupError(f"tool {name!r} is off; a person allows it with trackside mcp --allow-actions")
    wanted = msgspec.convert(given or {}, tool.arguments)  # its ValidationError is a ValueError
    answer: dict[str, Any] = await getattr(answers, name)(wanted)
    return answer
