"""The tools that agents may call: their arguments, of whose classes the JSON schemas are made, and their descriptions."""

import re
import time
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from trackside_daemon.agents import shapes
from trackside_daemon.agents.untrusted import NOTE
from trackside_daemon.model.capture import KindName
from trackside_daemon.model.finding import Severity

INSTRUCTIONS = (
    "trackside monitors training runs on this machine. `overview` says how they stand: progress, time left, what is unsaved. `why` "
    "explains what stops a run, or else where its time goes, with advice; prefer it to reading curves. `health` is ok, slow or broken. "
    "`rank` says which run is best, `checkpoints` from which to resume, `changes` what is new. `wait` returns when something happens, "
    "so do not poll. Before you end a run, see its `remaining_seconds` and `unsaved_seconds` in `overview`. An answer has at most "
    f"1,500 tokens; `next` is the offset of what follows, `left_out` counts what had no room. Times are Unix seconds. {NOTE}"
)
RANK_NOTE = (
    "tied: the 95 % interval of the difference from the best run has 0. Intervals of two runs come from the noise within them, "
    "not from what differs from start to start: several seeds of each, in compare, show that."
)
RESULT_NOTE = "These are results of run.summary, one number a run: their noise is unknown. Compare several seeds."

MOST_POINTS = 200
MOST_KEYS = 20
MOST_RANKED = 16
MOST_ALERTS = 20
LONGEST_WAIT = 3600.0

Text = Annotated[str, Meta(max_length=1000)]
RunName = Annotated[
    Text, Meta(description="A run: its id, the beginning of its id, or its name, which means its newest run.")
]
Keys = Annotated[list[Text], Meta(max_length=MOST_KEYS, description="Keys that the training pushed, such as loss.")]


Offset = Annotated[int, Meta(ge=0, le=10_000, description="`next` of the answer before, for more of the same list.")]
Since = Annotated[float | None, Meta(description="Only since this Unix time.")]
Query = Annotated[
    Text, Meta(description="Only runs that this selects: lr=3e-4 bs>=64 tag:sweep failed -debug older:7d.")
]


class OverviewArguments(Struct, forbid_unknown_fields=True):
    """Arguments of ``overview``."""

    run: Annotated[Text, Meta(description="Only this run; without it, all live runs.")] = ""


class ChangesArguments(Struct, forbid_unknown_fields=True):
    """Arguments of ``changes``."""

    hours: Annotated[float, Meta(gt=0, le=100_000, description="Since so many hours ago.")] = 24.0
    since: Annotated[float | None, Meta(description="Since this Unix time, instead.")] = None
    offset: Offset = 0


class RankArguments(Struct, forbid_unknown_fields=True):
    """Arguments of ``rank``."""

    key: Annotated[Text, Meta(description="A key, or a result of run.summary.")] = "loss"
    runs: Annotated[list[RunName], Meta(max_length=MOST_RANKED, description="The runs.")] = []
    query: Query = ""
    higher: Annotated[bool, Meta(description="The highest is the best.")] = False


class CheckpointsArguments(Struct, forbid_unknown_fields=True):
    """Arguments of ``checkpoints``."""

    run: RunName
    metric: Annotated[Text, Meta(description="The key that says which is the best; by default the loss.")] = ""
    higher: Annotated[bool, Meta(description="The highest is the best.")] = False
    offset: Offset = 0


class AlertsArguments(Struct, forbid_unknown_fields=True):
    """Arguments of ``alerts``."""

    run: Annotated[Text, Meta(description="Only alerts of this run; without it, of all and of the machine.")] = ""
    firing: Annotated[bool, Meta(description="Only those that fire now.")] = False
    severity: Annotated[Severity | None, Meta(description="Only those of this severity.")] = None
    since: Since = None
    offset: Offset = 0


class RunsArguments(Struct, forbid_unknown_fields=True):
    """Arguments of ``runs``."""

    name: Annotated[Text, Meta(description="Only runs with this in their names.")] = ""
    tag: Annotated[Text, Meta(description="Only runs with this tag.")] = ""
    state: Annotated[
        Literal["", "starting", "running", "stalled", "finished", "stopped", "failed", "lost"],
        Meta(description="Only runs in this state."),
    ] = ""
    query: Query = ""
    since: Since = None
    limit: Annotated[int, Meta(ge=1, le=100, description="Number of runs, the newest first.")] = 20
    offset: Offset = 0


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
    offset: Offset = 0


