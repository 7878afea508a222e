"""A comparison of groups of runs: their configurations, results, speed and metrics, with a column for each group."""

from collections.abc import Iterator, Sequence
from math import isnan
from typing import Any

from trackside_daemon.documents.diagnosis import change
from trackside_daemon.documents.elements import Document, Table
from trackside_daemon.documents.groups import Comparison, Run, RunGroup, Statistics, is_nonfinite
from trackside_daemon.documents.run import metrics
from trackside_daemon.model.configuration import config, result, setting
from trackside_daemon.model.text import cut, duration, measured, number

Row = Sequence[str]


COMMAND = 60  # most letters of a command in a cell
VALUES = 3  # most different values of a group in one cell


def document(comparison: Comparison) -> Document:
    """Return a table for each kind of values, with a column for each group."""
    groups = comparison.groups
    header = ["", *(f"{each.name} ({_members(each)})" for each in groups)]
    commands = [list(dict.fromkeys(map(_command, each.runs))) for each in groups]
    parts: dict[str, Sequence[Row]] = {
        "differences": [("command", *map(_shown, commands))] if any(one != commands[0] for one in commands) else [],
        "configuration differences": list(_differing(groups)),
        "results": [(key, *(_result(comparison, each, key) for each in groups)) for key in comparison.results()],
        "against the baseline": list(_effects(comparison)),
        "measured": list(_measured(comparison)),
        "metrics": list(_metrics(comparison)),
    }
    names = ", ".join(each.name for each in groups)
    return Document(f"Comparison of {names}", [Table(title, header, rows) for title, rows in parts.items()])


def numbers(comparison: Comparison) -> Document:
    """Return a row for each group, with the statistics of each value and its ratio to the baseline as programs read them."""
    keys = list(dict.fromkeys([*comparison.results(), *_quantities(comparison)]))
    keys += [key for key in _keys(comparison) if key not in keys]
    several = any(len(each.runs) > 1 for each in comparison.groups)
    fields = ("n", "mean", "std", "low", "high") if several else ("mean",)
    ratios = ("ratio", "low", "high") if comparison.baseline else ()
    rows = []
    names = [key if field == "mean" else f"{key}.{field}" for key in keys for field in fields]
    names += [f"{key}.{'ratio' if field == 'ratio' else f'ratio_{field}'}" for key in keys for field in ratios]
    for each in comparison.groups:
        found = {key: comparison.statistics(each, key) for key in keys}
        effects = {key: comparison.effect(each, key) or {} for key in keys} if ratios else {}
        values = [
            _result(comparison, each, key) if found[key] is None else _csv(getattr(found[key], field))
            for key in keys
            for field in fields
        ]
        values += [_csv(effects[key].get(field)) for key in keys for field in ratios]
        rows.append([each.name, " ".join(run["id"] for run in each.runs), *values])
    return Document("", [Table("", ["name", "runs", *names], rows)])


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return JSON; lists without a name have an entry per run, in the order of ``runs``."""
    runs: list[Run] = list({run["id"]: run for each in comparison.groups for run in each.runs}.values())
    by_run = [{metric["key"]: metric for metric in metrics(run)} for run in runs]
    keys = dict.fromkeys(key for by_key in by_run for key in by_key)
    values = [*comparison.results(), *_quantities(comparison), *keys]
    return {
        "runs": [{name: run[name] for name in ("id", "name", "state", "started", "ended")} for run in runs],
        "commands": [_command(run) for run in runs],
        "configuration": {
            key: [None if value is None else value[0] for value in row] for key, row in differences(runs).items()
        },
        "results": {key: [run.get("summary", {}).get(key) for run in runs] for key in comparison.results()},
        "metrics": {key: [by_key.get(key) for by_key in by_run] for key in keys},
        "baseline": [run["id"] for run in comparison.baseline.runs] if comparison.baseline else [],
        "groups": [
            {
                "name": each.name,
                "runs": [run["id"] for run in each.runs],
                "values": {
                    key: {name: _known(value) for name, value in found._asdict().items()}
                    for key in values
                    if (found := comparison.statistics(each, key))
                },
                "effects": list(comparison.effects(each).values()) if comparison.baseline else [],
            }
            for each in comparison.groups
        ],
    }


def differences(runs: Sequence[Run]) -> dict[str, list[tuple[Any] | None]]:
    """Return the configuration entries that are not equal in all runs, as 1-tuples; None for a run that lacks one."""
    configs = [config(run) for run in runs]
    keys = dict.fromkeys(key for entries in configs for key in entries)
    rows = {key: [(entries[key],) if key in entries else None for entries in configs] for key in keys}
    return {key: row for key, row in rows.items() if any(setting(value) != setting(row[0]) for value in row)}


def _members(each: RunGroup) -> str:
    return str(each.runs[0]["id"]) if len(each.runs) == 1 else f"{len(each.runs)} runs"


def _differing(groups: Sequence[RunGroup]) -> Iterator[Row]:
    places = [(place, run) for place, each in enumerate(groups) for run in each.runs]
    for key, row in differences([run for _, run in places]).items():
        texts: list[list[str]] = [[] for _ in groups]
        for (place, _), value in zip(places, row, strict=True):
            texts[place].append("-" if value is None else setting(value[0]))
        yield key, *map(_joined, texts)


def _joined(texts: Sequence[str]) -> str:
    """Return the different texts of a group in one cell."""
    distinct = list(dict.fromkeys(texts))
    return ", ".join(distinct) if len(distinct) <= VALUES else f"{len(distinct)} values"


def _result(comparison: Comparison, each: RunGroup, key: str) -> str:
    if (found := comparison.statistics(each, key)) is not None:
        return _cell(found)
    stated = [run["summary"][key] for run in each.runs if key in run.get("summary", {})]
    return _joined([result(value) for value in stated]) or "-"


def _cell(found: Statistics | None, unit: str = "") -> str:
    """Return a mean, for several runs with half of its interval and the standard deviation."""
    if found is None or found.n == 1 or not found.std:
        return "-" if found is None else measured(found.mean, unit)
    half, std = (measured(value, unit, 2) for value in ((found.high - found.low) / 2, found.std))
    return f"{measured(found.mean, unit)} ± {half}, std {std}"


def _effects(comparison: Comparison) -> Iterator[Row]:
    """Yield the ratio of each value to the baseline's, with its interval."""
    for key in dict.fromkeys([*comparison.results(), *_quantities(comparison)]) if comparison.baseline else ():
        row = [
            "baseline" if each is comparison.baseline else change(comparison.effect(each, key) or {})
            for each in comparison.groups
        ]
        if not set(row) <= {"-", "baseline"}:
            yield key, *row


