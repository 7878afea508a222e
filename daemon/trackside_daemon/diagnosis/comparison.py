"""Find the baseline of a run, and compare runs with it: each effect with an interval from the noise of the runs."""

from __future__ import annotations

import json
from itertools import chain
from math import isfinite, isinf, isnan
from pathlib import PurePath
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.causes import engine
from trackside_daemon.causes.facts import read_facts, read_times
from trackside_daemon.detectors.key_roles import role
from trackside_daemon.diagnosis.costs import costs, energy, total_joules
from trackside_daemon.diagnosis.estimates import Estimate, batched, difference, half_width, pooled
from trackside_daemon.diagnosis.measures import END, read_bins, read_measures, scaled, with_usage
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.reader import RunFilter, UnknownRunError
from trackside_daemon.history.read.series import LOSSES, LogTails, Window
from trackside_daemon.history.read.summary import summary
from trackside_daemon.model.metric import json_number

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from trackside_daemon.causes.readings import Rise
    from trackside_daemon.diagnosis.measures import Measures
    from trackside_daemon.diagnosis.settings import CostSection


MOST = 8  # newest runs with a tag
CANDIDATES = 64  # runs of the same name that are looked at


class Baseline(NamedTuple):
    """Runs to compare with."""

    runs: tuple[str, ...]  # their ids
    chosen: str  # how they were found: ``run``, ``tag``, ``pinned`` or ``name``


def find_baseline(connection: sqlite3.Connection, uid: str, text: str = "") -> Baseline | None:
    """Return the baseline of a run, by its id.

    Args:
        connection: In a transaction.
        uid: The run's id.
        text: A run, or a tag, whose newest finished runs count. Empty for the newest pinned run of the same name,
            else the newest finished one that began earlier, with the same script in the same directory.

    Returns:
        The baseline; None if *text* is empty and there is none.

    Raises:
        UnknownRunError: *text* is neither a run nor a tag of another finished run, or there is no run with this id.
    """
    run = reader.head(connection, uid)
    if text:
        try:
            return Baseline((reader.resolve(connection, text),), "run")
        except UnknownRunError as error:
            tagged = reader.runs(connection, RunFilter(tag=text, state="finished", limit=MOST + 1))
            if not (found := [one["id"] for one in tagged if one["id"] != uid][:MOST]):
                raise UnknownRunError(f"{error}; no other finished run has this tag") from None
            return Baseline(tuple(found), "tag")
    named = connection.execute(
        "SELECT uid, pinned, (SELECT about FROM attempt WHERE run = run.id ORDER BY number DESC LIMIT 1) FROM run "
        "WHERE name = ? AND uid != ? AND NOT deleted AND ended IS NOT NULL AND started <= ? "
        "AND (pinned OR state = 'finished') ORDER BY pinned DESC, started DESC LIMIT ?",
        (run["name"], uid, run["started"], CANDIDATES),
    )
    own = _project(run["attempt_list"][-1]) if run["attempt_list"] else ()
    for other, pinned, about in named:
        if pinned or not own or (_project(json.loads(about or "{}")) or own) == own:
            return Baseline((other,), "pinned" if pinned else "name")
    return None


def _project(about: Mapping[str, Any]) -> tuple[str, ...]:
    """Return directory and script of a run, since many scripts are called train; empty if they are unknown."""
    words = [str(word) for word in about.get("command", ())[1:]]
    script = next((PurePath(word).name for word in words if not word.startswith("-")), "")
    return (str(about["directory"]), script) if about.get("directory") and script else ()


TOKENS = "_at_tokens"
"""End of the name of a quantity that is compared at equally many tokens instead of steps."""