class LogsArguments(Struct, forbid_unknown_fields=True):
    """Arguments of ``logs``."""

    run: RunName
    search: Annotated[Text, Meta(description="Only lines that contain this text, in any case.")] = ""
    offset: Offset = 0


class LayersArguments(Struct, forbid_unknown_fields=True):
    """Arguments of ``layers``."""

    run: RunName
    offset: Offset = 0


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
    """A tool."""

    arguments: type[msgspec.Struct]  # the class of its arguments
    description: str  # what it does, for the agent
    acts: bool = False  # whether it acts on the training, which must be allowed

    def listed(self, name: str) -> dict[str, Any]:
        """Return the tool as the protocol lists it."""
        hints = {"readOnlyHint": not self.acts, "destructiveHint": False, "openWorldHint": False}
        return {
            "name": name,
            "description": self.description,
            "inputSchema": schema(self.arguments),
            "outputSchema": shapes.schema(name),
            "annotations": hints,
        }


TOOLS = {
    "overview": Tool(
        OverviewArguments,
        "How the live runs stand, what is broken first: step of total_steps, remaining_seconds, the newest checkpoint, unsaved_seconds "
        "(what is lost if the run ends now), the alerts that fire; or one run, also an ended one, with its settings.",
    ),
    "runs": Tool(RunsArguments, "List training runs, the newest first, with state, step, loss and results."),
    "why": Tool(
        WhyArguments,
        "Explain why a run is slow or broken: `cause` first (none if nothing is wrong; what stops the run before what slows it), with lost seconds, evidence, advice, "
        "and a check for afterwards. `ledger` has the seconds of the run by account.",
    ),
    "changes": Tool(
        ChangesArguments,
        "What is new since yesterday, or since a time: runs that began or ended, alerts that began, and the settings in which a "
        "new run differs from the run before of its name.",
    ),
    "rank": Tool(
        RankArguments,
        "Which of several runs is best by a key or a result, with the difference of each from the best, and `tied_with` those that "
        "noise alone may separate from it.",
    ),
    "checkpoints": Tool(
        CheckpointsArguments,
        "`resume_from`: the newest checkpoint that an audit has found intact; `best`: the intact one with the best metric; and all "
        "of them, with the reason why one is damaged.",
    ),
    "alerts": Tool(AlertsArguments, "Alerts of a run or of all, the newest first, with advice while they fire."),
    "compare": Tool(
        CompareArguments,
        "Compare runs with a baseline: step time, throughput, memory, energy, cost, loss and other keys, each with a ratio and the "
        "95 % interval (low, high) of the noise. For seeds, name those of each side.",
    ),
    "series": Tool(
        SeriesArguments,
        "Return curves of a run in at most 200 points, each with the minimum, maximum and last value of its steps. Without keys, "
        "list the keys with their last values.",
    ),
    "logs": Tool(
        LogsArguments,
        "The last lines that the command of a run printed, the newest first, if trackside run --console keeps them.",
    ),
    "layers": Tool(
        LayersArguments,
        "The layers of an observed model that stand out most: with an alert, without a gradient, far from the median of all.",
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
        known = ", ".join(one for one, tool in TOOLS.items() if actions or not tool.acts)
        raise LookupError(f"tool {name[:60]!r}: there is none; use one of {known}")
    if tool.acts and not actions:
        raise LookupError(f"tool {name!r} is off; a person allows it with trackside mcp --allow-actions")
    try:
        wanted = msgspec.convert(given or {}, tool.arguments)
    except msgspec.ValidationError as error:
        raise ValueError(
            f"{_explained(str(error))}; {name} has {', '.join(tool.arguments.__struct_fields__)}"
        ) from None
    return {**await getattr(answers, name)(wanted), "now": time.time()}


def _explained(text: str) -> str:
    """Return what is wrong with arguments, with the name of the argument first."""
    text = re.sub(r"^Object missing required field `(.*)`$", r"\1: is missing", text)
    text = re.sub(r"^Object contains unknown field `(.*)`$", r"\1: there is no such argument", text)
    return re.sub(r"^(.)(.*) - at `\$\.(.*)`$", lambda found: f"{found[3]}: {found[1].lower()}{found[2]}", text)
