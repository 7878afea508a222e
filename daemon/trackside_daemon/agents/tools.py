"""The tools that agents may call, with their descriptions."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from trackside_daemon.agents import arguments
from trackside_daemon.agents.untrusted import NOTE

INSTRUCTIONS = (
    "trackside monitors training runs on this machine. `runs` lists them. `why` names the cause of lost time or trouble of a run "
    "first, with evidence and advice; prefer it to reading curves. `wait` returns when something happens, so do not poll. "
    f"Every answer has at most 8 kB; `left_out` counts what had no room. Times are Unix seconds. {NOTE}"
)


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
            "inputSchema": arguments.schema(self.arguments),
            "annotations": hints,
        }


TOOLS = {
    "runs": Tool(arguments.RunsArguments, "List training runs, the newest first, with state, step and loss."),
    "why": Tool(
        arguments.WhyArguments,
        "Explain why a run is slow or broken: `cause` comes first (none if nothing is wrong), with lost seconds, evidence, advice, "
        "and a check for afterwards. `ledger` has the seconds of the run by account.",
    ),
    "compare": Tool(
        arguments.CompareArguments,
        "Compare runs with a baseline: step time, throughput, memory, energy, cost, loss and other keys, each with a ratio and the "
        "95 % interval (low, high) of the noise.",
    ),
    "series": Tool(
        arguments.SeriesArguments,
        "Return curves of a run in at most 200 points, each with the minimum, maximum and last value of its steps. Without keys, "
        "list the keys with their last values.",
    ),
    "wait": Tool(
        arguments.WaitArguments,
        "Wait until the run has an alert, ends or reaches a step, or until the time-out. `reason` is alert, end, step or timeout.",
    ),
    "capture": Tool(
        arguments.CaptureArguments,
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
