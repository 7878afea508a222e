"""State of the view: the filter, the selected run, and the window of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

from trackside_daemon.terminal.formatting import to_float
from trackside_daemon.terminal.histories import history_columns, machine_query
from trackside_daemon.terminal.plot import KEYS
from trackside_daemon.terminal.processes import ORDERS, TREE, ordered

Run = Mapping[str, Any]


MIN_STEPS = 16  # steps of the smallest window


def _finite(value: object) -> float:
    """Return a finite number; 0 for anything else."""
    number = to_float(value)
    return number if number is not None and isfinite(number) else 0.0


class StepWindow(NamedTuple):
    """Steps that the plots show.

    Attributes:
        steps: Number of steps; None for all.
        end: Last step; None for the newest, which the window follows.
    """

    steps: float | None = None
    end: float | None = None

    def scaled(self, last: float, factor: float) -> StepWindow:
        """Return a larger or smaller window with the same end; all steps if it is larger than the run."""
        steps = max(MIN_STEPS, (last if self.steps is None else self.steps) * factor)
        return StepWindow() if steps >= last else StepWindow(steps, self.end)

    def moved(self, last: float, share: float) -> StepWindow:
        """Return a window moved by a *share* of its size; beyond the newest step it follows that."""
        if self.steps is None:
            return self
        end = max(self.steps, (last if self.end is None else self.end) + share * self.steps)
        return StepWindow(self.steps, None if end >= last else end)

    def parameters(self, last: float) -> dict[str, float]:
        """Return the query parameters of `/api/v1/series` for the window."""
        if self.steps is None:
            return {}
        end = last if self.end is None else self.end
        return {"from": int(end - self.steps), **({} if self.end is None else {"to": int(end)})}


@dataclass
class View:
    """State of the view.

    Attributes:
        selected: Id of the selected run; empty for the first.
        filter: Text in the name, id or state of the runs to show.
        enlarged: Whether the selected run's plots take the place of the list.
        window: Window of the selected run's steps.
        columns: Width of a plot.
        machine: Whether histories and processes of the machine take the place of runs and plots.
        order: Order of the processes, one of `processes.ORDERS`.
        is_reversed: Whether that order is reversed.
        pid: Pid of the selected process; 0 for the first.
        width: Width of the frame.
    """

    selected: str = ""
    filter: str = ""
    enlarged: bool = False
    window: StepWindow = field(default_factory=StepWindow)
    columns: int = 40
    machine: bool = False
    order: str = TREE
    is_reversed: bool = False
    pid: int = 0
    width: int = 80

    def matching_runs(self, overview: Mapping[str, Any]) -> list[Run]:
        """Return the runs that match the filter."""
        return self._matching(overview.get("runs", ()), "name", "id", "state")

    def matching_processes(self, processes: Sequence[Run]) -> list[Run]:
        """Return the processes that match the filter, in order."""
        found = self._matching(processes, "run", "user", "command", "comm", "pid")
        return ordered(found, self.order, is_reversed=self.is_reversed)

    def _matching(self, rows: Sequence[Run], *names: str) -> list[Run]:
        text = self.filter.casefold()
        return [row for row in rows if any(text in str(row.get(name, "")).casefold() for name in names)]

    def process_index(self, processes: Sequence[Run]) -> int:
        """Return the index of the selected process; 0 if it is not among *processes*."""
        return next((index for index, one in enumerate(processes) if one.get("pid") == self.pid), 0)

    def move_process(self, processes: Sequence[Run], by: int) -> None:
        """Select the process that many lines further down."""
        found = self.matching_processes(processes)
        if found:
            self.pid = found[min(len(found) - 1, max(0, self.process_index(found) + by))].get("pid", 0)

    def sort_by(self, by: int) -> None:
        """Sort the processes by the column that many further to the right."""
        self.order = ORDERS[(ORDERS.index(self.order) + by) % len(ORDERS)]
        self.is_reversed = False

    def selected_index(self, runs: Sequence[Run]) -> int:
        """Return the index of the selected run; 0 if it is not among *runs*."""
        return next((index for index, run in enumerate(runs) if str(run.get("id")) == self.selected), 0)

    def selected_run(self, overview: Mapping[str, Any]) -> Run | None:
        """Return the selected run; None if no run matches the filter."""
        runs = self.matching_runs(overview)
        return runs[self.selected_index(runs)] if runs else None

    def move_selection(self, overview: Mapping[str, Any], by: int) -> None:
        """Select the run that many lines further down."""
        runs = self.matching_runs(overview)
        if runs:
            index = min(len(runs) - 1, max(0, self.selected_index(runs) + by))
            self.select(str(runs[index].get("id")))

    def select(self, run: str) -> None:
        """Select a run by its id; show all steps of a run that was not selected before."""
        if run != self.selected:
            self.selected = run
            self.window = StepWindow()

    def update_selection(self, overview: Mapping[str, Any]) -> None:
        """Select the first matching run if the selected one is gone."""
        run = self.selected_run(overview)
        if run is not None:
            self.select(str(run.get("id")))

    def last_step(self, overview: Mapping[str, Any]) -> float:
        """Return the last step of the selected run."""
        return _finite((self.selected_run(overview) or {}).get("step"))

    def series_query(self, overview: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the query parameters of `/api/v1/series`, as pairs; empty if there is no run."""
        run = self.selected_run(overview)
        if run is None:
            return []
        attempts = max(1, int(_finite(run.get("attempt"))))
        # A braille character has two dots across, and all attempts share the plot.
        points = max(2, 2 * self.columns // attempts)
        parameters = {
            "missing": "ignore",
            "by": "step",
            "points": points,
            **self.window.parameters(_finite(run.get("step"))),
        }
        pairs = [("run", str(run.get("id"))), *(("key", key) for key in KEYS)]
        return pairs + [(name, str(value)) for name, value in parameters.items()]

    def machine_query(self, overview: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the query parameters of `/api/v1/machine`, as pairs; empty if the histories are not shown."""
        return machine_query(_finite(overview.get("time")), history_columns(self.width)) if self.machine else []
