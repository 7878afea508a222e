"""Compare /metrics with ``nvidia-smi``, on an idle GPU and on a busy one."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from bench.daemons import fresh_daemon
from bench.gpu_report import nvidia_smi
from bench.gpu_report.parity_columns import COLUMNS, TEXTS, Column, number
from bench.gpu_report.result import Figure, Result, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from processes import Daemon

ROUNDS = 8
SETTLING = 12.0
"""Seconds in which the daemon also reads again what it reads every 10 s."""
FEWEST = 15
TICK = 1.1  # seconds until the sampler has read again
PROCESS_NEAR = 64 * 2.0**20
LOAD = """
import torch, time
if torch.cuda.is_available():
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    product = torch.empty_like(matrix)
print("busy", flush=True)
while torch.cuda.is_available():
    for _ in range(50):
        torch.matmul(matrix, matrix, out=product)
    torch.cuda.synchronize()
time.sleep(600)
"""


class Gpu(NamedTuple):
    """One GPU on a page of /metrics.

    Attributes:
        values: By the short name of the family and the value of its own label.
        texts: Labels of the info families.
    """

    values: dict[tuple[str, str], float]
    texts: dict[str, str]


class Compared(NamedTuple):
    """A column of one GPU: both values, and whether they agree; None if only one of the two has a value."""

    theirs: str
    ours: str
    agrees: bool | None


Comparison = dict[tuple[str, str], Compared]
"""By uuid and column."""


def measure(result: Result, *, rehearse: bool) -> None:
    """Compare on an idle GPU, then on a busy one."""
    phases: dict[str, Comparison] = {}
    with fresh_daemon("--collector.gpu.extra=all") as daemon:
        try:
            wait_for_gpus(daemon)
            phases["idle"] = _phase("idle", daemon, result)
            with busy():
                time.sleep(1.5 if rehearse else SETTLING)
                phases["busy"] = _phase("busy", daemon, result)
                _compare_processes(daemon, result)
        finally:
            result.tables.append(_table(phases))


def _phase(name: str, daemon: Daemon, result: Result) -> Comparison:
    compared = settled(lambda: daemon.get("/metrics").text, result)
    judged = [value for value in compared.values() if value.agrees is not None]
    agree = sum(value.agrees is True for value in judged)
    figure = Figure(f"{name} GPU: values equal to those of nvidia-smi", f"{agree} of {len(judged)}", "all")
    figure.met = agree == len(judged) >= FEWEST
    result.figures.append(figure)
    only = [
        f"{column} ({value.theirs})"
        for (_, column), value in compared.items()
        if value.agrees is None and value.ours == "-"
    ]
    if only:
        result.notes.append(f"On the {name} GPU, only nvidia-smi has: {', '.join(only)}.")
    return compared


@contextmanager
def busy() -> Iterator[None]:
    """Keep the first GPU busy with products of matrices; without a GPU, start a process that waits."""
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", LOAD], stdout=subprocess.PIPE, text=True) as load:
        assert load.stdout is not None
        try:
            if load.stdout.readline() != "busy\n":
                raise RuntimeError("the process that keeps the GPU busy has failed")
            yield
        finally:
            load.kill()


def gpus_of(page: str) -> dict[str, Gpu]:
    """Return the GPUs of a page of /metrics, by their UUIDs."""
    gpus: dict[str, Gpu] = {}
    driver: dict[str, str] = {}
    for family, inside, value in re.findall(r"^trackside_(\w+)\{(.*)\} (\S+)$", page, re.MULTILINE):
        labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', inside))
        if family == "nvidia_driver_info":
            driver = labels
        if not family.startswith("gpu_") or "uuid" not in labels:
            continue
        gpu = gpus.setdefault(labels["uuid"], Gpu({}, {}))
        if family == "gpu_info":
            gpu.texts.update(labels)
        rest = [text for name, text in labels.items() if name not in {"gpu", "uuid"}]
        gpu.values[family.removeprefix("gpu_"), ",".join(rest)] = float(value)
    return {uuid: Gpu(gpu.values, {**driver, **gpu.texts}) for uuid, gpu in gpus.items()}


def compare(answer: nvidia_smi.Answer, before: dict[str, Gpu], after: dict[str, Gpu]) -> Comparison:
    """Compare an answer of nvidia-smi with the pages before and after it; a value may lie between both."""
    compared: Comparison = {}
    for row in answer.rows:
        uuid = row["uuid"]
        nothing = Gpu({}, {})
        first, last = before.get(uuid, nothing), after.get(uuid, nothing)
        for column in COLUMNS:
            if (value := _column(column, row.get(column.name), first, last)) is not None:
                compared[uuid, column.name] = value
        for name, label in TEXTS.items():
            if (theirs := row.get(name)) is not None:
                ours = last.texts.get(label, "")
                compared[uuid, name] = Compared(theirs, ours or "-", theirs == ours if ours else None)
    return compared


def _column(column: Column, text: str | None, first: Gpu, last: Gpu) -> Compared | None:
    key = column.family, column.label
    ours = [gpu.values[key] for gpu in (first, last) if key in gpu.values]
    theirs = number(text) if text is not None else None
    if theirs is None or not ours:
        missing = text is None and not ours
        return None if missing else Compared(text or "-", f"{ours[-1] / column.scale:g}" if ours else "-", None)
    value = theirs * column.scale
    near = column.near + column.share * value + 1e-9 * abs(value)
    agrees = min(ours) - near <= value <= max(ours) + near
    return Compared(f"{theirs:g}", f"{ours[-1] / column.scale:g}", agrees)


def settled(read_page: Callable[[], str], result: Result) -> Comparison:
    """Compare until all agree, at most `ROUNDS` times: what changes fast needs to agree once."""
    columns = [*(column.name for column in COLUMNS), *TEXTS]
    compared: Comparison = {}
    page = gpus_of(read_page())
    for _ in range(ROUNDS):
        answer = nvidia_smi.query(columns)
        columns = [column for column in columns if column not in answer.refused]
        if answer.refused:
            result.notes.append(f"This nvidia-smi does not have: {', '.join(answer.refused)}.")
        time.sleep(TICK)
        later = gpus_of(read_page())
        fresh = compare(answer, page, later)
        compared |= {key: value for key, value in fresh.items() if key not in compared or not compared[key].agrees}
        page = later
        if all(value.agrees is not False for value in compared.values()):
            break
    return compared


def wait_for_gpus(daemon: Daemon) -> None:
    """Wait for a page with all values, also of GPM, which needs two samples."""
    end = time.monotonic() + 30.0
    while "trackside_gpu_utilization_ratio{" not in daemon.get("/metrics").text and time.monotonic() < end:
        time.sleep(0.5)
    time.sleep(2.2)


def _compare_processes(daemon: Daemon, result: Result) -> None:
    used = nvidia_smi.process_memory()
    pages = re.findall(
        r'^trackside_gpu_process_memory_bytes\{.*pid="(\d+)".*\} (\S+)$', daemon.get("/metrics").text, re.MULTILINE
    )
    ours: dict[int, float] = {}
    for pid, value in pages:
        ours[int(pid)] = ours.get(int(pid), 0.0) + float(value)
    both = used.keys() & ours.keys()
    far = [pid for pid in both if abs(used[pid] - ours[pid]) > PROCESS_NEAR]
    if not both:
        result.notes.append(
            f"No process in common: nvidia-smi lists {len(used)}, /metrics {len(ours)}; in a container, NVML may not show "
            "pids of this namespace."
        )
        return
    text = f"{len(both) - len(far)} of {len(both)}"
    result.figures.append(Figure("processes with the same memory", text, "all", met=not far))


def _table(phases: dict[str, Comparison]) -> Table:
    families = {
        column.name: f"{column.family}{{{column.label}}}" if column.label else column.family for column in COLUMNS
    }
    families |= {name: f"info: {label}" for name, label in TEXTS.items()}
    near = {
        column.name: f"{column.near / column.scale:g}" + (f" + {column.share:.0%}" if column.share else "")
        for column in COLUMNS
    }
    rows = []
    for uuid, column in dict.fromkeys(key for phase in phases.values() for key in phase):
        cells = [cell for phase in phases.values() for cell in _cells(phase.get((uuid, column)))]
        rows.append([uuid[:12], column, families[column], near.get(column, "0"), *cells])
    heads = [f"{name}: {what}" for name in phases for what in ("nvidia-smi", "/metrics", "equal")]
    return Table(["GPU", "column", "family", "may differ by", *heads], rows)


def _cells(value: Compared | None) -> list[str]:
    if value is None:
        return ["-", "-", "-"]
    return [value.theirs, value.ours, {True: "yes", False: "**NO**", None: "only one has it"}[value.agrees]]