class Effect(NamedTuple):
    """A quantity of some runs compared with the same of the baseline."""

    # ``step_time``, ``step_time_p25``, ``throughput``, a name of `_USED`, a key of the runs, or a key and `TOKENS`.
    quantity: str
    unit: str  # its unit; empty for keys
    better: str  # ``lower``, ``higher`` or, if that depends on the key, empty
    at: float | None = None  # the step, or the number of tokens, at which keys are compared; None for other quantities
    value: float | None = None  # the mean of the runs; None if it is unknown, like all that follow
    baseline: float | None = None  # the mean of the baseline
    ratio: float | None = None  # value / baseline; None too where the baseline is not above 0
    low: float | None = None  # the least ratio of the 95 % interval; None if the noise is unknown
    high: float | None = None  # the largest ratio of the interval
    difference: float | None = None  # value - baseline
    difference_low: float | None = None  # the least difference of the 95 % interval
    difference_high: float | None = None  # the largest difference of the interval
    unknown: str = ""  # why there is no value, or no interval; empty if there is
    # Who has NaN or an infinite value among those to compare, so that nothing is compared: ``baseline`` (and maybe the
    # runs), ``value`` (the runs); empty if all are finite. Gradient norms, which overflow in healthy runs, are compared
    # by their finite values.
    nonfinite: str = ""

    @property
    def is_worse(self) -> bool:
        """True if the whole interval is worse than the baseline."""
        if self.difference_low is None or self.difference_high is None:
            return False
        return (
            self.difference_low > 0 if self.better == "lower" else self.better == "higher" and self.difference_high < 0
        )


def read_comparison(
    connection: sqlite3.Connection,
    runs: Sequence[str],
    baseline: Sequence[str],
    keys: Collection[str],
    prices: CostSection,
    *,
    known: Mapping[str, Measures] | None = None,
    tails: LogTails | None = None,
) -> dict[str, Any]:
    """Return the comparison of runs with a baseline as JSON.

    Args:
        connection: In a transaction.
        runs: Ids or names of the runs to judge.
        baseline: Runs or tags; empty for the `find_baseline` of the first run.
        keys: Keys to compare, besides the runs' loss.
        prices: The configured prices.
        known: Measures of runs that are read already, by their ids.
        tails: Logs of streams that are read already.

    Returns:
        ``runs`` and ``baseline``: their ids; ``chosen``: see `Baseline`, empty without one; ``effects``: see `Effect`;
        ``causes``: why the steps of one run take longer than those of one baseline, the likeliest first, and ``conclusion``.

    Raises:
        UnknownRunError: A run is unknown.
        ValueError: A block is damaged.
    """
    ids = [reader.resolve(connection, text) for text in runs]
    found = [one for text in baseline or [""] if (one := find_baseline(connection, ids[0], text)) is not None]
    usual = list(dict.fromkeys(uid for one in found for uid in one.runs))
    effects = compare(connection, ids, usual, keys, prices, known=known, tails=tails) if usual else []
    causes, conclusion = _causes(connection, ids, usual, effects, LogTails(connection) if tails is None else tails)
    return {
        "runs": ids,
        "baseline": usual,
        "chosen": found[0].chosen if found else "",
        "effects": [as_json(one) for one in effects],
        "causes": [one.as_json() for one in causes],
        "conclusion": conclusion,
    }


def _causes(
    connection: sqlite3.Connection,
    runs: Sequence[str],
    baseline: Sequence[str],
    effects: Sequence[Effect],
    tails: LogTails,
) -> tuple[list[Rise], str]:
    """Return why the steps of a run take longer, and a sentence; nothing of several runs, or if they do not."""
    slower = [one for one in effects if one.quantity == "step_time" and one.is_worse and one.ratio]
    if len(runs) != 1 or len(baseline) != 1 or not slower:
        return [], ""
    facts, usual = (read_times(connection, uid, tails) for uid in (runs[0], baseline[0]))
    return engine.of_baseline(connection, facts, usual, 1 - 1 / (slower[0].ratio or 1.0))


