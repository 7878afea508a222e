"""The fields of each answer, from which the output schemas of the tools are made. Any field may be absent."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

Number = float | Literal["nan", "inf", "-inf"]
Health = Literal["ok", "slow", "broken"]
Entry = dict[str, Any]
Entries = list[Entry]

OF_ANY: Mapping[str, Any] = {"left_out": dict[str, int], "next": int, "now": float}
OF_TOOL: Mapping[str, Mapping[str, Any]] = {
    "overview": {
        "health": Health,
        "runs": Entries,
        "more_alive": int,
        "machine_alerts": Entries,
        "ended": Entries,
        "config": list[list[str]],
    },
    "runs": {"runs": Entries, "hint": str},
    "why": {
        **dict.fromkeys(("cause", "summary", "advice", "check"), str),
        **dict.fromkeys(("lost_seconds", "low", "high", "gpu_hours", "cost", "wall_seconds"), float),
        "health": Health,
        "evidence": list[str],
        "verdict": str | None,
        "hang": str | None,
        "run": Entry,
        "ledger": dict[str, float],
        "further_causes": Entries,
    },
    "changes": {
        "since": float,
        "states": dict[str, int],
        "began_alerts": int,
        "settings": Entries,
        "alerts": Entries,
        "runs": Entries,
    },
    "rank": {
        "best": str | None,
        "tied_with": list[str],
        "key": str,
        "ranked": Entries,
        "not_ranked": Entries,
        "note": str,
    },
    "checkpoints": {
        "resume_from": Entry | None,
        "best": Entry | None,
        "metric": str,
        "run": str,
        "check": str,
        "checkpoints": Entries,
    },
    "alerts": {"alerts": Entries},
    "compare": {"effects": Entries, "runs": list[str], "baseline": list[str], "chosen": str, "missing": str},
    # series is a list of curves, with points of these columns; beside keys, the number of them
    "series": {"keys": Entries, "columns": list[str], "series": Entries | int, "missing": list[str]},
    "wait": {
        **dict.fromkeys(("reason", "state", "cause", "run"), str),
        "step": int | None,
        "loss": Number,
        "alerts": Entries,
    },
    "capture": {**dict.fromkeys(("state", "id", "reason"), str), "text": list[str]},
}


def schema(tool: str) -> dict[str, Any]:
    """Return the JSON schema of a tool's answer."""
    fields = {**OF_TOOL[tool], **OF_ANY}
    return {"type": "object", "properties": {name: msgspec.json.schema(kind) for name, kind in fields.items()}}
