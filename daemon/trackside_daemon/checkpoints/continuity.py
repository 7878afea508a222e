"""Judge whether a resumed training continues where it was: a pure function of the steps before and after.

Steps that an earlier attempt has made already are compared with themselves: with the same weights and the same batches their
losses agree. Else the first steps are compared with those before the checkpoint. What is usual is learnt from the window
before: the noise of single steps, and how far the means of windows lie apart.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import log, sqrt
from statistics import fmean, median
from typing import NamedTuple

from trackside_daemon.model.robust import middle_and_spread
from trackside_daemon.model.text import factor, number

WINDOW_STEPS = 32  # steps of the new attempt that are judged
BEFORE = 256  # steps before the checkpoint that are read
MIN_STEPS = 8  # steps without which nothing is judged
BEGIN = 4  # first steps, in which new weights and a fresh optimizer show
PAIRED = 12  # steps that both attempts made, from which their batches are compared

SIGMAS = 4.0  # standard errors from which a mean has changed
NOTABLE = 0.05  # and its least relative change
RECENT = 4  # differences between windows that show how much the mean usually moves
SHIFT = 0.15  # least change of a mean of the same batches, in units of the noise of single steps
SAME_BATCHES = 0.5  # correlation of the same steps' losses, below which their batches were others
ANEW = 0.35  # part of the way back to the first loss of the run, from which the weights are new
RATE = 0.01  # relative change of the learning rate at the same step
DRIFT = 0.05  # likewise at the next step
UPDATE = 1.8  # factor over the usual update ratio that a fresh optimizer exceeds, or falls below
SLOWER = 1.25  # factor of the step time


class TrainingQuantity(NamedTuple):
    """A quantity of the training."""

    before: Mapping[int, float]  # its values in earlier attempts by step, up to the last one
    after: Mapping[int, float]  # its values in the new attempt by step
    first: Sequence[float] = ()  # its first values in the run


class MeanChange(NamedTuple):
    """The means of a quantity before and after, and whether it is ``higher``, ``lower`` or ``continues``."""

    what: str
    before: float
    after: float
    change: str


class ResumeVerdict(NamedTuple):
    """The verdict on a resume."""

    # The likely fault: ``weights``, ``scheduler``, ``optimizer``, ``data``, ``order``, ``anew`` or ``unknown``; empty
    # if the training continues.
    cause: str
    alert: bool  # the fault shows in the values, so that an alert is due
    text: str  # what was found, in one sentence without a subject
    changes: tuple[MeanChange, ...] = ()  # the quantities that could be judged


CAUSES = {
    "weights": "the loss is back at that of the beginning: the weights were not loaded",
    "scheduler": "the learning rate is another: the scheduler was not restored",
    "optimizer": "the weights continue, their updates do not: the state of the optimizer was not restored",
    "data": "the loss is lower: data are repeated that the model has seen, or an epoch began",
    "order": "the same steps got other batches: the position in the data was not restored",
    "anew": "the training begins anew",
    "unknown": "the weights, the data or the settings are others",
}
WORDS = {
    "loss": "loss",
    "gradient": "gradient norm",
    "rate": "learning rate",
    "update": "update ratio",
    "duration": "step time",
}


def judge(quantities: Mapping[str, TrainingQuantity], step: int, first_step: int) -> ResumeVerdict | None:
    """Return the verdict on an attempt that goes on after a step; None with too few steps.

    Args:
        quantities: ``loss`` and, where known, ``gradient``, ``rate``, ``update`` and ``duration``.
        step: The step of the checkpoint.
        first_step: The first step of the run.
    """
    if step < first_step:
        return ResumeVerdict("anew", False, CAUSES["anew"])
    loss = quantities.get("loss")
    if loss is None or len(loss.after) < MIN_STEPS or len(_reference(loss, step)) < MIN_STEPS:
        return None
    changes = {what: change for what, one in quantities.items() if (change := _change(what, one, step)) is not None}
    cause = _cause(quantities, changes, step)
    alert = cause not in {"", "order"}
    clauses = [_text(cause, [one for what, one in changes.items() if what != "duration"]), *_pace(changes, quantities)]
    return ResumeVerdict(cause, alert, "; ".join(clauses), tuple(changes.values()))


def _text(cause: str, changes: Sequence[MeanChange]) -> str:
    """Return a clause about the cause and what has changed, or what continues."""
    if not cause:
        *others, last = (WORDS[one.what] for one in changes)
        return f"{', '.join(others)} and {last} continue as before" if others else f"{last} continues as before"
    moved = [one for one in changes if one.change != "continues"]
    parts = [f"{WORDS[one.what]} {number(one.before)} before, {number(one.after)} now" for one in moved]
    return CAUSES[cause] + (f" ({'; '.join(parts)})" if parts else "")


def _cause(quantities: Mapping[str, TrainingQuantity], changes: Mapping[str, MeanChange], step: int) -> str:
    """Return the likely fault by its pattern; empty for none."""
    loss, moved = quantities["loss"], {what: one.change for what, one in changes.items()}
    other_batches = _has_other_batches(loss)
    lower = "lower" in {moved["loss"], moved.get("gradient")}
    higher = "higher" in {moved["loss"], moved.get("gradient")}
    found = (
        ("weights", _is_new(loss, step)),
        ("scheduler", moved.get("rate", "continues") != "continues"),
        ("optimizer", moved.get("update", "continues") != "continues"),
        ("data", lower and not higher and other_batches is not False),
        ("unknown", moved["loss"] == "higher" and other_batches is not False),
        ("optimizer", lower or higher),  # with the same batches, or of the gradient norm alone
        ("order", other_batches),
    )
    return next((cause for cause, holds in found if holds), "")


def _change(what: str, one: TrainingQuantity, step: int) -> MeanChange | None:
    """Return how a quantity goes on; None if it cannot be judged."""
    compare = {"rate": _compare_rates, "update": _compare_updates, "duration": _compare_durations}.get(what, _compare)
    found = compare(one, step)
    if found is None:
        return None
    before, after, differs = found
    return MeanChange(what, before, after, ("higher" if after > before else "lower") if differs else "continues")


def _compare(one: TrainingQuantity, step: int) -> tuple[float, float, bool] | None:
    """Return the means before and after, and whether they differ by more than what is usual."""
    after, reference = _first(one.after), _reference(one, step)
    if len(after) < MIN_STEPS or len(reference) < MIN_STEPS:
        return None
    noise = _noise(reference)
    pairs = _pairs(one)
    if len(pairs) >= MIN_STEPS and not _has_other_batches(one):
        differences = [now - then for then, now in pairs]
        error = _noise(differences) / sqrt(len(pairs))
        shift = abs(fmean(differences))
        before, now = (fmean(values) for values in zip(*pairs, strict=True))
        return before, now, shift > max(SIGMAS * error, SHIFT * noise)
    count = len(pairs) if len(pairs) >= MIN_STEPS else len(after)
    then = [value for value, _ in pairs] if len(pairs) >= MIN_STEPS else reference[-max(count, 2 * MIN_STEPS) :]
    before, now = fmean(then), fmean(after[:count])
    means = [fmean(reference[end - count : end]) for end in range(len(reference), count - 1, -count)]
    usual = max((abs(one - other) for one, other in pairwise(means[: RECENT + 1])), default=0.0)
    least = max(SIGMAS * noise * sqrt(1 / count + 1 / len(then)), 1.5 * usual, NOTABLE * abs(before))
    return before, now, abs(now - before) > least


def _compare_rates(one: TrainingQuantity, step: int) -> tuple[float, float, bool] | None:
    reference, after = _reference(one, step), _first(one.after)
    if not reference or not after:
        return None
    if pairs := _pairs(one):
        then, now = (median(values) for values in zip(*pairs[:MIN_STEPS], strict=True))
        return then, now, abs(now - then) > RATE * max(abs(now), abs(then))
    then, now = reference[-1], after[0]
    steepest = max((abs(other - value) for value, other in pairwise(reference[-2 * MIN_STEPS :])), default=0.0)
    return then, now, abs(now - then) > DRIFT * max(abs(now), abs(then)) + 3 * steepest


def _compare_updates(one: TrainingQuantity, step: int) -> tuple[float, float, bool] | None:
    """Compare the first update of the weights, which shows a fresh optimizer; by their logarithms, as they are skewed."""
    reference = [log(value) for value in _reference(one, step) if value > 0]
    early = [value for at, value in sorted(one.after.items()) if at <= step + BEGIN and value > 0]
    if len(reference) < MIN_STEPS or not early:
        return None
    usual, spread = middle_and_spread(reference)
    now = log(early[0])
    return median(_reference(one, step)), early[0], abs(now - usual) > max(log(UPDATE), (SIGMAS + 1) * spread)


def _compare_durations(one: TrainingQuantity, step: int) -> tuple[float, float, bool] | None:
    reference, settled = _reference(one, step), _first(one.after)[MIN_STEPS:]
    if len(reference) < MIN_STEPS or len(settled) < MIN_STEPS:
        return None
    (before, spread), now = middle_and_spread(reference), median(settled)
    if not before or not now:
        return None
    return before, now, max(now / before, before / now) > SLOWER and abs(now - before) > SIGMAS * spread


def _pace(changes: Mapping[str, MeanChange], quantities: Mapping[str, TrainingQuantity]) -> Iterator[str]:
    """Yield a clause about slower or faster steps."""
    if (change := changes.get("duration")) is None:
        return
    first = _first(quantities["duration"].after)[:MIN_STEPS]
    if change.change != "continues":
        word, ratio = (
            ("slower", change.after / change.before)
            if change.change == "higher"
            else ("faster", change.before / change.after)
        )
        yield f"steps are {factor(ratio)} {word}" if word == "slower" else f"steps are {word} by {factor(ratio)}"
    elif fmean(first) > 2 * change.before:
        yield "only the first steps were slow, as when caches and kernels warm up"


def _is_new(loss: TrainingQuantity, step: int) -> bool:
    """Return whether the loss is back at that of the beginning."""
    if len(loss.first) < BEGIN:
        return False
    reference = _reference(loss, step)
    before = fmean(reference[-2 * MIN_STEPS :])
    first, now = fmean(loss.first[:BEGIN]), fmean(_first(loss.after)[:BEGIN])
    return first - before > SIGMAS * _noise(reference) and now - before > ANEW * (first - before)


def _has_other_batches(one: TrainingQuantity) -> bool | None:
    """Return whether the steps that both attempts made had other batches; None if they are too few to judge."""
    pairs = _pairs(one)
    if len(pairs) < PAIRED:
        return None
    then, now = zip(*pairs, strict=True)
    return _correlation(then, now) < SAME_BATCHES


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    of_one, of_other = ([value - fmean(values) for value in values] for values in (one, other))
    scale = sqrt(sum(value * value for value in of_one) * sum(value * value for value in of_other))
    return sum(value * another for value, another in zip(of_one, of_other, strict=True)) / scale if scale else 1.0


def _pairs(one: TrainingQuantity) -> list[tuple[float, float]]:
    """Return the values before and after of the steps that both attempts made."""
    return [(one.before[step], value) for step, value in sorted(one.after.items())[:WINDOW_STEPS] if step in one.before]


def _reference(one: TrainingQuantity, step: int) -> list[float]:
    return [value for at, value in sorted(one.before.items()) if step - BEFORE < at <= step]


def _first(values: Mapping[int, float]) -> list[float]:
    return [value for _, value in sorted(values.items())[:WINDOW_STEPS]]


def _noise(values: Sequence[float]) -> float:
    """Return the standard deviation of single values about their trend, by the median of their differences."""
    differences = [after - before for before, after in pairwise(values)]
    return middle_and_spread(differences)[1] / sqrt(2) if differences else 0.0
