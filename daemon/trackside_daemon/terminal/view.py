"""State of the view: the filter, the selected run, and the window of its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

from trackside_daemon.model.text import cut
from trackside_daemon.terminal.histories import history_columns, machine_query
from trackside_daemon.terminal.plot import KEYS
from trackside_daemon.terminal.styled_lines import (
    ABSENT,
    Line,
    Piece,
    TableColumn,
    fit,
    percent,
    render_table,
    text_field,
    to_float,
    with_prefix,
)

Process = Mapping[str, Any]


TREE = "tree"
MIN_SECONDS = 2.0  # shortest time over which the share of a CPU is measured; the daemon reads it each second
RUN_WIDTH = 14
_COLUMNS = (
    TableColumn("PID", 8),
    TableColumn("USER", 8, right=False),
    TableColumn("RUN:RANK", RUN_WIDTH, right=False),
    TableColumn("GPU", 4),
    TableColumn("GPU MEM", 8),
    TableColumn("SM", 5),
    TableColumn("CPU", 6),
    TableColumn("MEM", 5, min_frame=90),
    TableColumn("COMMAND", 0, right=False),
)
_NUMBERS = {"GPU MEM", "SM", "CPU", "MEM"}  # columns with the largest numbers first
ORDERS = (TREE, *(column.name for column in _COLUMNS))


class CpuShares:
    """Measures the share of a CPU that each process uses."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[float, float, float | None]] = {}

    def update(self, processes: Sequence[dict[str, Any]], now: float) -> None:
        """Add ``cpu_ratio`` to each process; *now* is in seconds."""
        newest: dict[int, tuple[float, float, float | None]] = {}
        for process in processes:
            pid, used = _pid(process), to_float(process.get("cpu_seconds"))
            if used is None:
                continue
            time, before, ratio = self._before.get(pid, (now, used, None))
            if now - time >= MIN_SECONDS:
                time, before, ratio = now, used, max(0.0, used - before) / (now - time)
            newest[pid] = time, before, ratio
            process["cpu_ratio"] = ratio
        self._before = newest


def ordered(processes: Sequence[Process], order: str, *, is_reversed: bool = False) -> list[Process]:
    """Return the processes sorted by a column, largest numbers first; or as a tree, each with its ``depth``.

    Missing values come last, also if *is_reversed*. A tree has no reversed order.
    """
    if order == TREE:
        return _tree(processes)
    key = _SORT_KEYS[order]
    values = [(key(process), process) for process in processes]
    present = [pair for pair in values if pair[0] is not None]
    present.sort(key=lambda pair: pair[0], reverse=is_reversed)
    return [process for _, process in present] + [process for value, process in values if value is None]


def render_processes(
    processes: Sequence[Process], selected: int, order: str, size: tuple[int, int], *, is_reversed: bool = False
) -> list[Line]:
    """Return the lines of a *size*, width and height: the names of the columns, that of the order with an arrow, and the processes."""
    width, height = size
    if not processes:
        empty: list[Line] = [[("PROCESSES", "title")], [("no process trains or uses a GPU", "dim")], *([[]] * height)]
        return [fit(line, width) for line in empty[:height]]
    titles = {order: f"{'▼' if (order in _NUMBERS) != is_reversed else '▲'}{order}"}
    return render_table(_COLUMNS, processes, _cells, selected, size, titles=titles)


def describe(process: Process) -> str:
    """Return the pid, command, run and rank of a process in one line."""
    belongs = f" (rank {text_field(process, 'rank')} of {text_field(process, 'run')})" if process.get("run") else ""
    return f"{text_field(process, 'pid')}{belongs}: {_command(process)}"


def _tree(processes: Sequence[Process]) -> list[Process]:
    """Return each process followed by its descendants, in the order of the list otherwise."""
    pids = {_pid(process) for process in processes}
    children: dict[int, list[Process]] = {}
    for process in reversed(processes):
        parent = process.get("parent")
        children.setdefault(parent if isinstance(parent, int) and parent in pids else 0, []).append(process)
    found: list[Process] = []
    stack = [(process, 0) for process in children.pop(0, [])]
    while stack:
        process, depth = stack.pop()
        found.append({**process, "depth": depth})
        stack += [(child, depth + 1) for child in children.pop(_pid(process), [])]
    return found


