"""Pane of the last minutes of the host and its GPUs, from the series of `/api/v1/machine`."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trackside_daemon.history.series_name import series_labels
from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.families import host
from trackside_daemon.terminal.styled_lines import Line, Piece, fit, pad, sparkline, text_field, to_float, with_prefix

Values = dict[float, float]
"""Values by Unix time in seconds."""


SECONDS = 300  # length of the histories
CPU = host.CPU_SECONDS.name
MEMORY, AVAILABLE = host.MEMORY.name, host.MEMORY_AVAILABLE.name
GPU_KEYS = {
    "UTILIZATION": gpu_families.UTILIZATION.name,
    "MEMORY": gpu_families.MEMORY_USED.name,
    "POWER": gpu_families.POWER.name,
    "TEMPERATURE": gpu_families.TEMPERATURE.name,
}
KEYS = (CPU, MEMORY, AVAILABLE, *GPU_KEYS.values())
LABEL_WIDTH = 14
GAP = 2  # columns between two histories
HOTTEST = 100.0  # degrees Celsius at the top of a history


def history_columns(width: int) -> int:
    """Return the width of each history."""
    return max(4, (width - LABEL_WIDTH) // len(GPU_KEYS) - GAP)


def machine_query(now: float, columns: int) -> list[tuple[str, str]]:
    """Return the query parameters of `/api/v1/machine`."""
    return [*(("key", key) for key in KEYS), ("from", str(now - SECONDS)), ("points", str(columns))]


def render_histories(
    series: Sequence[Mapping[str, Any]], overview: Mapping[str, Any], width: int, height: int
) -> list[Line]:
    """Return *height* lines: the titles, the host's CPU and memory, and each GPU; each from 0 to its limit."""
    columns = history_columns(width)
    names = "".join(" " * GAP + pad(name, columns) for name in GPU_KEYS)
    lines: list[Line] = [[(pad(f"LAST {SECONDS // 60} MINUTES", LABEL_WIDTH) + names, "title")]]
    memory = _one(series, MEMORY)
    used = {time: memory[time] - free for time, free in _one(series, AVAILABLE).items() if time in memory}
    total = max(memory.values(), default=0.0)
    lines.append(
        [(pad("host", LABEL_WIDTH), ""), _history(_busy(series), columns, 1.0), _history(used, columns, total)]
    )
    lines += [[(pad(_label(gpu), LABEL_WIDTH), ""), *_gpu(series, gpu, columns)] for gpu in overview.get("gpus", ())]
    if len(lines) > height > 0:
        lines = [*lines[: height - 1], [(f"+{len(lines) - height + 1} more GPUs", "dim")]]
    return [fit(line, width) for line in (lines + [[]] * height)[:height]]


def clock(gpu: Mapping[str, Any]) -> str:
    """Return the SM clock of a GPU; empty if it is not measured."""
    hertz = to_float(gpu.get("clock_hertz"))
    return "" if hertz is None else f"{with_prefix(hertz)}Hz"


def _label(gpu: Mapping[str, Any]) -> str:
    return f"gpu {text_field(gpu, 'gpu', '?')} {pad(clock(gpu), 7, right=True)}"


def _gpu(series: Sequence[Mapping[str, Any]], gpu: Mapping[str, Any], columns: int) -> Iterator[Piece]:
    tops = {
        "UTILIZATION": 1.0,
        "MEMORY": to_float(gpu.get("memory_bytes")),
        "POWER": to_float(gpu.get("power_limit_watts")),
        "TEMPERATURE": HOTTEST,
    }
    for name, key in GPU_KEYS.items():
        values = _one(series, key, gpu=text_field(gpu, "gpu"))
        yield _history(values, columns, tops[name] or max(values.values(), default=0.0))


def _history(values: Values, columns: int, top: float) -> Piece:
    return " " * GAP + sparkline([values[time] for time in sorted(values)], columns, top), "good"


def _busy(series: Sequence[Mapping[str, Any]]) -> Values:
    """Return the share of the time that the CPUs were busy, from the time in each mode."""
    total: Values = defaultdict(float)
    idle: Values = defaultdict(float)
    for labels, values in _named(series, CPU):
        for time, value in values.items():
            total[time] += value
            idle[time] += value if labels.get("mode") in {"idle", "iowait"} else 0.0
    return {time: 1 - idle[time] / value for time, value in total.items() if value > 0}


def _one(series: Sequence[Mapping[str, Any]], key: str, **wanted: str) -> Values:
    """Return the values of the first series with these labels; of temperatures, that of the chip."""
    for labels, values in _named(series, key):
        if labels.items() >= wanted.items() and labels.get("sensor", "gpu") == "gpu":
            return values
    return {}


def _named(series: Sequence[Mapping[str, Any]], key: str) -> Iterator[tuple[dict[str, str], Values]]:
    for one in series:
        name, points = str(one.get("key")), one.get("points")
        if name.partition("{")[0] == key and isinstance(points, list):
            yield series_labels(name), dict(_values(points))


def _values(points: Sequence[object]) -> Iterator[tuple[float, float]]:
    """Yield the time and the mean of each bucket."""
    for point in points:
        if isinstance(point, list) and len(point) > 6:
            time, mean = to_float(point[1]), to_float(point[6])
            if time is not None and mean is not None:
                yield time, mean
