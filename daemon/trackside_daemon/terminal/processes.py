"""Pane of the processes that train or use a GPU, as a tree or sorted by a column."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

from trackside_daemon.model.text import cut
from trackside_daemon.terminal.formatting import ABSENT, percent, text_field, to_float, with_prefix
from trackside_daemon.terminal.styled_lines import Line, Piece, TableColumn, fit, render_table

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
