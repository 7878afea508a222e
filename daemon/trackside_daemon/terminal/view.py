"""What the user looks at: a run of those that fit the filter, and a window of its steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.terminal.curves import KEYS
from trackside_daemon.terminal.formatting import real

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Run = Mapping[str, Any]

LEAST_STEPS = 16
"""A window is not made smaller."""


def _finite(value: object) -> float:
    """A number; 0 for what is none."""
    found = real(value)
    return found if found is not None and isfinite(found) else 0.0


class Window(NamedTuple):
    """Steps that are drawn.

    Attributes:
        steps: How many; None for all.
        end: The last; None for the newest, with which the window goes on.
    """

    steps: float | None = None
    end: float | None = None

    def scaled(self, last: float, factor: float) -> Window:
        """A larger or smaller one with the same end; of more than there is, all."""
        steps = max(LEAST_STEPS, (last if self.steps is None else self.steps) * factor)
        return Window() if steps >= last else Window(steps, self.end)

    def moved(self, last: float, share: float) -> Window:
        """One further on, or back with a *share* below zero; beyond the newest step it goes on with it."""
        if self.steps is None:
            return self
        end = max(self.steps, (last if self.end is None else self.end) + share * self.steps)
        return Window(self.steps, None if end >= last else end)

    def asked(self, last: float) -> dict[str, float]:
        """What `/api/v1/series` is asked for."""
        if self.steps is None:
            return {}
        end = last if self.end is None else self.end
        return {"from": int(end - self.steps), **({} if self.end is None else {"to": int(end)})}


@dataclass
class View:
    """What is shown.

    Attributes:
        chosen: A run's id; empty for the first.
        filter: Of its name, id and state, one has this in it.
        large: The chosen run has the room of the list.
        window: Of its steps.
        columns: Of a plot.
    """

    chosen: str = ""
    filter: str = ""
    large: bool = False
    window: Window = field(default_factory=Window)
    columns: int = 40

    def runs(self, overview: Mapping[str, Any]) -> list[Run]:
        """Those that fit the filter."""
        wanted = self.filter.casefold()
        return [
            run
            for run in overview.get("runs", ())
            if any(wanted in str(run.get(name, "")).casefold() for name in ("name", "id", "state"))
        ]

    def place(self, runs: Sequence[Run]) -> int:
        """The number of the chosen one, or of the first."""
        return next((place for place, run in enumerate(runs) if str(run.get("id")) == self.chosen), 0)

    def run(self, overview: Mapping[str, Any]) -> Run | None:
        """The chosen one; None where none fits."""
        runs = self.runs(overview)
        return runs[self.place(runs)] if runs else None

    def move(self, overview: Mapping[str, Any], by: int) -> None:
        """Choose the run so many further down."""
        runs = self.runs(overview)
        if runs:
            self.choose(str(runs[min(len(runs) - 1, max(0, self.place(runs) + by))].get("id")))

    def choose(self, run: str) -> None:
        """Choose a run by its id; another one is shown whole."""
        if run != self.chosen:
            self.chosen, self.window = run, Window()

    def follow(self, overview: Mapping[str, Any]) -> None:
        """Choose the run that is shown, where the chosen one is not there."""
        run = self.run(overview)
        if run is not None:
            self.choose(str(run.get("id")))

    def last_step(self, overview: Mapping[str, Any]) -> float:
        """Of the chosen run."""
        return _finite((self.run(overview) or {}).get("step"))

    def question(self, overview: Mapping[str, Any]) -> list[tuple[str, str]]:
        """What `/api/v1/series` is asked, as pairs; empty where there is no run."""
        run = self.run(overview)
        if run is None:
            return []
        attempts = max(1, int(_finite(run.get("attempt"))))
        points = max(2, 2 * self.columns // attempts)
        asked = {"by": "step", "points": points, **self.window.asked(_finite(run.get("step")))}
        pairs = [("run", str(run.get("id"))), *(("key", key) for key in KEYS)]
        return pairs + [(name, str(value)) for name, value in asked.items()]