def _quantities(comparison: Comparison) -> list[str]:
    found = (effect for each in comparison.groups for effect in comparison.effects(each).values())
    return list(dict.fromkeys(one["quantity"] for one in found if one["value"] is not None or is_nonfinite(one)))


def _measured(comparison: Comparison) -> Iterator[Row]:
    for key in _quantities(comparison):
        effects = [comparison.effects(each).get(key, {}) for each in comparison.groups]
        units = {effect["unit"] for effect in effects if effect.get("unit")}
        ends = {effect["at"] for effect in effects if effect.get("at") is not None}
        mean = f" (mean to step {number(next(iter(ends)))})" if len(ends) == 1 else ""
        at = "" if key.endswith("_tokens") else mean
        unit = units.pop() if len(units) == 1 else ""
        yield f"{key}{at}", *(_cell(comparison.statistics(each, key), unit) for each in comparison.groups)


def _keys(comparison: Comparison) -> list[str]:
    runs = (run for each in comparison.groups for run in each.runs)
    return list(dict.fromkeys(metric["key"] for run in runs for metric in metrics(run)))


def _metrics(comparison: Comparison) -> Iterator[Row]:
    for key in _keys(comparison):
        for part in ("final", "best"):
            found = [comparison.statistics(each, f"{key}.{part}") for each in comparison.groups]
            if part == "final" or any(found):
                yield f"{key} {part}", *map(_cell, found)
    yield "last step", *(_cell(comparison.statistics(each, "step")) for each in comparison.groups)
    lasted = [comparison.statistics(each, "wall_seconds") for each in comparison.groups]
    yield "duration", *(duration(None if one is None else one.mean) for one in lasted)


def _command(run: Run) -> str:
    """Return the command line of a run's last attempt; empty if it is not known."""
    return " ".join((run["attempt_list"] or [{}])[-1].get("command") or ())


def _shown(commands: Sequence[str]) -> str:
    """Return the command of a group, or how many it has: joined, they would be wider than a terminal."""
    return f"{len(commands)} commands" if len(commands) > 1 else cut(commands[0], COMMAND)


def _csv(value: Any) -> str:
    """Return a number as it is read again; empty for what is unknown."""
    return "" if _known(value) is None else str(value)


def _known(value: Any) -> Any:
    """Return a value, or None for NaN."""
    return None if isinstance(value, float) and isnan(value) else value
