"""Choose each constant of the detectors on all datasets but one, and print what it would be and what that reaches there.

``PYTHONPATH=tests:. python bench/left_out.py [NAME…]`` prints all constants, or those with such a text in their names, in about
ten minutes. It needs the labelled logs.

A candidate is measured by F2, in which recall counts twice as much as precision. Alarms in the grey zone count as false, and
ten alarms on scheduled pauses as one. The constants are chosen one after the other, each with those before it. A value stays
where no candidate is better by `MARGIN`. If no candidate changes the measure, it is free: these logs do not decide it.

"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

from bench.left_out_constants import CONSTANTS
from bench.left_out_scores import Rows, Values, rows, value_of
from bench.logs import scorer
from bench.table import head, machine, row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

FACTORS = (0.7, 1.4)
"""Candidates of a constant, as factors on its value."""

MARGIN = 0.01
"""A candidate that is better by less wins by one event or two, by chance."""

PERIODIC = 0.1
"""The weight of an alarm on a scheduled pause: the first of each schedule cannot be known."""


def main() -> None:
    """Print the tables of the constants that the arguments name."""
    machine()
    tables(scorer(), sys.argv[1:])


def tables(score: ModuleType, texts: Sequence[str] = ()) -> None:
    """Print the tables, of all constants or of those with one of the *texts* in their names."""
    for measure, names in CONSTANTS.items():
        wanted = [name for name in names if not texts or any(text in name for text in texts)]
        if wanted:
            _by_dataset(score, measure, _by_constant(score, measure, wanted))


def _by_constant(score: ModuleType, measure: str, names: Sequence[str]) -> dict[str, Values]:
    """Print what each constant would be, and return what the other datasets choose, by dataset."""
    now = rows(score, measure)
    chosen = {name: _choose(score, measure, names, name) for name in dict.fromkeys(one["dataset"] for one in now)}
    every = dict(_choose(score, measure, names, ""))
    head(f"{measure}: constant", "value", "chosen", "without one dataset", "F2 of the other candidates")
    for name in names:
        value = value_of(name)
        others = [rows(score, measure, ((name, other),)) for other in _candidates(value)]
        counts = Counter(dict(values).get(name, value) for values in chosen.values()).most_common()
        told = ", ".join(f"{other:.3g} ({count})" for other, count in counts)
        f2 = sorted(_f2(each) for each in others)
        figures = (told, f"{f2[0]:.3f} to {f2[-1]:.3f}") if any(each != now for each in others) else ("free", "")
        row(f"`{name}`", f"{value:.3g}", f"{every.get(name, value):.3g}", *figures)
    print(f"\nF2 with all values as they are: {_f2(now):.3f}.")
    return chosen


def _choose(score: ModuleType, measure: str, names: Sequence[str], left_out: str) -> Values:
    """Return the constants that all datasets but one would change."""

    def f2(values: Values) -> float:
        return _f2([one for one in rows(score, measure, values) if one["dataset"] != left_out])

    chosen: Values = ()
    for name in names:
        best = max(((*chosen, (name, value)) for value in _candidates(value_of(name))), key=f2)
        chosen = best if f2(best) > f2(chosen) + MARGIN else chosen
    return chosen


def _by_dataset(score: ModuleType, measure: str, chosen: Mapping[str, Values]) -> None:
    """Print what the detectors find in each dataset, and what they find with the constants that the others choose."""
    columns = ("found", "false", "grey", "scheduled")
    head(f"{measure}: dataset", "series", "events", *columns, *(f"left out: {name}" for name in columns))
    of: dict[str, tuple[Rows, Rows]] = {}
    for dataset, values in sorted(chosen.items()):
        now, left = ([one for one in rows(score, measure, each) if one["dataset"] == dataset] for each in ((), values))
        name = (
            dataset if any(one["events"] or one["found"] + one["fp"] + one["grey"] for one in now + left) else "others"
        )
        others = of.get(name, ([], []))
        of[name] = others[0] + now, others[1] + left
    now, left = ([one for each in of.values() for one in each[side]] for side in (0, 1))
    for name, each in (*of.items(), ("all", (now, left))):
        _line(name, *each)
    row("recall; precision", "", "", *_rates(now), "", "", *_rates(left), "", "")


def _line(name: str, now: Rows, left: Rows) -> None:
    figures = [sum(one[what] for one in each) for each in (now, left) for what in ("found", "fp", "grey", "periodic")]
    row(name, f"{len(now)}", f"{sum(one['events'] for one in now)}", *map(str, figures))


def _candidates(value: float) -> list[float]:
    """Return other values."""
    if not isinstance(value, int):
        return [factor * value for factor in FACTORS]
    return [other for other in dict.fromkeys(max(1, round(factor * value)) for factor in FACTORS) if other != value]


def _counts(scored: Rows) -> tuple[int, int, float]:
    wrong = sum(one["fp"] + one["grey"] + PERIODIC * one["periodic"] for one in scored)
    return sum(one["found"] for one in scored), sum(one["events"] for one in scored), wrong


def _f2(scored: Rows) -> float:
    found, events, wrong = _counts(scored)
    return 5 * found / (4 * events + found + wrong)


def _rates(scored: Rows) -> tuple[str, str]:
    found, events, wrong = _counts(scored)
    return f"{found / events:.3f}", f"{found / (found + wrong):.3f}"


if __name__ == "__main__":
    main()