def compare(
    connection: sqlite3.Connection,
    runs: Sequence[str],
    baseline: Sequence[str],
    keys: Collection[str] = (),
    prices: CostSection | None = None,
    *,
    known: Mapping[str, Measures] | None = None,
    tails: LogTails | None = None,
) -> list[Effect]:
    """Return the effects of runs against a baseline of one or more runs.

    With one run on both sides, the noise within the runs decides, at equal steps that of the difference. With several runs
    on a side, what differs between them decides, also for the other side.

    Args:
        connection: In a transaction.
        runs: Ids of the runs to judge, at least one.
        baseline: Ids of the runs to compare with, at least one.
        keys: Keys to compare, besides the runs' loss.
        prices: The configured prices; without them, costs are unknown.
        known: Measures of runs that are read already, by their ids.
        tails: Logs of streams that are read already.

    Raises:
        UnknownRunError: There is no run with one of these ids.
        ValueError: A block is damaged.
    """
    read, tails = dict(known or {}), LogTails(connection) if tails is None else tails
    for uid in (*runs, *baseline):
        if uid not in read:
            read[uid] = read_whole(connection, uid, prices, tails)
    sides = [read[uid] for uid in runs], [read[uid] for uid in baseline]
    effects = [
        _effect(Effect("step_time", "seconds", "lower"), sides, lambda one: one.step_seconds, "fewer than two steps"),
        _throughput(sides),
        *(_effect(Effect(name, unit, "lower"), sides, value, why) for name, unit, value, why in _USED),
        _effect(
            Effect("step_time_p25", "seconds", "lower"), sides, lambda one: one.quick_seconds, "fewer than two steps"
        ),
    ]
    loss = next((key for key in LOSSES if all(_last_step(connection, uid, key, tails) for uid in read)), None)
    for key in dict.fromkeys([*([loss] if loss else []), *keys]):
        effects.extend(_curves(connection, sides, key, tails))
    return effects


def as_json(effect: Effect) -> dict[str, Any]:
    """Return an effect as JSON."""
    return {name: json_number(value) if isinstance(value, float) else value for name, value in effect._asdict().items()}


def read_whole(connection: sqlite3.Connection, uid: str, prices: CostSection | None, tails: LogTails) -> Measures:
    """Return the measures of a run with what it used."""
    facts, measures = read_facts(connection, uid, tails), read_measures(connection, uid, tails)
    joules = energy(facts)
    cost = None if prices is None else costs(facts, joules, {}, measures, prices)["cost"]
    return with_usage(measures, facts, total_joules(joules), cost)


def _exact(value: float | None) -> Estimate | None:
    return None if value is None else Estimate(value)


def _per_1000(estimate: Estimate | None) -> Estimate | None:
    return None if estimate is None else scaled(estimate, 1000)


_USED: tuple[tuple[str, str, Callable[[Measures], Estimate | None], str], ...] = (
    ("gpu_memory", "bytes", lambda one: _exact(one.gpu_memory), "no GPU was read"),
    ("host_memory", "bytes", lambda one: _exact(one.host_memory), "no process of a rank was read"),
    ("energy", "joules per 1,000 steps", lambda one: _per_1000(one.joules), "no counter, or not of each GPU"),
    ("cost", "per 1,000 steps", lambda one: _per_1000(one.cost), "no prices are configured"),
)
"""What runs used: quantity, unit, its estimate, and why it is unknown."""


def _effect(
    quantity: Effect,
    sides: tuple[Sequence[Measures], Sequence[Measures]],
    read: Callable[[Measures], Estimate | None],
    unknown: str,
) -> Effect:
    value, baseline = ([read(one) for one in side] for side in sides)
    known, usual = [one for one in value if one is not None], [one for one in baseline if one is not None]
    if len(known) < len(value) or len(usual) < len(baseline):
        return quantity._replace(unknown=unknown)
    return compared(quantity, known, usual)


def compared(quantity: Effect, value: Sequence[Estimate], baseline: Sequence[Estimate]) -> Effect:
    """Return the effect of estimates of several runs; those of a single one are as uncertain as the runs of the other side differ."""
    one, other = pooled(value), pooled(baseline)
    if len(value) == 1 < len(baseline):
        one = one._replace(variance=max(one.variance, other.variance * len(baseline)), freedom=other.freedom)
    if len(baseline) == 1 < len(value):
        other = other._replace(variance=max(other.variance, one.variance * len(value)), freedom=one.freedom)
    return _filled(quantity, one, other, difference(one, other))