def _pid(process: Process) -> int:
    pid = process.get("pid")
    return pid if isinstance(pid, int) else -1


def _command(process: Process) -> str:
    """Return the command without the directories of the program."""
    program, blank, arguments = text_field(process, "command").partition(" ")
    return program.rpartition("/")[2] + blank + arguments or text_field(process, "comm", ABSENT)


def _on_gpus(process: Process, name: str) -> float | None:
    """Return the sum of a value over the GPUs that a process uses."""
    numbers = [to_float(gpu.get(name)) for gpu in _gpus(process)]
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _gpus(process: Process) -> list[dict[str, Any]]:
    gpus = process.get("gpus")
    return [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []


def _gpu_names(process: Process) -> str:
    return ",".join(text_field(gpu, "gpu") for gpu in _gpus(process))


def _run_and_rank(process: Process) -> str:
    if not process.get("run"):
        return ABSENT
    rank = text_field(process, "rank")
    return f"{cut(text_field(process, 'run'), max(1, RUN_WIDTH - 1 - len(rank)))}:{rank}"


def _largest_first(value: object) -> float | None:
    number = to_float(value)
    return -number if number is not None and isfinite(number) else None


_SORT_KEYS: dict[str, Callable[[Process], Any]] = {
    "PID": _pid,
    "USER": lambda process: text_field(process, "user") or None,
    "RUN:RANK": lambda process: (
        (text_field(process, "run"), to_float(process.get("rank")) or 0.0) if process.get("run") else None
    ),
    "GPU": lambda process: (len(names := _gpu_names(process)), names) if _gpus(process) else None,
    "GPU MEM": lambda process: _largest_first(_on_gpus(process, "memory_bytes")),
    "SM": lambda process: _largest_first(_on_gpus(process, "sm_utilization_ratio")),
    "CPU": lambda process: _largest_first(process.get("cpu_ratio")),
    "MEM": lambda process: _largest_first(process.get("resident_bytes")),
    "COMMAND": _command,
}


def _cells(process: Mapping[str, Any]) -> dict[str, Piece]:
    """Return the text and style of each column."""
    depth = process.get("depth", 0)
    branch = f"{'  ' * min(depth - 1, 8)}└ " if depth else ""
    return {
        "PID": (text_field(process, "pid", ABSENT), ""),
        "USER": (text_field(process, "user", ABSENT), ""),
        "RUN:RANK": (_run_and_rank(process), "" if process.get("run") else "dim"),
        "GPU": (_gpu_names(process) or ABSENT, ""),
        "GPU MEM": (with_prefix(_on_gpus(process, "memory_bytes"), 1024), ""),
        "SM": (percent(_on_gpus(process, "sm_utilization_ratio")), ""),
        "CPU": (percent(process.get("cpu_ratio")), ""),
        "MEM": (with_prefix(process.get("resident_bytes"), 1024), ""),
        "COMMAND": (branch + _command(process), "dim" if process.get("role") == "gpu" else ""),
    }


Run = Mapping[str, Any]


MIN_STEPS = 16  # steps of the smallest window


def _finite(value: object) -> float:
    """Return a finite number; 0 for anything else."""
    number = to_float(value)
    return number if number is not None and isfinite(number) else 0.0


class StepWindow(NamedTuple):
    """Steps that the plots show."""

    steps: float | None = None  # number of steps; None for all
    end: float | None = None  # last step; None for the newest, which the window follows

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
    """State of the view."""

    selected: str = ""  # id of the selected run; empty for the first
    filter: str = ""  # text in the name, id or state of the runs to show
    enlarged: bool = False  # whether the selected run's plots take the place of the list
    window: StepWindow = field(default_factory=StepWindow)  # window of the selected run's steps
    columns: int = 40  # width of a plot
    machine: bool = False  # whether histories and processes of the machine take the place of runs and plots
    order: str = TREE  # order of the processes, one of `processes.ORDERS`
    is_reversed: bool = False  # whether that order is reversed
    pid: int = 0  # pid of the selected process; 0 for the first
    width: int = 80  # width of the frame

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
