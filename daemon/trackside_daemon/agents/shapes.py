"""The fields of each answer, from which the output schemas of the tools are made. Any field may be absent."""

from collections.abc import Mapping
from types import GenericAlias
from typing import Any, Literal, TypedDict

import msgspec

Number = float | Literal["nan", "inf", "-inf"]
Result = bool | Number
Health = Literal["ok", "slow", "broken"]
Fields = Mapping[str, Any]


def _of(kind: Any, *names: str) -> dict[str, Any]:
    return dict.fromkeys(names, kind)


RUN: Fields = {
    **_of(str, "id", "name", "state", "cause"),
    **_of(float, "started", "ended"),
    **_of(int, "attempt", "step"),
    "loss": Number,
    "tags": list[str],
    "summary": list[list[str | Result]],
}
CAUSE: Fields = {
    **_of(str, "cause", "summary", "advice", "check"),
    **_of(float, "lost_seconds", "low", "high", "gpu_hours", "cost"),
    "evidence": list[str],
}
DIFFERENCE = {"value": Result, **_of(Number, "difference", "difference_low", "difference_high", "at")}
METRIC: Fields = {"key": str, **_of(int, "rank", "attempt", "last_step"), **_of(Number, "last", "min", "max")}


def _entry(name: str, fields: Fields) -> Any:
    """Return a type with fields that may all be absent."""
    return TypedDict(name, dict(fields), total=False)  # type: ignore[operator]


def _many(entry: Any) -> Any:
    return GenericAlias(list, (entry,))


Run = _entry("Run", RUN)
Times = _of(float, "started", "ended", "silenced_until")
Alert = _entry("Alert", {"id": int, **_of(str, "alert", "severity", "run", "summary", "advice"), **Times})
Audited = {**_of(str, "path", "state", "reason"), **_of(int, "step", "attempt"), "good": bool, "value": Number}
Checkpoint = _entry("Checkpoint", {**Audited, **_of(float, "checked", "age_seconds")})
Standing = _entry(
    "Standing",
    {
        **RUN,
        **_of(float, "remaining_seconds", "unsaved_seconds"),
        "health": Health,
        "verdict": str,
        "total_steps": int,
        "checkpoint": Checkpoint | None,
        "firing": _many(Alert),
    },
)
Setting = _entry("Setting", _of(str, "key", "before", "now"))
Changed = _entry("Changed", {**_of(str, "run", "before"), "differs": _many(Setting)})
Ranked = _entry("Ranked", {**_of(str, "id", "name", "unknown"), **DIFFERENCE, "tied": bool})
Effect = _entry(
    "Effect",
    {
        **_of(str, "quantity", "unit", "better", "unknown", "nonfinite"),
        **DIFFERENCE,
        **_of(Number, "baseline", "ratio", "low", "high"),
    },
)
Curve = _entry("Curve", {"key": str, **_of(int | None, "rank", "attempt"), "points": list[list[Number | None]]})
Layer = _entry(
    "Layer",
    {
        **_of(Number | None, "norm", "update_ratio", "gradient", "zeros", "largest", "entropy"),
        "layer": str,
        "alerts": list[str],
    },
)

OF_ANY: Fields = {"left_out": dict[str, int], "next": int, "now": float}
OF_TOOL: Mapping[str, Fields] = {
    "overview": {
        "health": Health,
        "runs": _many(Standing),
        "more_alive": int,
        "machine_alerts": _many(Alert),
        "ended": _many(Run),
        "config": list[list[str]],
    },
    "runs": {"runs": _many(Run), "hint": str},
    "why": {
        **CAUSE,
        "health": Health,
        **_of(str | None, "verdict", "hang"),
        "run": Run,
        "wall_seconds": float,
        "ledger": dict[str, float],
        "further_causes": _many(_entry("Cause", CAUSE)),
    },
    "changes": {
        "since": float,
        "states": dict[str, int],
        "began_alerts": int,
        "settings": _many(Changed),
        "alerts": _many(Alert),
        "runs": _many(Run),
    },
    "rank": {
        "best": str | None,
        "tied_with": list[str],
        **_of(str, "key", "note"),
        "ranked": _many(Ranked),
        "not_ranked": _many(_entry("NotRanked", _of(str, "id", "why"))),
    },
    "checkpoints": {
        **_of(Checkpoint | None, "resume_from", "best"),
        **_of(str, "metric", "run", "check"),
        "checkpoints": _many(Checkpoint),
    },
    "alerts": {"alerts": _many(Alert)},
    "compare": {"effects": _many(Effect), **_of(list[str], "runs", "baseline"), **_of(str, "chosen", "missing")},
    # series is a list of curves, with points of these columns; beside keys, the number of them
    "series": {
        "keys": _many(_entry("Metric", METRIC)),
        "columns": list[str],
        "series": _many(Curve) | int,
        "missing": list[str],
    },
    "logs": {"lines": list[list[int | str]], "total": int, "missing": str},
    "layers": {"layers": _many(Layer), "steps": dict[str, int | None], "missing": str},
    "wait": {**_of(str, "reason", "state", "cause", "run"), "step": int | None, "loss": Number, "alerts": _many(Alert)},
    "capture": {**_of(str, "state", "id", "reason"), "text": list[str]},
}


def schema(tool: str) -> dict[str, Any]:
    """Return the JSON schema of a tool's answer."""
    fields = {**OF_TOOL[tool], **OF_ANY}
    kinds, entries = msgspec.json.schema_components(list(fields.values()), ref_template="#/$defs/{name}")
    for entry in entries.values():
        del entry["title"], entry["required"]
    return {"type": "object", "properties": dict(zip(fields, kinds, strict=True)), "$defs": entries}
