"""Layers of an observed model as captures: the training measures them more often for some steps, and the capture keeps that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite, log10
from pathlib import Path
from typing import Any

import msgspec

from trackside_daemon.captures.kinds.kind import CaptureKind, failure
from trackside_daemon.history.files.layer_lines import layer_lines
from trackside_daemon.history.layer_rows import LayerFrame, merge_ranks
from trackside_daemon.history.read.layers import HEADER, last_row, ranked, row, values_by_layer
from trackside_daemon.history.read.series import Readable, run_streams
from trackside_daemon.model.capture import OPTIONS_BY_KIND, Capture
from trackside_daemon.model.text import aligned, column_widths, number, shown

Line = Mapping[str, Any]


RANKS = 64  # ranks of one capture
MISSED_STEPS = 8  # steps: the first measurement may be 4 steps late, and the last 4 early
POLL_SECONDS = 0.2
STILL_SECONDS, STILL_STEPS = 5.0, 16  # what must pass without a measurement before the rest is given up
ROWS = 32  # layers in the text
CHANGES = 5
MAX_NAME_CELLS = 60  # cells of a layer's name in the text
FOLLOWED = {"gradients": "norm", "activations": "largest", "weights": "norm", "attention": "logit"}
"""The value of each kind whose change is reported."""

UNOBSERVED = "it has measured no layers; run.observe(model) in the training measures them"


class _Head(msgspec.Struct):
    """The fields of a line besides the layers."""

    step: int
    of: str


_head = msgspec.json.Decoder(_Head).decode


class Layers(CaptureKind):
    """Captures of layers.

    Args:
        history: The history, which gets what the ranks measure.
        command: Has ranks of a run, by its id, measure their layers more often for a number of steps.
        step_seconds: Returns the duration of a run's steps, by the run's id and attempt; None if it is unknown.
        still_seconds: What must pass without a measurement, besides some steps, before the rest is given up.
    """

    name = "layers"
    changes = "changes"

    def __init__(
        self,
        history: Readable,
        command: Callable[[str, int, frozenset[int]], object],
        step_seconds: Callable[[str, int], float | None],
        still_seconds: float = STILL_SECONDS,
    ) -> None:
        self._history = history
        self._command = command
        self._step_seconds = step_seconds
        self._still_seconds = still_seconds

    def refuse(self, _capture: Capture, ranks: Sequence[int]) -> dict[int, str]:
        """Refuse ranks beyond the most; see `RankRecorder`."""
        return dict.fromkeys(ranks[RANKS:], f"{RANKS} ranks are recorded at most; --ranks selects others")

    def record(
        self, capture: Capture, ranks: Sequence[int], directory: Path, cancelled: threading.Event
    ) -> dict[int, Path | str]:
        """Write what ranks measure during the steps as JSON lines; see `RankRecorder`."""
        steps = capture.options.steps or OPTIONS_BY_KIND[self.name].steps
        still = self._still_seconds + STILL_STEPS * (self._step_seconds(capture.run, capture.attempt) or 0.0)
        files = {rank: _RankFile(directory / f"layers_{rank}.jsonl") for rank in ranks}
        with self._history.reading() as connection:
            last = last_row(connection)
        self._command(capture.run, steps, frozenset(ranks))
        until = time.monotonic() + still
        while time.monotonic() < until and not cancelled.wait(POLL_SECONDS):
            newest = self._write_after(last, capture, files)
            if all(file.covers(steps) for file in files.values()):
                break
            until = time.monotonic() + still if newest > last else until
            last = newest
        return {rank: file.outcome() for rank, file in files.items()}

    def _write_after(self, last: int, capture: Capture, files: Mapping[int, _RankFile]) -> int:
        """Write what ranks measured after a row of the history; return the last row."""
        newest = last
        with self._history.reading() as connection:
            for stream, _, rank in run_streams(connection, capture.run, capture.attempt):
                since = last
                while rank in files and (page := list(layer_lines(connection, stream, since))):
                    files[rank].write([line for _, line in page])
                    since = page[-1][0]
                newest = max(newest, since)
        return newest

    @staticmethod
    def summarize(files: Mapping[int, Path]) -> dict[str, Any]:
        """Return the steps of each rank, the last values of all ranks as one model, and what changed most."""
        ranks: dict[str, Any] = {}
        first: dict[str, dict[int, bytes]] = {}
        last: dict[str, dict[int, bytes]] = {}
        for rank, path in files.items():
            lines = path.read_bytes().splitlines()
            heads = [_head(line) for line in lines]
            ranks[str(rank)] = {"steps": sorted({head.step for head in heads})}
            for head, line in zip(heads, lines, strict=True):
                first.setdefault(head.of, {}).setdefault(rank, line)
                last.setdefault(head.of, {})[rank] = line
        before, after = ({kind: _whole(lines.values()) for kind, lines in found.items()} for found in (first, last))
        return {
            "ranks": ranks,
            "kinds": {kind: {"step": frame.step, "layers": values_by_layer(frame)} for kind, frame in after.items()},
            "changes": _changes(before, after),
        }

    @staticmethod
    def text(summary: Mapping[str, Any]) -> list[str]:
        """Return the measured steps, the layers that stand out most as of the last one, and what changed most since the first."""
        layers = ranked(summary["kinds"], {})
        ranks = ", ".join(summary["ranks"])
        steps = sorted({step for one in summary["ranks"].values() for step in one["steps"]})
        lines = [
            f"{len(layers)} layers in {len(steps)} measured steps, {steps[0]:,} to {steps[-1]:,}, of rank{'s' * (len(summary['ranks']) > 1)} {ranks}"
        ]
        lines += _aligned([HEADER[:-1], *(row(one)[:-1] for one in layers[:ROWS])])
        if summary["changes"]:
            lines.append("changed most since the first of them:")
            lines += [f"  {shown(change['text'])}" for change in summary["changes"]]
        return lines


class _RankFile:
    """The file of one rank, and the steps that it has."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._steps: set[int] = set()
        self._error = ""

    def write(self, lines: Sequence[Line]) -> None:
        try:
            with self._path.open("ab") as target:
                target.writelines(msgspec.json.encode(line) + b"\n" for line in lines)
        except OSError as error:
            self._error = failure(self._path, error)
        self._steps.update(line["step"] for line in lines)

    def covers(self, steps: int) -> bool:
        return bool(self._steps) and max(self._steps) - min(self._steps) >= steps - MISSED_STEPS

    def outcome(self) -> Path | str:
        return self._error or (self._path if self._steps else UNOBSERVED)