def _filled(quantity: Effect, one: Estimate, other: Estimate, apart: Estimate) -> Effect:
    """Return an effect with its values; *apart* is the difference of both estimates."""
    filled = quantity._replace(value=one.value, baseline=other.value, difference=apart.value)
    ratio = one.value / other.value if other.value > 0 else None
    filled = filled._replace(ratio=ratio)
    if not isfinite(apart.variance):
        return filled._replace(unknown="too few samples for an interval")
    low, high = apart.interval()
    filled = filled._replace(difference_low=low, difference_high=high)
    if ratio is None:
        return filled
    spread = apart.variance + (ratio - 1) ** 2 * other.variance  # of a quotient, by the delta method
    half = half_width(spread / other.value**2, apart.freedom)
    return filled._replace(low=ratio - half, high=ratio + half)


def _throughput(sides: tuple[Sequence[Measures], Sequence[Measures]]) -> Effect:
    """Compare what all runs count."""
    counted = {one.throughput[0] if one.throughput else "" for side in sides for one in side}
    unit = f"{counted.pop()} per second" if len(counted) == 1 else "steps per second"
    quantity = Effect("throughput", unit, "higher")
    if unit == "steps per second":
        return _effect(quantity, sides, lambda one: one.step_rate, "fewer than two pushes")
    return _effect(quantity, sides, lambda one: one.throughput and one.throughput[1], "fewer than two pushes")


def _curves(
    connection: sqlite3.Connection, sides: tuple[Sequence[Measures], Sequence[Measures]], key: str, tails: LogTails
) -> Iterator[Effect]:
    """Yield the effects on a key at equal steps, and at equal tokens where these differ."""
    quantity = Effect(key, "", "lower" if role(key) in {"loss", "evaluation"} else "")
    every = [one for side in sides for one in side]
    ends = {one.run: _last_step(connection, one.run, key, tails) for one in every}
    lacking = [one.run for one in every if ends[one.run] is None]
    if lacking:
        yield quantity._replace(unknown=f"run {lacking[0]} has no values of it")
        return
    last = min(end for end in ends.values() if end is not None)
    yield _at_end(connection, quantity._replace(at=last), sides, [(one, last) for one in every], tails)
    amounts = {one.run: one.tokens for one in every if one.tokens}
    if len(amounts) < len(ends) or len(set(amounts.values())) == 1:
        return
    tokens = min((ends[run] or 0) * each for run, each in amounts.items())
    at_tokens = quantity._replace(quantity=key + TOKENS, at=tokens)
    yield _at_end(connection, at_tokens, sides, [(one, tokens / amounts[one.run]) for one in every], tails)


def _at_end(
    connection: sqlite3.Connection,
    quantity: Effect,
    sides: tuple[Sequence[Measures], Sequence[Measures]],
    until: Sequence[tuple[Measures, float]],
    tails: LogTails,
) -> Effect:
    """Compare the means of a curve in the last part up to a step of each run."""
    key = quantity.quantity.removesuffix(TOKENS)
    strict = role(key) != "gradient"
    bins = [
        read_bins(connection, one.run, key, Window("step", (1 - END) * last, last), tails, strict=strict)
        for one, last in until
    ]
    split = len(sides[0])
    broken = [one.run for (one, _), means in zip(until, bins, strict=True) if any(map(isinf, means))]
    if broken:
        side = "baseline" if any(map(isinf, chain(*bins[split:]))) else "value"
        return quantity._replace(unknown=f"values of run {broken[-1]} are not finite", nonfinite=side)
    common = [at for at in range(len(bins[0])) if not any(isnan(each[at]) for each in bins)]
    if not common:
        return quantity._replace(unknown="no finite values at equal steps")
    curves = [[each[at] for at in common] for each in bins]
    if len(curves) > 2:
        levels = [Estimate(fmean(curve), 0.0) for curve in curves]
        return compared(quantity, levels[:split], levels[split:])
    one, other = curves
    apart = batched([left - right for left, right in zip(one, other, strict=True)], fmean)
    return _filled(quantity, batched(one, fmean), batched(other, fmean), apart)


def _last_step(connection: sqlite3.Connection, uid: str, key: str, tails: LogTails) -> float | None:
    """Return the last step of a key of the lowest rank; None without values."""
    found = [
        summary(connection, series.series, series.tail)["last_step"]
        for series in reader.series(connection, uid, [key], tails=tails)
    ]
    return max((float(step) for step in found if step is not None), default=None)
