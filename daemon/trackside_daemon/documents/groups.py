"""Groups of runs, their values, and how these differ from a baseline."""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf, isfinite, nan, sqrt
from typing import Any, NamedTuple

from trackside_daemon.config.near import near_name
from trackside_daemon.diagnosis.comparison import Effect, compared
from trackside_daemon.diagnosis.estimates import Estimate, pooled
from trackside_daemon.documents.run import metrics
from trackside_daemon.model.configuration import config, meant, setting

Compare = Callable[[Sequence[str], Sequence[str], Sequence[str]], Mapping[str, Any]]


Run = Mapping[str, Any]

PARTS = ("final", "best", "mean", "min", "max")
"""The values of a key after its name and a dot, as in ``loss.best``."""


class RunGroup(NamedTuple):
    """Runs that are one column of a comparison."""

    name: str
    runs: Sequence[Run]


class Statistics(NamedTuple):
    """A value over the runs of a group: how many have it, mean, standard deviation, and the 95 % interval of the mean.

    What is unknown is NaN: a single run shows neither deviation nor interval.
    """

    n: int
    mean: float
    std: float = nan
    low: float = nan
    high: float = nan
    min: float = nan
    max: float = nan


def group(runs: Sequence[Run], by: str) -> list[RunGroup]:
    """Return the runs in groups: one of each without *by*, by tag (a run counts in the group of each), name, or config.KEY.

    Raises:
        LookupError: No run has this key.
    """
    if not by:
        return [RunGroup(run["name"], [run]) for run in runs]
    groups: dict[str, list[Run]] = {}
    known = dict.fromkeys(f"config.{key}" for run in runs for key in config(run))
    keys = [] if by in {"tag", "name"} else sorted(meant(known, by))
    if not keys and by not in {"tag", "name"}:
        raise LookupError(f"no run has this key{near_name(by, known)}")
    for run in runs:
        for name in _groups_of(run, by, [key.removeprefix("config.") for key in keys]):
            groups.setdefault(name, []).append(run)
    return [RunGroup(name, members) for name, members in groups.items()]


def _groups_of(run: Run, by: str, keys: Sequence[str]) -> Sequence[str]:
    if by == "tag":
        return run["tags"] or ("no tag",)
    if by == "name":
        return (run["name"],)
    asked, settings = by.removeprefix("config."), config(run)
    values = [f"{asked if len(keys) == 1 else key} {setting(settings[key])}" for key in keys if key in settings]
    return (", ".join(values) or f"no {asked}",)


class Comparison:
    """The values of groups of runs, and how they differ from a baseline; read from the history as needed.

    Args:
        compare: Reads the effects of runs against others, by their ids, with the keys.
        groups: The groups.
        baseline: What they are compared with; None for nothing.
        keys: Keys whose curves are compared, besides the loss.
    """

    def __init__(
        self, compare: Compare, groups: Sequence[RunGroup], baseline: RunGroup | None = None, keys: Collection[str] = ()
    ) -> None:
        self.groups = groups
        self.baseline = baseline
        self._compare = compare
        self._keys = sorted(keys)
        self._read: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}

    def results(self) -> list[str]:
        """Return the keys of the results that runs state."""
        return list(dict.fromkeys(key for each in self.groups for run in each.runs for key in run.get("summary", {})))

    def effects(self, each: RunGroup) -> dict[str, dict[str, Any]]:
        """Return the measured effects of a group by quantity, as `Effect`; without a baseline, only their values mean something."""
        return self._effects([run["id"] for run in each.runs])

    def value(self, run: Run, key: str) -> Any:
        """Return a value of a run: a result, a measured quantity, a part of a key, or a property; None if it has none."""
        if key in run.get("summary", {}):
            return run["summary"][key]
        effect = self._effects([run["id"]]).get(key, {})
        if effect.get("value") is not None:
            return effect["value"]
        summaries = {metric["key"]: metric for metric in metrics(run)}
        name, _, part = key.rpartition(".")
        if part in PARTS and name in summaries:
            return summaries[name][part]
        if key in summaries:
            return summaries[key]["final"]
        own = {"step": run["step"], "wall_seconds": None if run["ended"] is None else run["ended"] - run["started"]}
        return own.get(key)

    def numbers(self, each: RunGroup, key: str) -> list[float]:
        """Return the numbers of the runs that have this value."""
        found = (self.value(run, key) for run in each.runs)
        return [number for value in found if (number := as_number(value)) is not None]

    def statistics(self, each: RunGroup, key: str) -> Statistics | None:
        """Return a value over the runs of a group; None if no run has it as a number."""
        numbers = self.numbers(each, key)
        if not numbers:
            return None
        if len(numbers) == 1:
            return Statistics(1, numbers[0], min=numbers[0], max=numbers[0])
        estimate = pooled([Estimate(number) for number in numbers])
        std = sqrt(estimate.variance * len(numbers)) if isfinite(estimate.variance) else nan
        return Statistics(len(numbers), estimate.value, std, *estimate.interval(), min(numbers), max(numbers))

    def effect(self, each: RunGroup, key: str) -> Mapping[str, Any] | None:
        """Return how a value of a group differs from the baseline's, as `Effect`; None if that is unknown."""
        if self.baseline is None:
            return None
        stated = any(key in run.get("summary", {}) for run in each.runs)
        if not stated and key in (effects := self.effects(each)):
            return effects[key] if effects[key]["value"] is not None or is_nonfinite(effects[key]) else None
        one, other = self.numbers(each, key), self.numbers(self.baseline, key)
        if not one or not other:
            return None
        # A single number does not show its noise, except by that of several on the other side.
        variance = inf if len(one) == len(other) == 1 else 0.0
        sides = ([Estimate(number, variance) for number in numbers] for numbers in (one, other))
        return compared(Effect(key, "", ""), *sides)._asdict()

    def _effects(self, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        place = tuple(ids)
        if place not in self._read:
            usual = ids if self.baseline is None else [run["id"] for run in self.baseline.runs]
            found = self._compare(ids, usual, self._keys)["effects"]
            self._read[place] = {effect["quantity"]: effect for effect in found}
        return self._read[place]


def is_nonfinite(effect: Mapping[str, Any]) -> bool:
    """Return whether nothing was compared because values were NaN or infinite."""
    return bool(effect.get("nonfinite"))  # older daemons do not report it


def as_number(value: Any) -> float | None:
    """Return a number, also from the texts for NaN and infinities; None for other values."""
    if isinstance(value, str) and value in {"nan", "inf", "-inf"}:
        return float(value)
    return float(value) if isinstance(value, int | float) else None