def _whole(lines: Iterable[bytes]) -> LayerFrame:
    """Return the measurements of several ranks as one."""
    return merge_ranks([_frame(msgspec.json.decode(line)) for line in lines])


def _frame(line: Line) -> LayerFrame:
    layers = line["layers"]
    names = [name for name in next(iter(layers.values()), ()) if name != "buckets"]
    columns: dict[str, Sequence[float]] = {name: [float(one[name]) for one in layers.values()] for name in names}
    return LayerFrame(line["step"], line["step"], round(line["time"] * 1e6), list(layers), columns, [])


def _changes(first: Mapping[str, LayerFrame], last: Mapping[str, LayerFrame]) -> list[dict[str, Any]]:
    """Return the values that changed most as ratios, the most first."""
    found: list[dict[str, Any]] = []
    for kind, frame in last.items():
        value = FOLLOWED[kind]
        before = dict(zip(first[kind].names, first[kind].columns[value], strict=True))
        for layer, after in zip(frame.names, frame.columns[value], strict=True):
            was = before.get(layer, 0.0)
            if was > 0 and after > 0 and isfinite(was) and isfinite(after) and was != after:
                text = f"{layer}, {value} of {kind}: {number(was)} → {number(after)}"
                found.append({"text": text, "layer": layer, "kind": kind, "before": was, "after": after})
    return sorted(found, key=lambda one: -abs(log10(one["after"] / one["before"])))[:CHANGES]


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Return a table with its first column to the left, the others to the right."""
    first, *rest = column_widths(rows)
    return aligned(rows, [min(first, MAX_NAME_CELLS), *rest], " " + ">" * len(rest))
